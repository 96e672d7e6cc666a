"""What watches read back from the changelog: a few of them at a time, each for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping

from keyhole.changelog.base import Changelog, ChangelogReader, Partition, RestoredEpochs
from keyhole.errors import ChangelogRecreated
from keyhole.model.epoch import START
from keyhole.model.state import StateDescriptor
from services.state_server.read.watcher import GroupEpoch

_DEADLINE_SECONDS = 30.0
# Each has a Kafka consumer.
_READERS = 2
# A watch whose reader is slow must not keep others waiting.
_TURN_SECONDS = 2.0


class ChangelogHistory:
    """History (see read/watcher.py) of the applications of a server, in threads of the loop's pool.

    Two watches read at a time. After two seconds the turn is another one's: also where a watch waits for whoever reads
    it, as it then holds one epoch in memory, and no consumer.

    Args:
        changelog: Makes the changelog of an application.
        seconds: Of one turn.
    """

    def __init__(self, changelog: Callable[[str], Changelog], seconds: float = _TURN_SECONDS) -> None:
        self._changelog = changelog
        self._seconds = seconds
        self._turns = asyncio.Semaphore(_READERS)

    async def epochs(
        self, descriptor: StateDescriptor, marks: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncGenerator[GroupEpoch]:
        begins = dict(marks)
        turn: _Turn | None = None
        try:
            while left := {group: end for group, end in ends.items() if begins[group] < end}:
                if turn is None or turn.over:
                    if turn is not None:
                        await turn.close()
                    turn = await self._turn(descriptor, begins, left)
                piece = await turn.next()
                if piece is None:
                    return
                group = piece.partition.key_group
                if piece.marker is None:  # the last of its key group: nothing that is whole comes behind it
                    begins[group] = ends[group]
                    continue
                epoch = GroupEpoch(group, begins[group], piece.position, piece.changes)
                begins[group] = piece.position.offset
                if turn.over:
                    await turn.close()
                yield epoch
        finally:
            if turn is not None:
                await turn.close()

    async def _turn(self, descriptor: StateDescriptor, begins: Mapping[int, int], ends: Mapping[int, int]) -> _Turn:
        await self._turns.acquire()
        try:
            reader = await asyncio.to_thread(self._open, descriptor)
            return _Turn(reader, _pieces(reader, descriptor.state, begins, ends), self._seconds, self._turns.release)
        except BaseException:
            self._turns.release()
            raise

    def _open(self, descriptor: StateDescriptor) -> ChangelogReader:
        changelog = self._changelog(descriptor.application)
        admin = changelog.admin()
        if not admin.check(descriptor, _DEADLINE_SECONDS):
            raise ChangelogRecreated(f"topic {descriptor.topic} is gone", topic=descriptor.topic)
        return changelog.reader()


class _Turn:
    """One that reads. Event loop.

    Attributes:
        over: Another one's turn has come, or is about to.
    """

    def __init__(
        self, reader: ChangelogReader, pieces: Iterator[RestoredEpochs], seconds: float, free: Callable[[], None]
    ) -> None:
        self.over = False
        self._reader = reader
        self._pieces = pieces
        self._free = free
        self._in_thread = False
        self._closing: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end)

    async def next(self) -> RestoredEpochs | None:
        """The next piece; None: there are no more."""
        self._in_thread = True
        try:
            return await _next(self._pieces)
        finally:
            self._in_thread = False

    def _end(self) -> None:
        self.over = True
        if not self._in_thread:
            self._begin_to_close()

    def _begin_to_close(self) -> asyncio.Task[None]:
        self._timer.cancel()
        self._closing = self._closing or asyncio.create_task(self._close())
        return self._closing

    async def close(self) -> None:
        """Lets the next one read. Idempotent."""
        await asyncio.shield(self._begin_to_close())

    async def _close(self) -> None:
        try:
            await asyncio.to_thread(_close, self._pieces, self._reader)
        finally:
            self._free()


def _pieces(
    reader: ChangelogReader, state: str, marks: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[RestoredEpochs]:
    positions = {Partition(state, group): START._replace(offset=marks[group]) for group in ends}
    stops = {Partition(state, group): end for group, end in ends.items()}
    return reader.epochs(positions, stops, _DEADLINE_SECONDS)


async def _next(pieces: Iterator[RestoredEpochs]) -> RestoredEpochs | None:
    """The next of them; None: there are no more. Returns, or is cancelled, only once no thread reads them."""
    reading = asyncio.get_running_loop().run_in_executor(None, next, pieces, None)
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        await asyncio.wait({reading})
        raise


def _close(pieces: Iterator[RestoredEpochs], reader: ChangelogReader) -> None:
    if isinstance(pieces, Generator):
        pieces.close()
    reader.close()

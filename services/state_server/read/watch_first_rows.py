"""The rows that are there, as one watch is given them first: of published snapshots, key group by key group."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from keyhole.clock import Clock
from keyhole.encoding.envelope import expiry_ms
from keyhole.encoding.watch_token import WatchMark
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.rpc.watch_requests import WatchAsked
from services.state_server.read.table import Table
from services.state_server.read.watch_given import GivenSoFar
from services.state_server.read.watch_messages import Message, Sent
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watch_read_back import PAUSE_SECONDS, ReadBack
from services.state_server.read.watch_rows import entries_of, shown_rows, turns
from services.state_server.read.watch_selection import WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshot, WatchSnapshots


class FirstRows:
    """Of one watch. Event loop."""

    def __init__(
        self,
        table: Table,
        asked: WatchAsked,
        given: GivenSoFar,
        back: ReadBack,
        clock: Clock,
        limits: WatchLimits,
        snapshots: WatchSnapshots,
        select: WatchSelection,
    ) -> None:
        self._table = table
        self._changes = table.changes
        self._asked = asked
        self._given = given
        self._back = back
        self._clock = clock
        self._limits = limits
        self._snapshots = snapshots
        self._select = select
        self._expires = table.descriptor.ttl_ms > 0

    async def messages(self) -> AsyncGenerator[Message]:
        """All that have yet to be given, and what has changed meanwhile of those that were. Close it. Raises as
        Watching.messages.
        """
        given, back = self._given, self._back
        for group in sorted(given.marks):
            while given.marks[group].below is not None:
                given.check_here()
                # While no snapshot is held: then there is little to read back for the one that is.
                async with aclosing(back.refresh()) as messages:
                    async for message in messages:
                        yield message
                async with aclosing(back.since_given(group, self._changes.positions[group])) as messages:
                    async for message in messages:
                        yield message
                async with aclosing(self._rows_of(group)) as messages:
                    async for message in messages:
                        yield message

    async def _rows_of(self, group: int) -> AsyncGenerator[Message]:
        """Rows of one snapshot, as many as its time allows; none where it can't be read from yet."""
        given, back = self._given, self._back
        async with self._snapshots.queued() as queued:
            while not await queued.has_turn(given.progress_left):
                given.check_here()
                yield given.message()
                # It keeps its place meanwhile.
                async with aclosing(back.refresh()) as messages:
                    async for message in messages:
                        yield message
            complete_ms = self._table.complete_ms
            held = queued.held(self._table.committed.hold)
            given.check_here()
            position, published = held.positions.get(group, START), self._changes.positions[group]
            # What others have yet to be given, all get together.
            early = position.offset > published.offset
            if not early:
                async with aclosing(back.since_given(group, position)) as messages:
                    async for message in messages:
                        yield message
                mark = given.marks[group]
                early = mark.begun and mark.offset < position.offset
            if not early and not held.closed:
                given.marks[group] = WatchMark(position.offset, position.epoch, 0, mark.below)
                given.times.given(group, complete_ms)
                async with aclosing(self._pages(held, group, position)) as messages:
                    async for message in messages:
                        yield message
        if early:
            await self._clock.pause(PAUSE_SECONDS)
            if given.is_due():
                yield given.message()

    async def _pages(self, held: WatchSnapshot, group: int, position: Position) -> AsyncGenerator[Message]:
        """The rows of a key group above its mark; where that takes too long, the first of them."""
        given, limits = self._given, self._limits
        mark, show, last = given.marks[group], self._table.show(position.stamp), b""
        sent, indexed = self._begun(group, position.stamp), self._table.by_index(self._select.indexed)
        entries = held.reading(entries_of(held.stored, group, self._asked.keys, mark.below or b"", indexed))
        for number, turn in enumerate(turns(entries, self._select.turn, limits.page_bytes)):
            if number:
                if last:
                    given.marks[group] = WatchMark(position.offset, position.epoch, 0, last)
                if sent.keys or given.is_due():
                    yield given.message(*([sent] if sent.keys else []))
                    sent = self._begun(group, position.stamp)
                if await self._interrupted(held):
                    return
            stored = {key: entry for key, entry in turn if entry is not None} if self._expires else {}
            for key, row in self._select.kept(shown_rows(turn, show)):
                sent.add(key, row, expires_ms=expiry_ms(stored[key]) if stored else 0)
                if sent.size >= limits.page_bytes or len(sent.keys) >= limits.page_changes:
                    given.marks[group] = WatchMark(position.offset, position.epoch, 0, key)
                    yield given.message(sent)
                    sent = self._begun(group, position.stamp)
                    if await self._interrupted(held):
                        return
            last = turn[-1][0] or last
        given.marks[group] = WatchMark.at(position)
        if sent.keys:
            yield given.message(sent)

    def _begun(self, group: int, stamp: EpochStamp) -> Sent:
        """What rows that are there are added to."""
        return Sent(group, stamp, snapshot=True, expires=[] if self._expires else None)

    async def _interrupted(self, held: WatchSnapshot) -> bool:
        """Others have their turn. Whether the snapshot was closed meanwhile."""
        await self._snapshots.turns.next()
        self._given.check_here()
        return held.closed

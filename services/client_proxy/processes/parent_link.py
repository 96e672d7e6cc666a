"""A child's side of the pair of sockets to its parent: by it a process of a proxy knows of the others."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import socket
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from keyhole.rpc.processes.coming import comes_within
from keyhole.rpc.processes.word_framing import framed, read_word, send
from services.client_proxy.processes.words import (
    Ask,
    AskAll,
    Begin,
    FactsOfAll,
    FactsOfOne,
    Failed,
    Started,
    ToChild,
    ToParent,
)
from services.client_proxy.siblings import ProcessFacts, TellFacts

_log = logging.getLogger(__name__)

ALL_SECONDS = 1.5
"""For so long the parent is waited for: the metrics exporter gives a proxy 2 s by default."""

_READ = msgspec.msgpack.Decoder[ToChild](ToChild)
_FACTS = msgspec.msgpack.Decoder(ProcessFacts)


class ParentLink:
    """A child's Siblings: see there. Event loop's thread only. `open` makes one.

    This process ends at once where the parent is gone: nobody would start it again, or end it.

    Args:
        turn: A file that all children have open: who runs a query has it locked.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: Begin, turn: int, clock: Clock
    ) -> None:
        self.begin = begin
        self.count = begin.count
        self.number = begin.number
        self._reader = reader
        self._writer = writer
        self._turn = turn
        self._clock = clock
        self._tell: TellFacts | None = None
        self._questions = itertools.count(1)
        self._asked: dict[int, asyncio.Future[list[ProcessFacts]]] = {}
        # By the last answer; where none comes in time, what the others had reported before is better than nothing.
        self._last: list[ProcessFacts] = []
        self._telling: set[asyncio.Task[None]] = set()
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @staticmethod
    async def open(pair: int, turn: int, clock: Clock) -> ParentLink:
        """Over the descriptor of a socket: waits for the parent's first word."""
        for inherited in (pair, turn):
            os.set_inheritable(inherited, False)
        reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=pair))
        begin = await read_word(reader, _READ)
        if not isinstance(begin, Begin):
            _orphaned()
        return ParentLink(reader, writer, begin, turn, clock)

    def started(self) -> None:
        """Tells the parent that the ports answer."""
        self._say(Started())

    async def failed(self, error: KeyholeError) -> None:
        """Tells the parent why this process ends. Returns once that is on its way."""
        self._say(Failed(error.reason, error.message))
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def told_by(self, tell: TellFacts) -> None:
        self._tell = tell

    async def facts(self) -> list[ProcessFacts]:
        """As Siblings has it; of a process that does not answer in time what it reported last, if anything."""
        question = next(self._questions)
        answer = self._asked[question] = asyncio.get_running_loop().create_future()
        self._say(AskAll(question))
        try:
            if await comes_within(self._clock, ALL_SECONDS, answer):
                self._last = answer.result()
            else:
                _log.warning("the other processes' facts did not come in time", extra={"seconds": ALL_SECONDS})
        finally:
            del self._asked[question]
        return self._last or [await self._own()]

    @contextlib.contextmanager
    def sql_turn(self) -> Iterator[bool]:
        """As Siblings has it. The kernel gives the turn back where this process is killed."""
        try:
            fcntl.lockf(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._turn, fcntl.LOCK_UN)

    async def close(self) -> None:
        """The parent has heard all that was said."""
        self._listening.cancel()
        for task in (self._listening, *self._telling):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        while (word := await read_word(self._reader, _READ)) is not None:
            if isinstance(word, Ask):
                telling = asyncio.get_running_loop().create_task(self._answer(word.question))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)
            elif isinstance(word, FactsOfAll):
                waiting = self._asked.get(word.question)
                if waiting is not None and not waiting.done():
                    waiting.set_result([_FACTS.decode(of) for of in word.facts])
        _orphaned()

    async def _answer(self, question: int) -> None:
        try:
            facts = msgspec.msgpack.encode(await self._own())
        except Exception:  # noqa: BLE001 - the top of a task; a process that answers nothing would be ended
            _log.exception("a process's facts could not be made")
            facts = b""
        self._say(FactsOfOne(question, facts))

    async def _own(self) -> ProcessFacts:
        return await self._tell() if self._tell is not None else ProcessFacts(b"", (), ())

    def _say(self, word: ToParent) -> None:
        send(self._writer, framed(word))


def _orphaned() -> NoReturn:
    _log.error("the proxy's parent process is gone, so this one ends")
    # At once: until the ports are free, no other proxy can take its place.
    os._exit(1)

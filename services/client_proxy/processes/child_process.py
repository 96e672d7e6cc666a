"""One child, as its parent sees it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
from collections.abc import Callable

import msgspec

from keyhole.clock import Clock
from keyhole.rpc.processes.children import start_module, stop
from keyhole.rpc.processes.coming import comes_within
from keyhole.rpc.processes.word_framing import framed, read_word, send
from services.client_proxy.processes.words import (
    Ask,
    AskAll,
    Begin,
    FactsOfOne,
    Failed,
    Started,
    ToChild,
    ToParent,
)

_log = logging.getLogger(__name__)

_MODULE = "services.client_proxy.processes.child"

FACTS_SECONDS = 1.0
"""For so long a child is waited for when its facts are to be known; then what it reported last is."""

_LOOK_SECONDS, _SILENT_SECONDS = 5.0, 10.0
_MOST_SILENT = 4
"""A child that does not answer so often, one question after the other, hangs: its event loop stands still."""
_START_SECONDS = 300.0

_READ = msgspec.msgpack.Decoder[ToParent](ToParent)


class ChildProcess:
    """A process that was started, until its end. Event loop's thread only. `start` makes one.

    Attributes:
        number: As in Begin.
        started: Set once it serves.
        failed: Why it has ended or will, by its own word; None: it has said nothing.
        last_facts: Its facts, as it reported them last; empty: it has reported none.
    """

    def __init__(
        self,
        begin: Begin,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        asked_all: Callable[[ChildProcess, int], None],
        clock: Clock,
    ) -> None:
        self.number = begin.number
        self.started = asyncio.Event()
        self.failed: Failed | None = None
        self.last_facts = b""
        self._process = process
        self._reader, self._writer = streams
        self._asked_all = asked_all
        self._clock = clock
        self._questions = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self.say(begin)

    @staticmethod
    async def start(
        begin: Begin, turn: int, asked_all: Callable[[ChildProcess, int], None], clock: Clock
    ) -> ChildProcess:
        """Starts a process, which serves some time later.

        Args:
            turn: The descriptor that it inherits; see ParentLink.
            asked_all: Called with it, and the number of its question, where it wants to know the facts of all.

        Raises:
            OSError: There can be no more processes.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await start_module(_MODULE, (theirs.fileno(), turn))
            except OSError:
                ours.close()
                raise
        return ChildProcess(begin, process, await asyncio.open_unix_connection(sock=ours), asked_all, clock)

    async def ended(self) -> int:
        """Waits for its end, and ends it where it hangs. Returns the exit code; negative: the signal."""
        loop = asyncio.get_running_loop()
        listening, looking = loop.create_task(self._listen()), loop.create_task(self._look())
        try:
            code = await self._process.wait()
            await listening  # what it has said last is still to be heard
            return code
        finally:
            await stop(listening, looking)
            self._writer.close()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def say(self, word: ToChild) -> None:
        """Tells it something. One that has ended hears nothing."""
        send(self._writer, framed(word))

    async def facts(self) -> bytes:
        """Its facts, by now or as of its last word; empty: it has reported none yet."""
        if self.started.is_set() and not await self._answers(FACTS_SECONDS):
            _log.warning(
                "a process's facts did not come in time", extra={"number": self.number, "seconds": FACTS_SECONDS}
            )
        return self.last_facts

    async def _answers(self, seconds: float) -> bool:
        question = next(self._questions)
        answer = self._asked[question] = asyncio.get_running_loop().create_future()
        self.say(Ask(question))
        try:
            return await comes_within(self._clock, seconds, answer)
        finally:
            del self._asked[question]

    async def _listen(self) -> None:
        while (word := await read_word(self._reader, _READ)) is not None:
            if isinstance(word, Started):
                self.started.set()
            elif isinstance(word, Failed):
                self.failed = word
            elif isinstance(word, FactsOfOne):
                self.last_facts = word.facts or self.last_facts
                waiting = self._asked.get(word.question)
                if waiting is not None and not waiting.done():
                    waiting.set_result(word.facts)
            elif isinstance(word, AskAll):
                self._asked_all(self, word.question)

    async def _look(self) -> None:
        """Kubernetes asks whichever child has the connection: one that hangs must not be left to chance."""
        if not await comes_within(self._clock, _START_SECONDS, self.started.wait()):
            self._end("it has not begun to serve", _START_SECONDS)
            return
        silent = 0
        while silent < _MOST_SILENT:
            await self._clock.pause(_LOOK_SECONDS)
            silent = 0 if await self._answers(_SILENT_SECONDS) else silent + 1
        self._end("it answers nothing", _MOST_SILENT * _SILENT_SECONDS)

    def _end(self, why: str, seconds: float) -> None:
        _log.error("a process hangs and is killed", extra={"number": self.number, "why": why, "seconds": seconds})
        self.signal(signal.SIGKILL)

"""One reader process, as its server sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Mapping

import msgspec

from keyhole.clock import Clock
from keyhole.rpc.processes.children import start_module, stop
from keyhole.rpc.processes.coming import comes_within
from keyhole.rpc.processes.word_framing import framed, read_word, send
from services.state_server.readers.reader_words import (
    Answered,
    AskReader,
    PassedOn,
    ReaderReport,
    ReaderStarted,
    ToReader,
    ToServer,
)

_log = logging.getLogger(__name__)

_MODULE = "services.state_server.readers.reader_child"

_START_SECONDS, _LOOK_SECONDS = 300.0, 1.0
_MOST_SILENT = 40
"""Looks without an answer: the event loop of such a reader stands still."""
_MOST_UNREAD_BYTES = 256 << 20
"""Of what it is sent: one that reads nothing any more is ended."""
# Of the server's event loop, for one reader's frames.
_FRAMES_A_TURN, _BYTES_OF_A_FRAME = 16, 4096

AnswerPassedOn = Callable[[bytes, float | None], bytes]
"""Answers a LookupRequest that was passed on, as bytes, with a LookupResponse. It has until then; see PassedOn."""

_READ = msgspec.msgpack.Decoder[ToServer](ToServer)


class ReaderProcess:
    """A process that was started, until its end. Event loop's thread only. `start` makes one.

    Args:
        answer: Answers a LookupRequest that was passed on, as bytes, with a LookupResponse; see PassedOn.
        reported: Is called with what it has counted.

    Attributes:
        number: As in BeginReader.
        started: Set once it takes connections.
        last: What it has reported last; None: nothing.
    """

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        connections: socket.socket,
        answer: AnswerPassedOn,
        reported: Callable[[ReaderReport], None],
        clock: Clock,
    ) -> None:
        self.number = number
        self.started = asyncio.Event()
        self._given = 0
        self.last: ReaderReport | None = None
        self._process = process
        self._reader, self._writer = streams
        self._sends = connections
        self._answer = answer
        self._reported = reported
        self._clock = clock

    @property
    def connections(self) -> int:
        """How many it has; those that have ended count for a second more."""
        return self._given - (0 if self.last is None else self.last.ended)

    @staticmethod
    async def start(
        number: int,
        memory: int,
        environ: Mapping[str, str],
        answer: AnswerPassedOn,
        reported: Callable[[ReaderReport], None],
        clock: Clock,
    ) -> ReaderProcess:
        """Starts a process. It waits for its first words.

        Args:
            memory: The descriptor of the SharedCount.
            environ: Its settings.

        Raises:
            OSError: There can be no more processes.
        """
        ours, theirs = socket.socketpair()
        sends, takes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, takes:
            inherited = theirs.fileno(), takes.fileno(), memory
            try:
                process = await start_module(_MODULE, inherited, environ)
            except OSError:
                ours.close()
                sends.close()
                raise
        sends.setblocking(False)
        streams = await asyncio.open_unix_connection(sock=ours)
        return ReaderProcess(number, process, streams, sends, answer, reported, clock)

    async def ended(self) -> int:
        """Waits for its end, and ends it where it hangs. Returns the exit code; negative: the signal."""
        loop = asyncio.get_running_loop()
        listening, looking = loop.create_task(self._listen()), loop.create_task(self._look())
        try:
            code = await self._process.wait()
            self.started.clear()  # it takes no more connections
            await listening  # what it has said last is still to be heard
            return code
        finally:
            await stop(listening, looking)
            self._writer.close()
            self._sends.close()

    def kill(self) -> None:
        """Ends it at once, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def say(self, word: ToReader) -> None:
        """Tells it something. One that has ended hears nothing."""
        self.tell(framed(word))

    def tell(self, word: bytes) -> None:
        """As `say`, of a word as it travels."""
        send(self._writer, word)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self._end("it reads nothing")

    def take(self, connection: socket.socket) -> bool:
        """Gives it a connection. Returns False where it takes none now; the caller closes its own descriptor."""
        try:
            socket.send_fds(self._sends, [b"\0"], [connection.fileno()])
        except OSError:
            return False
        self._given += 1
        return True

    async def _listen(self) -> None:
        try:
            await self._hear()
        except Exception:  # noqa: BLE001 - the top of a task: what is passed on would wait for nobody
            _log.exception("what a reader process says can't be heard any more", extra={"number": self.number})
            self.kill()

    async def _hear(self) -> None:
        spent = 0
        while (word := await read_word(self._reader, _READ)) is not None:
            if isinstance(word, PassedOn):
                self.say(Answered(word.number, self._answered(word)))
                # Nothing more is answered than it takes; it goes on to read what it is sent.
                with contextlib.suppress(ConnectionError):
                    await self._writer.drain()
                spent += 1 + len(word.request) // _BYTES_OF_A_FRAME
                if spent >= _FRAMES_A_TURN:
                    spent = 0
                    await asyncio.sleep(0)  # others have their turn, whatever has come
            elif isinstance(word, ReaderStarted):
                self.started.set()
            else:
                self.last = word
                self._reported(word)

    def _answered(self, word: PassedOn) -> bytes:
        """Empty: it failed unexpectedly, and ends the connection that it came by, as it would here."""
        try:
            return self._answer(word.request, word.until)
        except Exception:  # noqa: BLE001 - the top of every frame that is passed on
            _log.exception("a frame failed unexpectedly", extra={"number": self.number})
            return b""

    async def _look(self) -> None:
        if not await comes_within(self._clock, _START_SECONDS, self.started.wait()):
            self._end("it has not begun to serve")
            return
        answered, silent = self.last, 0
        self.say(AskReader())
        # Not by the clock: where this process stood still, it has not listened either.
        while silent < _MOST_SILENT:
            await self._clock.pause(_LOOK_SECONDS)
            silent += 1
            if self.last is not answered:
                answered, silent = self.last, 0
                self.say(AskReader())
        self._end("it answers nothing")

    def _end(self, why: str) -> None:
        _log.error("a reader process hangs and is killed", extra={"number": self.number, "why": why})
        self.kill()

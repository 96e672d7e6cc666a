"""Between a client and Kafka: while it holds, no large answer comes through, and small ones do. So a client that reads
large records can't follow, and all else that it asks is answered: where a topic ends, what it commits.

While it loses, Kafka gets a client's records, and the client never hears so.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

LARGE_BYTES = 64 << 10
_HOST = "127.0.0.1"
_LENGTH_BYTES = 4
# Of a request: which one it is, its version, then the number that its answer begins with.
_KEY_BYTES, _NUMBER_AT, _NUMBER_BYTES = 2, 4, 4
_PRODUCE = (0).to_bytes(_KEY_BYTES, "big")
_DONE_SECONDS = 120


class HoldingRelay:
    """Whoever connects to `port` reaches `target`, both on loopback. Use as a context manager; thread-safe."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._loses = threading.Event()
        self.lost = threading.Event()
        """An answer was lost."""
        self._tasks = set[asyncio.Task[None]]()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holding-relay", daemon=True)

    def hold(self) -> None:
        """From now on. Idempotent, as `let_go`."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def let_go(self) -> None:
        """What was held comes through first."""
        self._loop.call_soon_threadsafe(self._open.set)

    def lose(self) -> None:
        """From now on records get through, and a connection ends in place of their acknowledgement. Idempotent."""
        self.lost.clear()
        self._loses.set()

    def lose_no_more(self) -> None:
        self._loses.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(asyncio.run_coroutine_threadsafe(self._listen(), self._loop))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(asyncio.run_coroutine_threadsafe(self._close(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @staticmethod
    def _wait(done: Future[None]) -> None:
        done.result(_DONE_SECONDS)

    async def _listen(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, _HOST, self.port)

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            # Where nobody listens the near end learns it by the broken connection.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                far_reader, far_writer = await asyncio.open_connection(_HOST, self.target)
                try:
                    asked = set[bytes]()
                    async with asyncio.TaskGroup() as ways:
                        ways.create_task(_requests(reader, far_writer, asked))
                        ways.create_task(self._answers(far_reader, writer, asked))
                except* (OSError, asyncio.IncompleteReadError):
                    pass
                finally:
                    far_writer.transport.abort()
        finally:
            writer.transport.abort()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: set[bytes]) -> None:
        while True:
            length, body = await _framed(reader)
            number = body[:_NUMBER_BYTES]
            if number in sent and self._loses.is_set():
                self.lost.set()
                raise ConnectionResetError
            sent.discard(number)
            if len(body) > LARGE_BYTES:
                await self._open.wait()
            writer.write(length + body)
            await writer.drain()


async def _requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: set[bytes]) -> None:
    """Remembers the numbers of those that send records. Ends as the client does: so the other way ends, too."""
    while True:
        length, body = await _framed(reader)
        if body[:_KEY_BYTES] == _PRODUCE:
            sent.add(body[_NUMBER_AT : _NUMBER_AT + _NUMBER_BYTES])
        writer.write(length + body)
        await writer.drain()


async def _framed(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next request or answer behind its length, as Kafka has them."""
    length = await reader.readexactly(_LENGTH_BYTES)
    return length, await reader.readexactly(int.from_bytes(length, "big"))

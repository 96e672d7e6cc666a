"""TCP connections that can be cut: a relay per port of a link, on an event loop in a thread of its own.

A cut link loses nothing that TCP would not lose: both ends stay connected and hear nothing, and what was on its way
arrives when the link is healed, if anyone still waits for it. That is what makes late messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
# What is done on the loop takes a moment, and on a busy machine that runs a whole cluster some more.
_DONE_SECONDS = 120
_Result = TypeVar("_Result")


class _Direction:
    """One way through a link."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay_seconds = 0.0
        self.breaks = False

    async def passed(self) -> None:
        if self.breaks:
            raise ConnectionResetError
        await self.open.wait()
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
            await self.open.wait()


class _Link:
    """Listening ports, whose connections are cut together. Used by the loop's thread alone."""

    def __init__(self) -> None:
        self.there = _Direction()
        self.back = _Direction()
        self.servers: list[asyncio.Server] = []
        self.connections: set[asyncio.Task[None]] = set()

    async def listen(self, port: int, host: str, target: int) -> None:
        """Connections to this port lead there."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(reader, writer, host, target)

        self.servers.append(await asyncio.start_server(accept, _HOST, port))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, target: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            await self.there.passed()
            far_reader, far_writer = await asyncio.open_connection(host, target)
            try:
                await asyncio.wait(
                    {
                        asyncio.create_task(_pump(reader, far_writer, self.there)),
                        asyncio.create_task(_pump(far_reader, writer, self.back)),
                    },
                    return_when=asyncio.ALL_COMPLETED,
                )
            finally:
                far_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # nobody listens there, or the link was reset: the near end learns it by the broken connection
        finally:
            writer.transport.abort()
            self.connections.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Direction) -> None:
    """One direction of one connection, until either end closes it."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            await way.passed()
            writer.write(data)
            await writer.drain()
        await way.passed()
    writer.close()


class Network:
    """All links of a cluster, by name. Thread-safe; `close` ends the thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: dict[str, _Link] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="keyhole-network", daemon=True)
        self._thread.start()

    @property
    def links(self) -> list[str]:
        return sorted(self._links)

    def link(self, name: str, port: int, target: int, host: str = _HOST) -> None:
        """From now on, whoever connects to `port` reaches `target`. Both on loopback.

        A link that there is has this port as well: what happens to the link, happens to all of its ports.

        Args:
            host: Whose the target is.
        """

        async def listen() -> None:
            await self._links.setdefault(name, _Link()).listen(port, host, target)

        self._run(listen())

    def cut(self, name: str, *, there: bool = True, back: bool = True) -> None:
        """Nothing passes any more, in one direction or in both; connections stay. Idempotent."""

        def cut(link: _Link) -> None:
            if there:
                link.there.open.clear()
            if back:
                link.back.open.clear()

        self._on(name, cut)

    def slow(self, name: str, seconds: float) -> None:
        """Each piece of data waits so long, in each direction."""

        def slow(link: _Link) -> None:
            link.there.delay_seconds = link.back.delay_seconds = seconds

        self._on(name, slow)

    def lose_answers(self, name: str) -> None:
        """What is asked gets through, and in place of its answer the connection breaks. Idempotent."""

        def lose(link: _Link) -> None:
            link.back.breaks = True

        self._on(name, lose)

    def reset(self, name: str) -> None:
        """Breaks the connections that there are; new ones may be made."""

        def reset(link: _Link) -> None:
            for task in link.connections:
                task.cancel()

        self._on(name, reset)

    def heal(self, name: str) -> None:
        """Lets the link's bytes through again, without delay, those that were held back first. Idempotent."""

        def heal(link: _Link) -> None:
            for way in (link.there, link.back):
                way.delay_seconds, way.breaks = 0.0, False
                way.open.set()

        self._on(name, heal)

    def close(self) -> None:
        """Breaks all connections, closes all links, and ends the thread."""

        async def close() -> None:
            tasks = [task for link in self._links.values() for task in link.connections]
            for server in (server for link in self._links.values() for server in link.servers):
                server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on(self, name: str, change: Callable[[_Link], None]) -> None:
        async def run() -> None:
            change(self._links[name])

        self._run(run())

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_DONE_SECONDS)

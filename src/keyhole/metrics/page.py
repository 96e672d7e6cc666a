"""The /metrics of a process. Loads the HTTP server; who has no such port imports this only once it has one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from keyhole.errors import PermissionDenied, Unauthenticated
from keyhole.metrics import exposition
from keyhole.metrics.serving import Read
from keyhole.rpc.http.port import HttpPort
from keyhole.security.guard import PortGuard
from keyhole.security.policy import Verb

Body = Callable[[], Awaitable[bytes]]
"""The text that Prometheus gets. On the event loop."""


class MetricsPage:
    """An HTTP port with /metrics, and /healthz for probes (the loop turns). Make and use it inside the event loop.

    Args:
        address: host:port to listen on; port 0: any free one.
        body: Makes the page.
        guard: TLS, and who may see it: those with the verb metrics, admin or platform. None: everybody.
        shared: As of an HttpPort.

    Raises:
        InvalidConfiguration: The address is not host:port, or plaintext was not chosen for it.
    """

    def __init__(self, address: str, body: Body, guard: PortGuard | None = None, *, shared: bool = False) -> None:
        self._body = body
        self._guard = guard
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        app.router.add_get("/healthz", _healthy)
        self._port = HttpPort("/metrics", address, app, guard=guard, shared=shared)

    @property
    def address(self) -> str:
        """Where the page is found, as host:port. Port 0 is the one that it got once `start` has returned."""
        return self._port.address

    async def start(self) -> None:
        """Binds and serves. Raises PortTaken."""
        await self._port.start()

    async def stop(self) -> None:
        """Closes the port, and what is connected to it. Idempotent."""
        await self._port.stop()

    async def _answer(self, request: web.Request) -> web.Response:
        if self._guard is not None:
            try:
                self._guard.caller_of(request).check_everywhere(Verb.METRICS, Verb.ADMIN, Verb.PLATFORM)
            except Unauthenticated:
                return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
            except PermissionDenied:
                return web.Response(status=403)
        body = await self._body()
        return web.Response(body=body, headers={"Content-Type": exposition.CONTENT_TYPE})


async def _healthy(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def own_page(address: str, read: Read, guard: PortGuard | None = None, *, shared: bool = False) -> MetricsPage:
    """The page of one deployable's own figures. They are written in a thread: there may be thousands."""

    async def body() -> bytes:
        families = (await read()).families
        return await asyncio.to_thread(exposition.text, families)

    return MetricsPage(address, body, guard, shared=shared)

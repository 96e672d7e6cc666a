"""One HTTP port, and what keeps slow or many callers from holding it: limits per connection, which aiohttp lacks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from keyhole.addresses import joined, parted, port_taken
from keyhole.security.guard import PortGuard

_log = logging.getLogger(__name__)


class _NoRefusedRequests(logging.Filter):
    """What is no request is refused without a line in the log, which anybody could fill."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


_requests = logging.getLogger(f"{__name__}.requests")
_requests.addFilter(_NoRefusedRequests())

_LOOK_SECONDS = 0.02
# How long what is left of a refused body is read, so that the refusal reaches who is still sending it.
_LINGERING_SECONDS = 1.0


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class HttpLimits:
    """What one caller may take.

    Attributes:
        line_bytes: Of the request line, which holds the key.
        header_bytes: Of each header; a token may have 8 KiB.
        headers: Of a request.
        body_bytes: Of a request's body.
        header_seconds: From the first byte of a request, or from connecting, until its headers are there; a handshake
            of TLS before has as much.
        body_seconds: From then on until its body is.
        answer_seconds: How long a caller may take to read an answer.
        idle_seconds: How long a connection may wait for its next request.
        connections: At the same time; those beyond are closed at once.
    """

    line_bytes: int = 16 << 10
    header_bytes: int = 9 << 10
    headers: int = 64
    body_bytes: int = 4 << 20
    header_seconds: float = 10.0
    body_seconds: float = 10.0
    answer_seconds: float = 30.0
    idle_seconds: float = 60.0
    connections: int = 4_096


class HttpPort:
    """Serves an application on one port. Make and use it inside the running event loop.

    Args:
        what: Is served, as in "cannot serve /metrics on ...".
        address: host:port to listen on; port 0: any free one.
        guard: TLS; None: plaintext.
        shared: Other processes of this deployable listen on the port, too, and share its connections.

    Raises:
        InvalidConfiguration: The address is not host:port, or plaintext was not chosen for it.
    """

    def __init__(
        self,
        what: str,
        address: str,
        app: web.Application,
        limits: HttpLimits | None = None,
        guard: PortGuard | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self._host, self._port = parted(address, f"the address of {what}")
        self._what = what
        self._limits = limits or HttpLimits()
        self._guard = guard
        self._shared = shared
        if guard is not None:
            guard.check_host(what, self._host)
        self._connections: dict[object, _HttpConnection] = {}
        self._server: asyncio.AbstractServer | None = None
        app.middlewares.insert(0, self._timed)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=self._limits.idle_seconds,
            lingering_time=_LINGERING_SECONDS,
            max_line_size=self._limits.line_bytes,
            max_field_size=self._limits.header_bytes,
            max_headers=self._limits.headers,
            logger=_requests,
        )

    @property
    def address(self) -> str:
        """Where the port is found, as host:port. Port 0 is the one that it got once `start` has returned."""
        return joined(self._host, self._port)

    async def start(self) -> None:
        """Binds and serves. Raises PortTaken."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        tls = self._guard.http_context() if self._guard is not None else None
        try:
            self._server = await loop.create_server(
                self._connection,
                self._host,
                self._port,
                ssl=tls,
                # None where there is no TLS, or it would be refused.
                ssl_handshake_timeout=self._limits.header_seconds if tls is not None else None,
                reuse_address=True,
                reuse_port=self._shared,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise port_taken(self._what, self.address) from error
        self._port = self._server.sockets[0].getsockname()[1]
        _log.info("serves HTTP", extra={"what": self._what, "address": self.address})

    async def drain(self, seconds: float) -> None:
        """Takes no more connections; requests under way may end within the time. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        for connection in list(self._connections.values()):
            connection.close_idle()
        while any(of.busy for of in self._connections.values()) and loop.time() < until:  # noqa: ASYNC110 - rare
            await asyncio.sleep(_LOOK_SECONDS)

    async def stop(self) -> None:
        """Cuts off all connections and gives the port back. Idempotent."""
        await self.drain(0)
        for connection in list(self._connections.values()):
            connection.abort()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        inner = self._runner.server()
        return _HttpConnection(inner, self._limits, self._connections)

    @web.middleware
    async def _timed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The answer is sent here, so that who does not read it is not waited for for ever."""
        connection = self._connections.get(request.protocol)
        if connection is not None:
            connection.begin()
        try:
            response = await handler(request)
            try:
                async with asyncio.timeout(self._limits.answer_seconds):
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
            return response
        finally:
            if connection is not None:
                connection.end()


class _HttpConnection(asyncio.Protocol):
    """Hands everything on to aiohttp's protocol, and closes what takes too long to send the headers of a request."""

    def __init__(self, inner: asyncio.Protocol, limits: HttpLimits, connections: dict[object, _HttpConnection]) -> None:
        self.busy = False
        self._inner = inner
        self._limits = limits
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None
        self._refused = False
        self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transport is a subclass of asyncio's; it does the same.
        self._transport = cast("asyncio.Transport", transport)
        if len(self._connections) >= self._limits.connections:
            self._refused = True
            self._transport.abort()
            return
        self._connections[self._inner] = self
        self._inner.connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if self._refused or self._deaf:
            return
        if not self.busy and self._late is None:
            self._wait_for_headers()
        self._inner.data_received(data)
        self._look_for_error()

    def _look_for_error(self) -> None:
        """What comes after something that is no request is none either. But aiohttp would make an error of each piece
        of it, with four times its text in it, and keep them all: 2 GB after a thousand connections (measured). And the
        error knows the frames that know the error, which only the collector would find.
        """
        waiting = self._inner._messages  # type: ignore[attr-defined]  # aiohttp's, not public
        error = getattr(waiting[-1][0], "exc", None) if waiting else None
        if isinstance(error, HttpProcessingError):
            error.__traceback__ = None
            self._deaf = True

    def eof_received(self) -> bool | None:
        return None if self._refused else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if not self._refused:
            self._connections.pop(self._inner, None)
            self._inner.connection_lost(exc)

    def begin(self) -> None:
        """The headers of a request are there."""
        self.busy = True
        self._stop_waiting()

    def end(self) -> None:
        """Its answer has been sent."""
        self.busy = False

    def close_idle(self) -> None:
        """Ends it, unless a request is under way."""
        if not self.busy:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wait_for_headers(self) -> None:
        self._late = asyncio.get_running_loop().call_later(self._limits.header_seconds, self.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

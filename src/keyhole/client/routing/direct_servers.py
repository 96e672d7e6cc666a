"""The state servers as one client knows them: the routes that a proxy tells it, and connections of its own.

A server is asked once a connection to it stands, and no read waits for that. Where its port is closed to this client,
or it was lost, reads go through the proxy, and it is tried in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from keyhole.backoff import Backoff
from keyhole.client.routing.hedging import Hedging
from keyhole.client.wire.links import Links
from keyhole.client.wire.lookup_stream import LookupStream
from keyhole.client.wire.server_stream import ServerStream
from keyhole.errors import KeyholeError, NoServer, UnknownApplication, UnknownState
from keyhole.protocol.routing import RouteTable, build
from keyhole.protocol.server_view import ServerView, StateName
from keyhole.rpc import channels
from keyhole.rpc.server_views import views_of
from keyhole.security.credentials import Credentials
from keyhole.v1 import query_pb2

_log = logging.getLogger(__name__)

# Between two attempts to reach a server, and to follow the routes.
_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.1, 30.0
# Each has a stream to a proxy, which allows 1,000 on a connection.
_MOST_STATES = 256
# For a server to say that it lives: it is on the way of nobody's read.
_PATIENCE_SECONDS = 5.0
_HEALTH = "/grpc.health.v1.Health/Check"


class DirectServer:
    """One state server. Used from the event loop's thread only.

    Attributes:
        stream: Of its lookups.
        reached: Whether it may be asked: it has answered since it was lost, or silent.

    Raises:
        InvalidConfiguration: The credentials must not be shown to it.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = address
        self._lookup_port: tuple[int, str] = (0, "")
        shown = channels.prepared(address, credentials)
        self._channel = channels.prepared_aio_channel(address, shown, alone=False)
        # The health service, by its bytes: the client brings no package for it.
        self._check: Any = self._channel.unary_unary(_HEALTH, request_serializer=None, response_deserializer=None)
        by_grpc = LookupStream(self._channel, address, broken=lambda _: self.avoid())
        self.stream = ServerStream(by_grpc, address, shown)
        self.reached = False
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS)
        self._closed = False
        self._reaching = asyncio.get_running_loop().create_task(self._reach(0.0))

    def announced(self, lookup_port: int, incarnation: str) -> None:
        """The proxy says where the lookup port of a server's process is; 0: it has none. It is tried once the server
        has let this client in by gRPC.
        """
        self._lookup_port = lookup_port, incarnation
        if self.reached:
            self.stream.announced(lookup_port, incarnation)

    def avoid(self) -> None:
        """It was lost, or is silent: it is asked again some time after it lives."""
        self.reached = False
        if not self._closed and self._reaching.done():
            self._reaching = asyncio.get_running_loop().create_task(self._reach(self._backoff.next()))

    async def close(self, error: KeyholeError) -> None:
        """Lookups under way fail with the error. Idempotent."""
        self._closed, self.reached = True, False
        self._reaching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reaching
        await self.stream.close(error)
        await self._channel.close()

    async def _reach(self, pause_seconds: float) -> None:
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                await self._check(b"", timeout=_PATIENCE_SECONDS)
            except grpc.RpcError:
                pause_seconds = self._backoff.next()
                continue
            self.reached = True
            self.stream.announced(*self._lookup_port)
            _log.debug("a server is asked directly", extra={"address": self.address})
            return

    def answered(self) -> None:
        """It has answered a lookup: the next trouble begins with the shortest pause."""
        self._backoff.reset()


class DirectServers:
    """Those of one client: what keyhole.client.routing asks for. Used from the event loop's thread only.

    Args:
        links: To whom the routes are asked of.
        credentials: What the servers are shown: the same as the proxies.
    """

    def __init__(self, links: Links, credentials: Credentials) -> None:
        self.hop_seconds = 1.0
        self.hedging: Hedging | None = None
        self.settled = asyncio.Event()
        self.settled.set()
        self._links = links
        self._credentials = credentials
        self._tables: dict[StateName, RouteTable] = {}
        self._views: dict[StateName, Sequence[ServerView]] = {}
        self._servers: dict[str, DirectServer | None] = {}
        self._following: dict[StateName, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def tables(self) -> Mapping[StateName, RouteTable]:
        """The routes of the states that are followed, as a proxy has sent them last."""
        return self._tables

    def table(self, name: StateName) -> RouteTable:
        """The routes of one state. Raises NoServer: no proxy has sent them so far."""
        table = self._tables.get(name)
        if table is None:
            raise NoServer(f"the routes of state {'/'.join(name)} are not known in this client")
        return table

    def link(self, address: str) -> DirectServer | None:
        """The server at this address; None: it can't be asked now."""
        server = self._servers.get(address)
        return server if server is not None and server.reached else None

    def suspect(self, address: str) -> None:
        """It was silent for the hop deadline: it is asked again once it has shown that it lives."""
        server = self._servers.get(address)
        if server is not None:
            server.avoid()

    def follow(self, name: StateName) -> None:
        """Has the routes of a state sent from now on, if that aren't too many states; returns at once."""
        if name not in self._following and len(self._following) < _MOST_STATES:
            self._following[name] = asyncio.get_running_loop().create_task(self._follow(name))

    async def close(self, error: KeyholeError) -> None:
        """Closes all connections; lookups under way fail with the error. Called once."""
        for task in self._following.values():
            task.cancel()
        await asyncio.gather(*self._following.values(), return_exceptions=True)
        await asyncio.gather(*(server.close(error) for server in self._servers.values() if server is not None))
        await asyncio.gather(*self._closing)

    async def _follow(self, name: StateName) -> None:
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS)
        request = query_pb2.WatchRoutesRequest(state=query_pb2.StateRef(application=name[0], state=name[1]))
        while True:
            link, refused = self._links.next(), False
            if link is not None:
                call = link.stub.WatchRoutes(request)
                try:
                    async for routes in call:
                        link.heard()
                        self._take(name, routes)
                        backoff.reset()
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # The channel of that link was closed: a name has that address no more.
                except grpc.RpcError as error:
                    why = link.failed(error)
                    # The last routes stay where it may pass: servers themselves refuse what is no longer theirs.
                    if refused := not why.retryable:
                        # Of an earlier version, or this caller may not: that is no matter of moments.
                        self._drop(name)
                    if isinstance(why, (UnknownApplication, UnknownState)):
                        # It is followed again once somebody reads it.
                        del self._following[name]
                        return
                    _log.debug("no routes are sent", extra={"address": link.target, "reason": why.message})
                except Exception:  # noqa: BLE001 - the top of a loop: reads go through the proxy meanwhile
                    _log.exception("routes could not be taken in", extra={"address": link.target})
                finally:
                    call.cancel()
            await asyncio.sleep(_MOST_PAUSE_SECONDS if refused else backoff.next())

    def _take(self, name: StateName, routes: query_pb2.Routes) -> None:
        views = views_of(routes)
        self.hop_seconds = routes.hop_timeout_ms / 1000 or self.hop_seconds
        if routes.hedge_quantile != (self.hedging.quantile if self.hedging is not None else 0.0):
            self.hedging = Hedging.at(routes.hedge_quantile)
        self._views.pop(name, None)
        self._views[name] = views  # what was sent last is last
        table = build(views).get(name)
        if table is not None:
            self._tables[name] = table
        else:
            self._tables.pop(name, None)
        self._connect()

    def _drop(self, name: StateName) -> None:
        self._tables.pop(name, None)
        self._views.pop(name, None)
        self._connect()

    def _connect(self) -> None:
        named: dict[str, ServerView] = {}
        for view in (view for of in self._views.values() for view in of):
            named[view.address] = _newer(named.get(view.address), view)
        for address in self._servers.keys() - named.keys():
            gone = self._servers.pop(address)
            if self.hedging is not None:
                self.hedging.forget(address)
            if gone is not None:
                error = NoServer(f"server {address} is no longer among those that the proxy names")
                closing = asyncio.get_running_loop().create_task(gone.close(error))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        for address, view in named.items():
            server = self._servers.get(address)
            try:
                server = self._servers[address] = server or DirectServer(address, self._credentials)
                if not view.lost:  # else somebody else may have the number by now
                    server.announced(view.lookup_port, view.incarnation)
            except KeyholeError as error:
                # Of the credentials: a token is not sent in the clear; a file is just being replaced. Tried again with
                # the next routes.
                if address not in self._servers:
                    _log.warning("a server is not asked directly", extra={"address": address, "reason": error.message})
                self._servers[address] = None


def _newer(before: ServerView | None, then: ServerView) -> ServerView:
    """Which of two views of one server says where its lookup port is; `then` was sent later."""
    if before is None or bool(before.lost) is not bool(then.lost):
        return then if before is None or before.lost else before
    # Of what proxies of two versions say of one process, that of the newer one counts.
    is_older_version = before.incarnation == then.incarnation and not then.lookup_port
    return before if is_older_version else then

"""Tells clients which servers have copies of a state: the routes as they are, and after each change of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from keyhole.errors import Overloaded
from keyhole.protocol.server_view import StateName
from keyhole.rpc.server_views import routed
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.directory import Directory


class RouteWatches:
    """Those of one proxy. Event loop's thread only.

    Args:
        most: Beyond so many at the same time, of all callers together, new ones are refused as overloaded. One caller
            can take them all: the others then read through the proxy.
    """

    def __init__(self, directory: Directory, most: int = 20_000) -> None:
        self._directory = directory
        self._most = most
        self._count = 0
        self._draining = asyncio.Event()
        # Made once for all who watch a state. What a change leaves equal stays the same object.
        self._change: asyncio.Event | None = None
        self._made: dict[StateName, pb.Routes] = {}
        self._before: dict[StateName, pb.Routes] = {}

    def drain(self) -> None:
        """Ends those that there are, and refuses none: the end of the call says to who asks again that it is to go."""
        self._draining.set()

    async def responses(self, name: StateName, deadline: float) -> AsyncGenerator[pb.Routes]:
        """The routes, at once and after each change, until `drain`. Whoever reads slowly is sent the last ones.

        Args:
            deadline: For the state to become known, on the event loop's clock.

        Raises:
            UnknownApplication, UnknownState, NoServer: As Directory.table, also once the state is no more.
            Overloaded: Too many watch already.
        """
        if self._count >= self._most:
            raise Overloaded(
                f"{self._count:,} clients follow routes in this proxy, and no more may; they read through it"
            )
        self._count += 1
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await self._directory.known(name, deadline)
            sent: pb.Routes | None = None
            while not self._draining.is_set():
                change = self._directory.next_change()
                self._directory.table(name)
                routes = self._routes(name, change)
                if routes is not sent:
                    sent = routes
                    yield routes
                changed = asyncio.ensure_future(change.wait())
                try:
                    await asyncio.wait([changed, draining], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            draining.cancel()
            self._count -= 1

    def _routes(self, name: StateName, change: asyncio.Event) -> pb.Routes:
        if self._change is not change:
            self._change, self._before, self._made = change, self._made, {}
        if name not in self._made:
            servers = [
                routed(link.view, link.holdings, name) for link in self._directory.links if link.view is not None
            ]
            routes = pb.Routes(
                servers=[server for server in servers if server.holdings],
                hop_timeout_ms=max(1, int(1000 * self._directory.hop_seconds)),
                hedge_quantile=self._directory.hedging.quantile if self._directory.hedging is not None else 0.0,
            )
            before = self._before.get(name)
            self._made[name] = before if before == routes else routes
        return self._made[name]

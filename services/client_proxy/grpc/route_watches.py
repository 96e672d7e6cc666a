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
        most: Beyond so many at the same time, new ones are refused as overloaded.
    """

    def __init__(self, directory: Directory, most: int = 20_000) -> None:
        self._directory = directory
        self._most = most
        self._count = 0
        self._draining = asyncio.Event()
        # Made once for all who watch a state, for as long as nothing changes.
        self._made: tuple[asyncio.Event | None, dict[StateName, pb.Routes]] = (None, {})

    def drain(self) -> None:
        """Ends those that there are, and refuses none: who asks again is told to go by the end of the call."""
        self._draining.set()

    async def responses(self, name: StateName, deadline: float) -> AsyncGenerator[pb.Routes]:
        """The routes, at once and after each change, until `drain`. Whoever reads slowly is told the last ones.

        Args:
            deadline: For the state to become known, on the event loop's clock.

        Raises:
            UnknownApplication, UnknownState, NoServer: As Directory.table; only at first.
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
            self._directory.table(name)
            told: pb.Routes | None = None
            while not self._draining.is_set():
                change = self._directory.next_change()
                routes = self._routes(name, change)
                if routes != told:
                    told = routes
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
        if self._made[0] is not change:
            self._made = change, {}
        made = self._made[1]
        if name not in made:
            servers = [
                routed(link.view, link.holdings, name) for link in self._directory.links if link.view is not None
            ]
            made[name] = pb.Routes(
                servers=[server for server in servers if server.holdings],
                hop_timeout_ms=max(1, int(1000 * self._directory.hop_seconds)),
            )
        return made[name]

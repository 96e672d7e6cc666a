"""Puts a client proxy together. `serve` runs it until it is to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from typing import TYPE_CHECKING

from keyhole.addresses import joined
from keyhole.client.routing.hedging import Hedging
from keyhole.clock import Clock, SystemClock
from keyhole.config import ClientProxyConfig
from keyhole.discovery import Discovery, discovery_of
from keyhole.errors import InvalidConfiguration
from keyhole.metrics.serving import SERVICE, StatsServicer
from keyhole.rpc.read_admission import ReadAdmission, ReadLimits
from keyhole.rpc.scan_caps import ScanCaps
from keyhole.rpc.server import RpcServer
from keyhole.v1 import query_pb2_grpc, stats_pb2, stats_pb2_grpc
from services.client_proxy.directory import Directory
from services.client_proxy.grpc.query_servicer import ProxyServicer
from services.client_proxy.metrics import ProxyStats, put_together
from services.client_proxy.siblings import Alone, ProcessFacts, Siblings

if TYPE_CHECKING:
    from keyhole.metrics.page import MetricsPage
    from keyhole.rpc.http.port import HttpPort
    from services.client_proxy.console.console_routes import ConsoleRoutes
    from services.client_proxy.http.http_reads import HttpReads

_QUERY = "keyhole.v1.Query"


class ClientProxy:
    """One client proxy, or one of its processes. Make it inside the running event loop.

    Args:
        siblings: The processes that the proxy has; None: this one alone.

    Raises:
        InvalidConfiguration: Addresses, origins or names that can't be, or settings that contradict each other.
    """

    def __init__(
        self, config: ClientProxyConfig, discovery: Discovery, clock: Clock, siblings: Siblings | None = None
    ) -> None:
        self._config = config
        self._siblings = siblings or Alone()
        self._siblings.told_by(self._tell)
        self._is_one_of_several = self._siblings.count > 1
        where = f"this process (one of the proxy's {self._siblings.count})" if self._is_one_of_several else "this proxy"
        self._directory = Directory(
            discovery,
            config.hop_timeout_seconds,
            clock,
            config.credentials,
            frozenset(config.applications),
            Hedging.at(config.hedge_quantile),
        )
        self._servicer = ProxyServicer(
            self._directory,
            config.default_timeout_seconds,
            max_scans=config.max_scans,
            caps=ScanCaps.of(config),
            admission=ReadAdmission(ReadLimits.of(config), clock, where),
        )
        self._rpc = RpcServer("client-proxy", config.host, config.port, config, shared_port=self._is_one_of_several)
        self._rpc.counted_by(self._servicer.counts.refusals.note)
        self._stats = ProxyStats(self._directory, self._servicer, self._process_name)
        self._page: MetricsPage | None = None
        self._reads: HttpReads | None = None
        self._http: HttpPort | None = None
        self._console: ConsoleRoutes | None = None
        if config.http:
            self._read_by_http(config.http)
        elif config.http_origins or config.http_hosts:
            which = "ORIGINS" if config.http_origins else "HOSTS"
            raise InvalidConfiguration(
                f"KEYHOLE_CLIENT_PROXY_HTTP_{which} is set and KEYHOLE_CLIENT_PROXY_HTTP isn't: there are no reads "
                "over HTTP; set both, or neither"
            )
        self._health: asyncio.Task[None] | None = None
        self._http_drain: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where clients find the proxy, as host:port; known after `start`."""
        return self._rpc.address

    @property
    def http_address(self) -> str:
        """host:port of the HTTP reads, known after `start`; empty: there are none."""
        return self._http.address if self._http is not None else ""

    async def start(self) -> None:
        """Binds and serves; healthy once any state server was reached.

        Raises:
            PortTaken: See RpcServer.start.
        """
        self._rpc.add(query_pb2_grpc.add_QueryServicer_to_server, self._servicer, _QUERY)
        self._rpc.add(stats_pb2_grpc.add_StatsServicer_to_server, StatsServicer(self._figures), SERVICE)
        if self._config.metrics:
            # Not at the top: see `_read_by_http`. And before anybody can call: the loop stands still meanwhile.
            from keyhole.metrics.page import own_page

            self._page = own_page(self._config.metrics, self._figures, self._rpc.guard, shared=self._is_one_of_several)
        await self._rpc.start()
        if self._page is not None:
            await self._page.start()
        if self._http is not None:
            await self._http.start()
        self._directory.start()
        self._health = asyncio.get_running_loop().create_task(self._serve_once_reached())

    async def run_until(self, stopping: asyncio.Event) -> None:
        """Serves until it is to stop, then drains.

        Raises:
            InvalidConfiguration: The discovery is refused its answer, as it was from the start.
        """
        serving = asyncio.ensure_future(self._serve_until(stopping))
        try:
            await asyncio.wait((serving, self._directory.following), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await self._directory.following
            await serving
        finally:
            serving.cancel()
            await self.stop(0)

    async def stop(self, grace_seconds: float) -> None:
        """Lets what is under way end, by gRPC and by HTTP within one time, then closes everything. Idempotent."""
        await self._begin_drain(grace_seconds)
        await self._rpc.stop(grace_seconds)
        if self._http is not None and self._http_drain is not None:
            if grace_seconds > 0:
                await self._http_drain
            self._http_drain.cancel()
            await self._http.stop()
        if self._console is not None:
            await self._console.close()
        if self._page is not None:
            await self._page.stop()
        await self._directory.close()

    async def _serve_until(self, stopping: asyncio.Event) -> None:
        seconds = self._config.drain_seconds
        await self._rpc.run_until(stopping, seconds, functools.partial(self._begin_drain, seconds))
        if self._http_drain is not None:
            await self._http_drain

    async def _begin_drain(self, seconds: float) -> None:
        """Ends streams, and has HTTP drain beside what the caller drains: a pod's end waits for the time once."""
        if self._health is not None:
            self._health.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._health
        self._servicer.drain()
        if self._reads is not None:
            self._reads.draining = True
        if self._http is not None and self._http_drain is None:
            self._http_drain = asyncio.ensure_future(self._http.drain(seconds))

    def _read_by_http(self, address: str) -> None:
        # Not at the top: the HTTP server takes a third of the time in which a proxy without it starts.
        from keyhole.rpc.http.port import HttpPort
        from services.client_proxy.console.console_routes import ConsoleRoutes
        from services.client_proxy.console.sql_queries import SqlQueries
        from services.client_proxy.http.cors import checked_origins
        from services.client_proxy.http.host_names import checked_hosts
        from services.client_proxy.http.http_reads import HttpReads

        timeout, guard = self._config.default_timeout_seconds, self._rpc.guard
        origins, hosts = checked_origins(self._config.http_origins), checked_hosts(self._config.http_hosts)
        self._reads = HttpReads(self._directory, self._servicer, timeout, guard=guard, origins=origins, hosts=hosts)
        if self._config.console == "on":
            open_to_all = guard is None or (guard.material is None and not guard.asks_who)
            sql = SqlQueries(lambda: self._rpc.address, self._siblings.sql_turn, open_to_all=open_to_all)
            self._console = ConsoleRoutes(
                self._directory, self._siblings, self._reads.caller_of, lambda: self._rpc.port, sql
            )
            self._console.add_to(self._reads.app)
        self._http = HttpPort("the HTTP reads", address, self._reads.app, guard=guard, shared=self._is_one_of_several)

    def _name(self) -> str:
        return joined(socket.gethostname(), self._rpc.port)

    def _process_name(self) -> str:
        """Its figures have names of their own: one that is started again begins at 0, and the others go on."""
        return f"{self._name()}/{self._siblings.number}" if self._is_one_of_several else self._name()

    async def _figures(self) -> stats_pb2.ReadStatsResponse:
        if not self._is_one_of_several:
            return await self._stats.read()
        return put_together(self._name(), [facts.figures for facts in await self._siblings.facts()])

    async def _tell(self) -> ProcessFacts:
        figures = (await self._stats.read()).SerializeToString() if self._is_one_of_several else b""
        counts = self._servicer.counts
        turned_away = {**counts.refusals.by_refusal, **self._servicer.admission.refused}
        return ProcessFacts(figures, counts.by_state(), tuple(self._directory.events), turned_away)

    async def _serve_once_reached(self) -> None:
        await self._directory.reached.wait()
        await self._rpc.set_serving(True)


async def serve(config: ClientProxyConfig, stopping: asyncio.Event) -> None:
    """Runs a proxy over the servers that `config.servers` finds, until it is to stop.

    Raises:
        PortTaken, InvalidConfiguration: See ClientProxy.
    """
    discovery = discovery_of(config.servers)
    try:
        proxy = ClientProxy(config, discovery, SystemClock())
        await proxy.start()
        await proxy.run_until(stopping)
    finally:
        discovery.close()

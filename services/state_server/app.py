"""Puts a state server together: stores, changelog, servicers, health. `serve` runs it until it is to stop."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.changelog.base import Changelog
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.clients import await_kafka
from keyhole.clock import Clock, SystemClock
from keyhole.config import StateServerConfig
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.metrics.serving import SERVICE, StatsServicer
from keyhole.protocol.failpoints import NoObserver, StepObserver
from keyhole.rpc.lookup_port import LookupPort
from keyhole.rpc.read_admission import ReadAdmission, ReadLimits
from keyhole.rpc.scan_caps import ScanCaps
from keyhole.rpc.server import RpcServer
from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.choices import chosen_engine
from keyhole.stores.rules import MAX_KEY_BYTES
from keyhole.v1 import query_pb2_grpc, state_server_pb2_grpc, stats_pb2_grpc
from services.state_server.host_settings import HostSettings
from services.state_server.metrics import ServerStats
from services.state_server.read.scans import ScanLimits
from services.state_server.read.table import Table
from services.state_server.readers.group import ReaderGroup
from services.state_server.readers.passed_on import PassedOnFrames
from services.state_server.readers.reader_settings import reader_count, share_of
from services.state_server.registry import Registry
from services.state_server.replica.member import ReplicaMember, Share
from services.state_server.replica.take_over import StateShare
from services.state_server.servicers.query import QueryServicer
from services.state_server.servicers.state_server import StateServerServicer
from services.state_server.write.fed_room import FedRoom
from services.state_server.write.spill import StagingRoom

if TYPE_CHECKING:
    from keyhole.metrics.page import MetricsPage

_log = logging.getLogger(__name__)

_KAFKA_DEADLINE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_IDLE_LOOK_SECONDS = 1.0
# For calls under way.
_STOP_SECONDS = 5.0

OWNER, REPLICA = "owner", "replica"


class StateServer:
    """One state server. Make it inside the running event loop.

    Args:
        changelog: Makes the changelog of an application.
    """

    def __init__(
        self,
        config: StateServerConfig,
        engine: StoreEngine,
        changelog: Callable[[str], Changelog],
        clock: Clock,
        observer: StepObserver,
    ) -> None:
        self._config = config
        self._engine = engine
        self._changelog = changelog
        self._clock = clock
        self._observer = observer
        self._rpc = RpcServer("state-server", config.host, config.port, config)
        self._registry: Registry | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._members: dict[str, ReplicaMember] = {}
        self._idle_look: asyncio.Task[None] | None = None
        self._page: MetricsPage | None = None
        self._lookups: LookupPort | None = None
        self._readers: ReaderGroup | None = None

    @property
    def address(self) -> str:
        """host:port that others reach it by; known after `start`."""
        return self._config.advertise or self._rpc.address

    async def start(self) -> None:
        """Binds and serves.

        Raises:
            PortTaken: See RpcServer.start.
            InvalidConfiguration: It can't have as many readers.
        """
        processes = reader_count(self._config)
        incarnation = uuid.uuid4().hex
        # The port may be known only once it is bound, so the registry learns the address from the first caller on.
        registry = Registry(
            self._config.id,
            incarnation,
            lambda: self.address,
            self._clock.now_ms(),
            MAX_KEY_BYTES,
            replica=self._config.role == REPLICA,
        )
        if processes > 1:
            self._readers = ReaderGroup(self._config, processes, incarnation, registry, self._clock)
        settings = HostSettings(
            server=self._config.id,
            incarnation=incarnation,
            engine=self._engine,
            clock=self._clock,
            observer=self._observer,
            lease_seconds=self._config.lease_seconds,
            room=StagingRoom(self._config.max_staged_bytes, self._config.max_spilled_bytes, self._config.directory),
            kafka_deadline_seconds=_KAFKA_DEADLINE_SECONDS,
            restore_deadline_seconds=self._config.max_restore_seconds_without_progress,
            changed=registry.changed,
            fed_room=FedRoom(self._config.max_uncommitted_bytes),
            counts=registry.counts,
            shown=_to_nobody if self._readers is None else self._readers.tables.changed,
        )
        control = StateServerServicer(registry, self._changelog, settings)
        scans, caps = ScanLimits(most=self._config.max_scans), ScanCaps.of(self._config)
        limits = ReadLimits.of(share_of(self._config, processes))
        admission = ReadAdmission(limits, self._clock, "this server")
        queries = QueryServicer(registry, self._clock, self._changelog, scans, caps, admission)
        stats = ServerStats(
            registry, queries, settings.room, self._clock, self._config.directory, self._config.store_limit_bytes
        )
        self._rpc.add(query_pb2_grpc.add_QueryServicer_to_server, queries, "keyhole.v1.Query")
        self._rpc.add(stats_pb2_grpc.add_StatsServicer_to_server, StatsServicer(stats.read, stats.epochs), SERVICE)
        self._rpc.add(state_server_pb2_grpc.add_StateServerServicer_to_server, control, "keyhole.v1.StateServer")
        registry.on_change(self._update_health)
        self._rpc.counted_by(registry.counts.refusals.note)
        self._registry = registry
        if self._config.metrics:
            # Not at the top: the HTTP server takes a third of the time in which a state server without it starts. And
            # before anybody can call: the loop stands still meanwhile.
            from keyhole.metrics.page import own_page

            self._page = own_page(self._config.metrics, stats.read, self._rpc.guard)
        if self._config.lookups:
            # Before anybody can follow what this server has: it is announced with that.
            self._lookups = LookupPort(
                self._config.lookups,
                queries.frame,
                queries.admission,
                self._clock,
                self._rpc.guard,
                incarnation=incarnation,
                hand_over=None if self._readers is None else self._readers.take,
            )
            await self._lookups.start()
            registry.lookup_port = self._lookups.port
        try:
            await self._rpc.start()
        except BaseException:
            if self._lookups is not None:
                await self._lookups.stop()
            raise
        if self._page is not None:
            await self._page.start()
        if self._readers is not None and (port := self._lookups) is not None:
            passed_on = PassedOnFrames(queries, self._clock)
            self._readers.start(passed_on.answer, admission, lambda: port.open_connections)
        if registry.replica:
            self._replicate(registry, settings)
            registry.on_retire(self._leave)
        else:
            self._idle_look = asyncio.ensure_future(self._forget_idle(registry))

    def _replicate(self, registry: Registry, settings: HostSettings) -> None:
        for application in self._config.applications:
            member = ReplicaMember(
                application,
                self._config.replica_group,
                self._changelog(application),
                self._clock,
                self._config.linger_seconds,
                tell=functools.partial(self._follow, registry, settings, application),
            )
            member.start()
            self._members[application] = member

    def _leave(self, application: str, query: str) -> None:
        if application in self._members:
            self._members[application].leave(query)

    async def _forget_idle(self, registry: Registry) -> None:
        while True:
            await self._clock.pause(_IDLE_LOOK_SECONDS)  # a lease passes silently
            registry.forget_idle()

    def _follow(self, registry: Registry, settings: HostSettings, application: str, share: Share) -> None:
        member = self._members[application]
        # It may have left a query since it said this.
        for query in {descriptor.query for descriptor in share if not member.has_left(descriptor.query)}:
            host = registry.host_of(application, query, self._changelog, settings)
            states = [
                StateShare(descriptor, frozenset(), groups)
                for descriptor, groups in share.items()
                if descriptor.query == query
            ]
            self._keep(asyncio.ensure_future(host.follow(states)))

    def _update_health(self) -> None:
        assert self._registry is not None
        self._keep(asyncio.ensure_future(self._rpc.set_serving(self._registry.ready)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """The loop itself keeps only a weak reference."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the server failed", exc_info=error)

    async def run_until(self, stopping: asyncio.Event) -> None:
        """Serves until it is to stop, then drains and closes."""
        await self._rpc.run_until(stopping, _STOP_SECONDS, self._drain)
        await self.close()

    async def _drain(self) -> None:
        """Goes on owning and answering until others have taken its key groups over, if there is anyone to see to it."""
        assert self._registry is not None
        self._registry.end()
        until = self._clock.monotonic() + self._config.drain_seconds
        while self._registry.owning and self._clock.monotonic() < until:  # a lease passes silently
            await self._clock.pause(_LOOK_SECONDS)
        self._end_streams()

    def _end_streams(self) -> None:
        """Those of the proxies that watch, which would not end by themselves."""
        assert self._registry is not None
        self._registry.closing = True
        if self._lookups is not None:
            self._lookups.drain()
        if self._readers is not None:
            self._readers.drain()
        self._registry.end()

    async def stop(self) -> None:
        """Closes without waiting for others to take over, for those that run it inside their own loop."""
        self._end_streams()
        await self._rpc.stop(_STOP_SECONDS)
        await self.close()

    async def close(self) -> None:
        """Leaves what it follows, and closes its stores and its page. To be called once, after the port was closed."""
        assert self._registry is not None
        if self._lookups is not None:
            await self._lookups.stop()
        if self._readers is not None:
            await self._readers.stop()  # before the stores are closed that they read
        if self._page is not None:
            await self._page.stop()
        if self._idle_look is not None:
            self._idle_look.cancel()
        for member in self._members.values():
            await member.close()
        await self._registry.close()
        self._engine.close()


def _to_nobody(table: Table) -> None:
    """What the server shows, it shows alone."""


def build(config: StateServerConfig, observer: StepObserver | None = None, clock: Clock | None = None) -> StateServer:
    """A state server on real Kafka and the configured store.

    Raises:
        InvalidConfiguration: An unknown store or role, a replica of no application, a wrong file of stores, or readers
            that can't be.
        StoreFormat, StoreLocked: See StoreEngine.
    """
    if config.role not in (OWNER, REPLICA):
        raise InvalidConfiguration(f"unknown role {config.role!r}; the roles are {OWNER} and {REPLICA}")
    if config.role == REPLICA and not config.applications:
        raise InvalidConfiguration(
            "a replica follows applications: name them in KEYHOLE_STATE_SERVER_APPLICATIONS (or with --applications)"
        )
    if config.role == OWNER and config.applications:
        raise InvalidConfiguration(
            "only a replica is told which applications to follow; an owner gets key groups from the jobs that name it. "
            "Set KEYHOLE_STATE_SERVER_ROLE=replica, or leave KEYHOLE_STATE_SERVER_APPLICATIONS out"
        )
    reader_count(config)  # before anything is opened
    limits = StoreLimits(config.directory, config.store_limit_bytes)
    engine = chosen_engine(config.store, limits, Path(config.stores) if config.stores else None)
    return StateServer(
        config,
        engine,
        lambda application: KafkaChangelog(config.bootstrap_servers, application),
        clock or SystemClock(),
        observer or NoObserver(),
    )


async def serve(
    config: StateServerConfig,
    stopping: asyncio.Event,
    observer: StepObserver | None = None,
    clock: Clock | None = None,
) -> None:
    """Runs a state server until it is to stop.

    Raises:
        KafkaUnreachable, InvalidConfiguration: No Kafka is found at its start; later on it may go away.
    """
    server = build(config, observer, clock)
    await server.start()
    ended = threading.Event()
    running = asyncio.ensure_future(server.run_until(stopping))
    running.add_done_callback(lambda _: ended.set())
    found = asyncio.to_thread(await_kafka, config.bootstrap_servers, config.kafka_wait_seconds, ended)
    try:
        await asyncio.gather(found, running)
    except KeyholeError:
        running.cancel()
        await server.stop()
        raise

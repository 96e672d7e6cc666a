"""Puts a state server together: stores, changelog, servicers, health. `serve` runs it until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

from keyhole.changelog.base import Changelog
from keyhole.changelog.kafka import KafkaChangelog
from keyhole.clock import Clock, SystemClock
from keyhole.config import StateServerConfig
from keyhole.errors import InvalidConfiguration
from keyhole.rpc.server import RpcServer
from keyhole.steps import NoObserver, StepObserver
from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rules import MAX_KEY_BYTES
from keyhole.v1 import query_pb2_grpc, state_server_pb2_grpc
from services.state_server.control_servicer import StateServerServicer
from services.state_server.host import HostSettings
from services.state_server.query_servicer import QueryServicer
from services.state_server.registry import Registry

_log = logging.getLogger(__name__)

_KAFKA_DEADLINE_SECONDS = 30.0


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
        self._rpc = RpcServer("state-server", config.host, config.port)
        self._registry: Registry | None = None
        self._health: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """host:port that others reach it by; known after `start`."""
        return self._config.advertise or self._rpc.address

    async def start(self) -> None:
        """Binds and serves.

        Raises:
            PortTaken: See RpcServer.start.
        """
        incarnation = uuid.uuid4().hex
        # The port may be known only once it is bound, so the registry learns the address from the first caller on.
        registry = Registry(self._config.id, incarnation, lambda: self.address, self._clock.now_ms(), MAX_KEY_BYTES)
        settings = HostSettings(
            server=self._config.id,
            incarnation=incarnation,
            engine=self._engine,
            clock=self._clock,
            observer=self._observer,
            lease_seconds=self._config.lease_seconds,
            max_staged_bytes=self._config.max_staged_bytes,
            kafka_deadline_seconds=_KAFKA_DEADLINE_SECONDS,
            restore_deadline_seconds=self._config.max_restore_seconds_without_progress,
            changed=registry.changed,
        )
        control = StateServerServicer(registry, self._changelog, settings)
        self._rpc.add(query_pb2_grpc.add_QueryServicer_to_server, QueryServicer(registry), "keyhole.v1.Query")
        self._rpc.add(state_server_pb2_grpc.add_StateServerServicer_to_server, control, "keyhole.v1.StateServer")
        registry.on_change(self._update_health)
        self._registry = registry
        await self._rpc.start()

    def _update_health(self) -> None:
        assert self._registry is not None
        task = asyncio.ensure_future(self._rpc.set_serving(self._registry.ready))
        self._health.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._health.discard)

    async def run_until_signal(self) -> None:
        """Serves until SIGTERM or SIGINT, then drains and closes."""
        await self._rpc.run_until_signal(self._config.drain_seconds, self._drain)
        await self.close()

    async def _drain(self) -> None:
        assert self._registry is not None
        self._registry.draining = True
        self._registry.changed()  # ends the ownership streams, which would not end by themselves

    async def stop(self) -> None:
        """Drains and closes, for those that run it inside their own loop."""
        await self._drain()
        await self._rpc.stop(self._config.drain_seconds)
        await self.close()

    async def close(self) -> None:
        """Closes the stores."""
        assert self._registry is not None
        await self._registry.close()
        self._engine.close()


def build(config: StateServerConfig, observer: StepObserver | None = None) -> StateServer:
    """A state server on real Kafka and the configured store.

    Raises:
        InvalidConfiguration: An unknown store.
        StoreFormat, StoreLocked: See StoreEngine.
    """
    engines: dict[str, Callable[[StoreLimits], StoreEngine]] = {
        "lmdb": LmdbEngine,
        "memory": lambda limits: MemoryEngine(limits.bytes),
    }
    if config.store not in engines:
        raise InvalidConfiguration(f"unknown store {config.store!r}; the stores are {', '.join(engines)}")
    engine = engines[config.store](StoreLimits(config.directory, config.store_limit_bytes))
    return StateServer(
        config,
        engine,
        lambda application: KafkaChangelog(config.bootstrap_servers, application),
        SystemClock(),
        observer or NoObserver(),
    )


async def serve(config: StateServerConfig, observer: StepObserver | None = None) -> None:
    """Runs a state server until SIGTERM."""
    server = build(config, observer)
    await server.start()
    await server.run_until_signal()

"""An owner and a standby of one state, both at epoch 1, and what becomes of them: real servers, or the shipped fake."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from keyhole.model.state import StateDescriptor
from keyhole.stores.base import StoreEngine
from keyhole.testing.changelog import MemoryKafka
from keyhole.testing.fake_server import FakeServer
from tests.support.lookup_ports import HAS_LOOKUP_PORT
from tests.support.proxies import fake_servers
from tests.support.state_servers import LEASE_SECONDS, RunningServer, state_server

Rows = Mapping[Any, bytes]


class Copies(Protocol):
    """See the module's text."""

    addresses: tuple[str, str]
    """Of the owner and the standby."""

    async def advance(self, rows: Rows) -> None:
        """The owner commits these rows as epoch 2; the standby follows some time later."""

    def silence_coordinator(self) -> None:
        """The owner's lease passes."""

    def age(self, seconds: float) -> None:
        """That long nobody has told the standby of anything complete."""

    async def lose_owner(self) -> None:
        """It ends."""


class _Fakes:
    def __init__(self, owner: FakeServer, standby: FakeServer, of: StateDescriptor, rows: Rows) -> None:
        self._owner, self._server = owner, owner.host(of, rows)
        self._standby = standby.follow(of, rows)
        self._standby.as_of_ms = time.time_ns() // 1_000_000
        self.addresses = owner.address, standby.address

    async def advance(self, rows: Rows) -> None:
        for copy in (self._server, self._standby):
            copy.epoch = 2
            for key, row in rows.items():
                copy.put(key, row)

    def silence_coordinator(self) -> None:
        self._server.confirmed = False

    def age(self, seconds: float) -> None:
        assert self._standby.as_of_ms
        self._standby.as_of_ms -= int(1000 * seconds)

    async def lose_owner(self) -> None:
        await self._owner.stop()


class _Servers:
    """Through their whole write path, on one Kafka in memory."""

    def __init__(self, owner: RunningServer, standby: RunningServer) -> None:
        self._owner, self._standby = owner, standby
        self.addresses = owner.address, standby.address

    async def begin(self, of: StateDescriptor, rows: Rows) -> None:
        await self._owner.own(of)
        await self._owner.commit(rows)
        self._owner.complete()
        await self._standby.follow(of)

    async def advance(self, rows: Rows) -> None:
        await self._owner.commit(rows)
        self._owner.complete()

    def silence_coordinator(self) -> None:
        self._owner.clock.ahead_seconds += 1.1 * LEASE_SECONDS

    def age(self, seconds: float) -> None:
        self._standby.clock.ahead_seconds += seconds

    async def lose_owner(self) -> None:
        await self._owner.server.stop()


@asynccontextmanager
async def copies(
    kind: str, of: StateDescriptor, rows: Rows, engine: StoreEngine | None = None
) -> AsyncIterator[Copies]:
    """Of a state with these rows.

    Args:
        kind: "fake", "state server", or "state server by its lookup port".
        engine: The owner's.
    """
    async with AsyncExitStack() as stack:
        if kind == "fake":
            fakes = await stack.enter_async_context(fake_servers("server-a", "server-b"))
            yield _Fakes(fakes[0], fakes[1], of, rows)
            return
        kafka, settings = MemoryKafka(), HAS_LOOKUP_PORT if kind.endswith("port") else {}
        owner = await stack.enter_async_context(state_server("server-a", kafka, engine, settings))
        standby = await stack.enter_async_context(state_server("server-b", kafka, security=settings))
        real = _Servers(owner, standby)
        await real.begin(of, rows)
        yield real

"""A caretaker of the simulated query, beside its drivers: a test steps it, and time passes in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keyhole.config import JobConfig
from keyhole.coordinator.caretaker import Caretaker
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Fleet
from keyhole.testing.changelog import MemoryChangelog
from tests.support.simulation import SimulatedFleet, World


class NoAddresses:
    """The simulated fleet knows its own."""

    closed = False

    def __call__(self) -> list[str]:
        return []

    def close(self) -> None:
        self.closed = True


def caretaker_of(
    world: World,
    *,
    standbys: Mapping[str, int] | None = None,
    spark_query_id: str = "spark-1",
    query: str = "",
    fleet: Fleet | None = None,
    counts: Callable[[], QueryCounts] = QueryCounts,
    server_wait_seconds: float = 0.0,
) -> Caretaker:
    """For one more start of the query, whose batches have not come yet."""
    descriptor = world.descriptor
    config = JobConfig(
        application=descriptor.application,
        servers=tuple(f"{name}:1" for name in world.servers),
        bootstrap_servers="memory",
        server_wait_seconds=server_wait_seconds,
        kafka_deadline_seconds=world.kafka_deadline_seconds,
    )
    return Caretaker(
        config,
        query or descriptor.query,
        standbys or {descriptor.state: world.standbys},
        spark_query_id,
        MemoryChangelog(world.kafka, descriptor.application),
        world.clock,
        NoAddresses(),
        fleet=fleet or SimulatedFleet(world),
        heartbeat_seconds=1e6,
        counts=counts,
    )

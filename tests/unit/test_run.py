"""What a run of a query remembers of a recovery that broke off: the real driver and servers, without sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from keyhole.coordinator.membership import Sighting
from keyhole.errors import KafkaUnreachable
from keyhole.testing.changelog import MemoryControlLog
from tests.support.simulation import SimulatedFleet, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row


@pytest.fixture
def world() -> Iterator[World]:
    world = World(descriptor())
    yield world
    world.close()


def rows(n: float) -> dict[bytes, bytes | None]:
    return {key(name): row(n) for group in range(KEY_GROUPS) for name in names_in(group)}


def test_a_server_that_was_fenced_gets_a_new_grant_though_the_fence_could_not_be_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network breaks for a moment: a server is not seen, it is fenced, and then Kafka is not seen either."""
    world.run_epoch(0, rows(1.0))
    observe, append = SimulatedFleet.observe, MemoryControlLog.append
    unseen, unwritten = iter([True]), iter([True])

    def without_b(fleet: SimulatedFleet) -> dict[str, Sighting]:
        live = observe(fleet)
        if next(unseen, False):
            del live["b"]
        return live

    def not_once(log: MemoryControlLog, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        if next(unwritten, False):
            raise KafkaUnreachable("away for a moment")
        append(log, records, deadline_seconds)

    monkeypatch.setattr(SimulatedFleet, "observe", without_b)
    monkeypatch.setattr(MemoryControlLog, "append", not_once)
    assert world.run_epoch(1, rows(2.0)).epoch == 2
    assert next(unseen, None) is next(unwritten, None) is None

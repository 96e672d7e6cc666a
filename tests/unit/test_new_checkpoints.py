"""A query that begins again with a new checkpoint before any epoch was complete. The state is a sum."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keyhole.coordinator import run
from tests.support.simulation import DriverDiedError, Fault, World
from tests.support.states import KEY_GROUPS, row
from tests.support.sums import KEYS, ONE, SUM, sums


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(run, "_RETRY_SECONDS", 0.0)
    made = World(SUM, "ab")
    yield made
    made.close()


@pytest.mark.parametrize("fault", [Fault.DRIVER_DIES, Fault.DRIVER_DIES_AFTER])
@pytest.mark.parametrize("server", ["a", "b"])
@pytest.mark.parametrize("method", ["Stage", "Commit"])
def test_a_part_of_an_epoch_that_never_was_does_not_count_beside_the_same_records(
    world: World, server: str, method: str, fault: Fault
) -> None:
    world.faults_at[server, method] = fault
    with pytest.raises(DriverDiedError):
        world.run_epoch(0, ONE)
    world.run_epoch(0, {KEYS[0]: row(5.0)}, spark_query_id="another")
    assert sums(world) == [5.0] + [0.0] * (KEY_GROUPS - 1)
    world.run_epoch(1, ONE, spark_query_id="another")
    assert sums(world) == [6.0] + [1.0] * (KEY_GROUPS - 1)

"""A query that begins again with a new checkpoint where an epoch was broken off. The state is a sum."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pytest

from tests.support.aggregating_tasks import NAMES, Tasks, found
from tests.support.simulation import DriverDiedError, Fault, World
from tests.support.states import KEY_GROUPS, row
from tests.support.sums import KEYS, ONE, sums
from tests.support.versions import aggregating

TEN = {name: row(10.0) for name in KEYS}


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


@pytest.fixture
def broken_off(world: World) -> World:
    """Epoch 1 is complete; of epoch 2, one server has committed its key groups, and the other has not."""
    world.run_epoch(0, ONE)
    world.faults_at["b", "Commit"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        world.run_epoch(1, TEN)
    assert {name: epochs(world, name) for name in world.servers} == {"a": {2}, "b": {1}}
    return world


def epochs(world: World, server: str) -> set[int]:
    """Which ones the server holds, of key groups of its own."""
    with contextlib.closing(world.servers[server].tables["app", "counts"].store.snapshot()) as snapshot:
        return {position.epoch for position in snapshot.positions().values()}


def test_one_that_continues_keeps_what_was_committed_of_the_broken_off_epoch_by_whole_key_groups(
    broken_off: World,
) -> None:
    broken_off.run_epoch(0, {KEYS[0]: row(0.5)}, spark_query_id="another", on_new_checkpoint="continue")
    kept = sums(broken_off)
    kept[0] -= 0.5
    # Some of them have all of it, for good; the others nothing.
    assert sorted(kept) == [1.0] * 2 + [11.0] * 2
    broken_off.run_epoch(1, ONE, spark_query_id="another")
    assert sums(broken_off) == [number + 1.0 + 0.5 * (at == 0) for at, number in enumerate(kept)]


def test_the_old_checkpoint_and_reset_leave_no_part_of_an_epoch(broken_off: World) -> None:
    assert broken_off.run_epoch(1, TEN).epoch == 2
    assert sums(broken_off) == [11.0] * KEY_GROUPS
    broken_off.driver_dies()
    broken_off.run_epoch(0, ONE, spark_query_id="another", on_new_checkpoint="reset")
    assert sums(broken_off) == [1.0] * KEY_GROUPS


# --- aggregates, which tasks merge with what the servers hold ---------------------------------------------------------

FIVE = {name: [5] for name in NAMES}


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    made = Tasks(aggregating(1), "ab", standbys=1)
    yield made
    made.close()


def counted(tasks: Tasks) -> Mapping[str, tuple[int, int]]:
    """By key: the sum, and of how many rows."""
    tasks.settle()
    one, other = found(tasks)
    assert one == other
    return one


def test_a_reset_leaves_nothing_of_what_aggregates_were(tasks: Tasks) -> None:
    tasks.run_epoch(0, FIVE)  # type: ignore[arg-type]  # see Tasks
    tasks.driver_dies()
    first = {NAMES[0]: [7]}
    tasks.run_epoch(0, first, on_new_checkpoint="reset", spark_query_id="another")  # type: ignore[arg-type]
    assert counted(tasks) == {NAMES[0]: (7, 1)}
    tasks.run_epoch(1, FIVE, spark_query_id="another")  # type: ignore[arg-type]
    assert counted(tasks) == dict.fromkeys(NAMES, (5, 1)) | {NAMES[0]: (12, 2)}


def test_aggregates_of_an_epoch_that_never_was_do_not_count_beside_the_same_records(tasks: Tasks) -> None:
    tasks.faults_at["b", "Commit"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        tasks.run_epoch(0, FIVE)  # type: ignore[arg-type]
    tasks.run_epoch(0, FIVE, spark_query_id="another")  # type: ignore[arg-type]
    assert counted(tasks) == dict.fromkeys(NAMES, (5, 1))

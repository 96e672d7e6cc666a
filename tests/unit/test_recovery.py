"""Schedules that once lost, doubled or hid rows, or could have: the real coordinator and servers, step by step."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from keyhole.errors import CheckpointMismatch, ReplayDiffers
from keyhole.protocol.control import read_control
from keyhole.testing.changelog import MemoryChangelog
from tests.support.simulation import DriverDiedError, Fault, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]


@pytest.fixture
def world() -> Iterator[World]:
    made = World(descriptor())
    yield made
    made.close()


def rows(n: float, *groups: int) -> dict[bytes, bytes | None]:
    return {KEYS[group]: row(n) for group in groups or range(KEY_GROUPS)}


def groups_of(world: World, server: str) -> tuple[int, ...]:
    assert world.coordinator is not None
    return world.coordinator.owned_by(server, "counts")


def read(world: World) -> list[bytes | None]:
    """Every key from the server that owns it."""
    found: dict[int, bytes | None] = {}
    for name, server in world.servers.items():
        for group in groups_of(world, name):
            (found[group],) = server.tables["app", "counts"].lookup([KEYS[group]]).rows
    return [found[group] for group in range(KEY_GROUPS)]


def test_a_server_that_was_cut_off_can_not_commit_when_it_comes_back(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.faults_at["a", "Commit"] = Fault.SERVER_IS_CUT_OFF
    assert world.run_epoch(1, rows(2.0)).rounds == 2
    assert groups_of(world, "b") == tuple(range(KEY_GROUPS))
    ends = [world.kafka.end(world.descriptor.topic, group) for group in range(KEY_GROUPS)]
    assert world.late
    world.late_messages_arrive()
    assert [world.kafka.end(world.descriptor.topic, group) for group in range(KEY_GROUPS)] == ends
    assert read(world) == [row(2.0)] * KEY_GROUPS


@pytest.mark.parametrize("before_the_next_driver", [True, False])
def test_a_dead_drivers_commit_is_done_once_or_not_at_all(world: World, before_the_next_driver: bool) -> None:
    world.run_epoch(0, rows(1.0))
    world.faults_at["a", "Commit"] = Fault.MESSAGE_IS_LATE
    world.faults_at["b", "Commit"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        world.run_epoch(1, rows(2.0))
    if before_the_next_driver:
        world.late_messages_arrive()  # its grant is still good
    assert world.run_epoch(1, rows(2.0)).replayed is before_the_next_driver
    ends = [world.kafka.end(world.descriptor.topic, group) for group in range(KEY_GROUPS)]
    world.late_messages_arrive()
    assert [world.kafka.end(world.descriptor.topic, group) for group in range(KEY_GROUPS)] == ends
    assert read(world) == [row(2.0)] * KEY_GROUPS


def test_the_complete_record_of_a_replayed_epoch_has_the_markers_of_what_was_there(world: World) -> None:
    """By them copies are judged, and a changelog that has lost its end."""
    world.run_epoch(0, rows(1.0))
    world.faults_at["b", "Commit"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        world.run_epoch(1, rows(2.0))  # a has committed it
    assert world.run_epoch(1, rows(2.0)).replayed
    complete = read_control(MemoryChangelog(world.kafka, "app").control("reader").read(1.0), "main").complete
    assert complete is not None
    topic = world.descriptor.topic
    logs = [world.kafka.records(topic, group, 0, world.kafka.end(topic, group)) for group in range(KEY_GROUPS)]
    assert complete.markers["counts"] == [records[-1][0] for records in logs]


def test_servers_own_again_what_they_released_to_one_that_then_died(world: World) -> None:
    world.servers["b"].die()
    world.run_epoch(0, rows(1.0))
    world.servers["b"].start()
    world.faults_at["b", "Assign"] = Fault.SERVER_DIES
    world.run_epoch(1, rows(2.0, groups_of(world, "a")[0]))
    assert groups_of(world, "a") == tuple(range(KEY_GROUPS))
    assert read(world)[1:] == [row(1.0)] * (KEY_GROUPS - 1)


def test_a_recovery_that_breaks_off_while_the_query_is_idle_is_taken_up_by_the_next_heartbeat(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.servers["b"].die()
    world.faults_at["a", "Assign"] = Fault.KAFKA_IS_DOWN
    world.beat(seconds=-1.0)  # there is no time left for a second try
    world.beat()
    assert groups_of(world, "a") == tuple(range(KEY_GROUPS))
    assert read(world) == [row(1.0)] * KEY_GROUPS


@pytest.mark.parametrize("policy", ["continue", "reset"])
def test_a_new_checkpoint_is_not_taken_for_a_replay_of_an_epoch_that_was_committed_in_part(
    world: World, policy: str
) -> None:
    world.run_epoch(0, rows(1.0))
    world.faults_at["b", "Commit"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        world.run_epoch(1, rows(2.0))  # a has committed it
    world.run_epoch(0, rows(3.0), spark_query_id="spark-2", on_new_checkpoint=policy, strict=True)  # type: ignore[arg-type]
    assert read(world) == [row(3.0)] * KEY_GROUPS


def test_a_first_epoch_that_was_committed_in_part_does_not_swallow_another_checkpoints(world: World) -> None:
    world.faults_at["b", "Commit"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        world.run_epoch(0, rows(1.0))
    world.run_epoch(0, rows(2.0), spark_query_id="spark-2", strict=True)
    assert read(world) == [row(2.0)] * KEY_GROUPS


def test_a_new_checkpoints_first_epoch_can_be_run_again(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.driver_dies()
    world.faults_at["b", "Commit"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        world.run_epoch(0, rows(2.0), spark_query_id="spark-2", on_new_checkpoint="reset")
    world.run_epoch(0, rows(2.0), spark_query_id="spark-2")
    world.run_epoch(1, rows(3.0), spark_query_id="spark-2")
    assert read(world) == [row(3.0)] * KEY_GROUPS


def test_a_checkpoint_set_back_by_one_batch_is_told_by_its_offsets(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.driver_dies()
    with pytest.raises(CheckpointMismatch, match="offsets"):
        world.run_epoch(0, rows(2.0), offsets_hash=99)
    assert not world.run_epoch(0, rows(1.0), offsets_hash=0).rounds > 1


@pytest.mark.parametrize("again", [rows(2.0), rows(1.0, 0)])
def test_a_replay_with_other_rows_or_without_some_is_told(world: World, again: dict[bytes, bytes | None]) -> None:
    world.run_epoch(0, rows(1.0))
    world.driver_dies()
    with pytest.raises(ReplayDiffers, match=r"other rows .* in counts key group .*start the job with strict=False"):
        world.run_epoch(0, again, strict=True)


@pytest.mark.parametrize("strictly_first", [False, True])
def test_unless_it_is_strict_a_run_goes_on_after_a_replay_that_differs_and_logs_it_by_name(
    world: World, strictly_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world.run_epoch(0, rows(1.0))
    world.driver_dies()
    if strictly_first:
        with pytest.raises(ReplayDiffers):
            world.run_epoch(0, {**rows(1.0), KEYS[2]: row(2.0)}, strict=True)
        world.driver_dies()
    caplog.clear()
    assert world.run_epoch(0, {**rows(1.0), KEYS[2]: row(2.0)}).replayed
    (logged,) = [record for record in caplog.records if record.message == "a replay differs"]
    assert (logged.levelno, logged.__dict__["epoch"], logged.__dict__["which"]) == (
        logging.ERROR,
        1,
        "counts key group 2",
    )
    assert read(world) == [row(1.0)] * KEY_GROUPS, "what was committed stays"
    world.run_epoch(1, rows(3.0))
    assert read(world) == [row(3.0)] * KEY_GROUPS


def test_a_server_that_lost_its_store_comes_back_with_all_rows(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.servers["a"].die(lose_store=True)
    world.run_epoch(1, {})
    world.servers["a"].start()
    world.run_epoch(2, {})
    world.settle()
    assert len(groups_of(world, "a")) == KEY_GROUPS // 2
    assert read(world) == [row(1.0)] * KEY_GROUPS

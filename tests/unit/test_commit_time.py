"""When an epoch counts as committed: once its rows are staged, and the same for all of its key groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keyhole.changelog.base import Partition
from keyhole.changelog.records import MARKER_KEY, decode_marker
from tests.support.simulation import Fault, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row


@pytest.fixture
def world() -> Iterator[World]:
    world = World(descriptor())
    yield world
    world.close()


def rows(n: float) -> dict[bytes, bytes | None]:
    return {key(name): row(n) for group in range(KEY_GROUPS) for name in names_in(group)}


def commit_times(world: World) -> set[int]:
    """Of the markers of all key groups, and of the complete epoch."""
    assert world.coordinator is not None
    complete = world.coordinator._run.complete
    assert complete is not None
    kafka, topic = world.kafka, world.descriptor.topic
    markers = [
        decode_marker(value, Partition(world.descriptor.state, group), offset)
        for group in range(KEY_GROUPS)
        for offset, name, value in kafka.records(topic, group, 0, kafka.end(topic, group))
        if name == MARKER_KEY
    ]
    assert len(markers) == KEY_GROUPS
    return {complete.commit_time_ms, *(marker.stamp.commit_time_ms for marker in markers)}


def test_the_time_that_staging_takes_is_before_the_commit(world: World) -> None:
    begun_ms = world.clock.now_ms()
    world.meanwhile["b", "Stage"] = lambda: world.clock.advance(80.0)
    world.run_epoch(0, rows(1.0))
    (committed_ms,) = commit_times(world)
    assert committed_ms >= begun_ms + 80_000


def test_it_stays_where_some_servers_commit_in_a_later_round(world: World) -> None:
    world.faults_at["a", "Commit"] = Fault.SERVER_DIES
    world.meanwhile["b", "Commit"] = lambda: world.clock.advance(2.0)
    result = world.run_epoch(0, rows(1.0))
    assert result.rounds > 1
    assert len(commit_times(world)) == 1

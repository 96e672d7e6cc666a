"""Where a feeder begins, and what it refuses to begin with: nothing of a source is passed over in silence."""

from __future__ import annotations

import pytest

from keyhole.errors import ChangelogRecreated, ConflictError
from keyhole.feed.positions import (
    BoundarySearch,
    FeederBoundary,
    FoundBoundaries,
    SourceDescription,
    start_positions,
    windows,
)
from keyhole.protocol.updates import BoundaryRecord, EndRecord, UpdateRecord, decode, encode
from tests.support.feeder_world import FeederProcess, World

SOURCE = SourceDescription("orders", "id-1", {0: 5, 1: 0})
UPDATE = encode(UpdateRecord("id-1", 0, 1, 0, 0, 1, ["a"]))


def boundary(ends: dict[int, int], topic_id: str = "id-1", topic: str = "orders") -> bytes:
    return encode(FeederBoundary(topic_id, 1, ends, topic))


def found(*values: bytes | None, whole: bool = True) -> FoundBoundaries:
    search = BoundarySearch("orders", "id-1")
    search.look(values)
    return search.found(whole=whole)


def test_a_feeder_s_boundary_is_one_to_owners() -> None:
    assert decode(boundary({0: 7})) == BoundaryRecord("id-1", 1, {0: 7})


def test_windows_go_backwards_and_grow() -> None:
    assert list(windows(3, 6_003)) == [(5_003, 6_003), (1_003, 5_003), (3, 1_003)]
    assert list(windows(3, 3)) == []


def test_the_highest_ends_count_among_what_else_is_there() -> None:
    values = [None, b"{", UPDATE, boundary({0: 9, 1: 1}), boundary({0: 7, 1: 2}), boundary({0: 99}, "id-2", "others")]
    assert found(*values) == FoundBoundaries({0: 9, 1: 2}, "", whole=True)


def test_what_was_never_fed_begins_at_its_earliest_records() -> None:
    assert start_positions(SOURCE, found(boundary({0: 99}, "id-2", "others"))) == {0: 5, 1: 0}


def test_what_was_fed_goes_on_behind_the_boundary_and_new_partitions_at_0() -> None:
    assert start_positions(SOURCE, found(boundary({0: 6}), whole=False)) == {0: 6, 1: 0}


@pytest.mark.parametrize(
    ("boundaries", "error", "why"),
    [
        (found(boundary({0: 6}, "id-0")), ChangelogRecreated, "deleted and made anew"),
        (found(whole=False), ChangelogRecreated, "is not known"),
        (found(boundary({0: 4})), ChangelogRecreated, "offset 4 of partition 0 is next, and it begins at 5"),
        (found(boundary({1: 1})), ChangelogRecreated, "offset 0 of partition 0 is next"),
        (found(boundary({0: 6, 2: 1})), ConflictError, "had a partition 2"),
    ],
    ids=["made_anew", "boundaries_deleted", "records_deleted", "of_a_new_partition", "fewer_partitions"],
)
def test_what_is_missing_is_refused_unless_it_is_accepted(
    boundaries: FoundBoundaries, error: type[ConflictError], why: str
) -> None:
    with pytest.raises(error, match=why):
        start_positions(SOURCE, boundaries)
    assert start_positions(SOURCE, boundaries, from_earliest=True) == {0: 5, 1: 0}


def fed(world: World, **how: bool) -> FeederProcess:
    process = FeederProcess(world, **how)
    process.feeder.start()
    return process


def test_a_topic_that_is_made_anew_while_it_is_fed_ends_the_feeder() -> None:
    world = World()
    world.append(0, {"id": "a", "n": 1})
    process = fed(world)
    process.drain()
    world.make_anew()
    world.clock.advance(1.0)
    with pytest.raises(ChangelogRecreated, match=r"its id is id-1x, it was id-1\)"):
        process.feeder.step(0.0)
    with pytest.raises(ChangelogRecreated, match="made anew"):
        fed(world)
    world.append(0, {"id": "a", "n": 2})
    fed(world, from_earliest=True).drain()
    assert all(encode(EndRecord("id-1")) in world.logs[group] for group in range(3))
    # It is another source from then on, and needs no permission any more.
    fed(world).drain()
    assert [record.source for times in world.sent().values() for _, record in times] == ["id-1", "id-1x"]


def test_records_that_are_deleted_before_they_are_read_are_never_skipped() -> None:
    world = World()
    for n in range(6):
        world.append(0, {"id": "a", "n": n})
    process = fed(world)
    process.feeder.step(0.0)
    world.starts[0] = 4
    with pytest.raises(ChangelogRecreated, match="deleted before they were fed"):
        process.feeder.step(0.0)
    with pytest.raises(ChangelogRecreated, match="deleted before they were fed"):
        fed(world)


def test_a_new_partition_that_has_lost_records_already_is_refused() -> None:
    world = World()
    process = fed(world)
    world.add_partition()
    world.starts[1] = 1
    world.clock.advance(1.0)
    with pytest.raises(ChangelogRecreated, match="offset 0 of partition 1 is next, and it begins at 1"):
        process.feeder.step(0.0)


def test_a_boundary_is_repeated_before_it_is_deleted_with_old_updates() -> None:
    world = World()
    process = fed(world)
    for seconds, boundaries in [(1.0, 1), (598.0, 1), (1.0, 2), (1.0, 2)]:
        world.clock.advance(seconds)
        process.feeder.step(0.0)
        process.serve(waits=True)
        assert [len(world.logs[group]) for group in range(3)] == [boundaries] * 3


def test_an_update_that_is_too_large_is_a_dead_letter() -> None:
    world = World()
    world.append(0, {"id": "a" * 2_000, "n": 1})
    process = fed(world)
    process.drain()
    assert (world.rejected(), world.sent(), process.feeder.refused) == ({(0, 0)}, {}, 1)


def test_the_last_boundary_is_found_however_much_stands_behind_it() -> None:
    world = World()
    world.append(0, {"id": "a", "n": 1})
    fed(world).drain()
    world.logs[0] += [UPDATE] * 7_000
    world.starts[0] = 1
    fed(world).drain()
    assert len(world.sent()[0, 0]) == 1

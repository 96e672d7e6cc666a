"""Where a feeder begins, and what it refuses to begin with: nothing of a source is passed over in silence."""

from __future__ import annotations

from contextlib import suppress

import pytest

from keyhole.errors import ChangelogRecreated, ConflictError
from keyhole.feed.feed_options import RecordFormat
from keyhole.feed.mapping import RecordMapper, RoutedUpdate
from keyhole.feed.positions import (
    BoundarySearch,
    FoundBoundaries,
    SourceDescription,
    start_positions,
    windows,
)
from keyhole.feed.rows import SourceRecord
from keyhole.protocol.updates import BoundaryRecord, EndRecord, UpdateRecord, decode, encode
from tests.support.feeder_world import STATE, FeederProcess, Killed, World

SOURCE = SourceDescription("orders", "id-1", {0: 5, 1: 0})
UPDATE = encode(UpdateRecord("id-1", 0, 1, 0, 0, 1, ["a"]))


def boundary(
    ends: dict[int, int], topic_id: str = "id-1", topic: str = "orders", updates_id: str = "updates-1"
) -> bytes:
    return encode(BoundaryRecord(topic_id, 1, ends, topic, updates_id))


def found(*values: bytes | None, whole: bool = True) -> FoundBoundaries:
    search = BoundarySearch("orders", "id-1", "updates-1")
    search.look(values)
    return search.found(whole=whole)


def test_a_feeder_s_boundary_is_one_to_owners() -> None:
    assert decode(boundary({0: 7})) == BoundaryRecord("id-1", 1, {0: 7}, "orders", "updates-1")


def test_windows_go_backwards_and_grow() -> None:
    assert list(windows(3, 6_003)) == [(5_003, 6_003), (1_003, 5_003), (3, 1_003)]
    assert list(windows(3, 3)) == []


def test_the_highest_ends_count_among_what_else_is_there() -> None:
    values = [
        None,
        b"{",
        b'[0,"\xff",1,{}]',
        b'[0,"id-1",1,{},' + b"[" * 100_000,
        UPDATE,
        boundary({0: 9, 1: 1}),
        boundary({0: 7, 1: 2}),
        boundary({0: 99}, "id-2", "others"),
    ]
    assert found(*values) == FoundBoundaries({0: 9, 1: 2}, (), "", whole=True)


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


def test_what_was_fed_may_be_gone_also_after_a_start_that_read_it_again() -> None:
    world = World()
    for n in range(5):
        world.append(0, {"id": "a", "n": 1 << n})
    fed(world).drain()
    world.logs[0] += [UPDATE] * 7_000
    # It is killed behind its first boundary: of what it reads again nothing was sent.
    fed(world, from_earliest=True)
    world.starts[0] = 3
    world.append(0, {"id": "a", "n": 1 << 5})
    fed(world).drain()
    assert world.counted() == {(0, at): 1 << at for at in range(6)}


def test_a_topic_that_a_real_time_query_fed_before_it_was_made_anew_is_refused_by_its_id() -> None:
    before = found(boundary({0: 6}, "id-0.spent"), boundary({0: 6}, "id-0"))
    with pytest.raises(ChangelogRecreated, match=r"its id is id-1, it was id-0\)"):
        start_positions(SOURCE, found(boundary({0: 6}, "id-0.spent")))
    assert before.other_ids == ("id-0", "id-0.spent"), "each has an end of its own"
    # Of the same topic: it was not made anew, and check_earlier looks for it.
    assert found(boundary({0: 6}, "id-1.spent")).other_ids == ()


def test_a_source_that_is_not_the_one_on_record_is_not_fed() -> None:
    """It was made anew since the run has begun: nobody has looked for what had fed the state of it."""
    world = World()
    process = FeederProcess(world, topic_id="id-0", from_earliest=True)
    with pytest.raises(ChangelogRecreated, match=r"its id is id-1, it was id-0\)"):
        process.feeder.start()
    assert not any(world.logs.values())
    FeederProcess(world, topic_id="id-1").feeder.start()


def test_a_topic_that_is_made_anew_twice_has_ended_each_time() -> None:
    search = BoundarySearch("orders", "id-1xx", "updates-1")
    # Windows go backwards. A feeder that slept wrote the last one of id-1.
    assert not search.look([boundary({0: 1}, "id-1x"), boundary({0: 1}, "id-1"), boundary({0: 2}, "id-1x")])
    assert not search.look([boundary({0: 1}, "id-0"), boundary({0: 1}, "id-1"), boundary({0: 1}, "id-x", "others")])
    assert search.found(whole=True).other_ids == ("id-1x", "id-1", "id-0")

    world = World()

    def live(records: int, **how: bool) -> None:
        for n in range(records):
            world.append(0, {"id": "abcd"[n % 4], "n": 1})
        fed(world, **how).drain()

    live(3_000)
    world.make_anew()
    live(9_000, from_earliest=True)
    assert world.ended(0) == {"id-1"}
    world.make_anew()
    with pytest.raises(ChangelogRecreated, match=r"its id is id-1xx, it was id-1x\)"):
        fed(world)
    live(1, from_earliest=True)
    assert [world.ended(group) for group in range(3)] == [{"id-1", "id-1x"}] * 3


def test_what_is_gone_has_ended_everywhere_before_its_successor_is_fed() -> None:
    for calls in range(20):
        world = World()
        world.append(0, {"id": "a", "n": 1})
        fed(world).drain()
        world.make_anew()
        killed = FeederProcess(world, from_earliest=True)
        killed.calls_left = calls
        with suppress(Killed):
            killed.feeder.start()
        # Of what it has sent partition 0 alone gets some.
        killed.deliver(0)
        fed(world, from_earliest=True).drain()
        assert [world.ended(group) for group in range(3)] == [{"id-1"}] * 3, calls


def fed_and_made_anew() -> tuple[World, FeederProcess]:
    """Six rows were fed; then their updates topic was deleted and made anew while the feeder stood by."""
    world = World()
    for n in range(6):
        world.append(0, {"id": "abcdef"[n], "n": 1 << n})
    process = fed(world)
    process.drain()
    return world, process


def test_an_updates_topic_that_is_made_anew_while_it_is_fed_ends_the_feeder() -> None:
    for seconds in (1.0, 700.0):
        world, process = fed_and_made_anew()
        world.make_updates_anew()
        world.append(0, {"id": "a", "n": 1000})
        world.clock.advance(seconds)
        with pytest.raises(
            ChangelogRecreated, match=r"its id is updates-1x, it was updates-1\), and what had been fed"
        ):
            process.feeder.step(0.0)
        assert not any(process.underway.values())
        # Whoever begins sends all there is to the new one.
        fed(world).drain()
        assert world.counted() == world.expected()


@pytest.mark.parametrize("from_earliest", [False, True])
def test_a_boundary_of_the_updates_topic_before_is_refused(from_earliest: bool) -> None:
    """Owners take rows below it for seen."""
    world, process = fed_and_made_anew()
    world.clock.advance(700.0)
    process.feeder.step(0.0)
    # It was under way when the topic was deleted.
    world.make_updates_anew()
    process.deliver(0)
    assert world.logs[0]
    with pytest.raises(ChangelogRecreated, match="a feeder ran on while the updates topic was made anew"):
        fed(world, from_earliest=from_earliest)
    world.make_updates_anew()
    fed(world).drain()
    assert world.counted() == world.expected()


def test_an_updates_topic_that_is_made_anew_while_a_feeder_begins_gets_no_boundary() -> None:
    world, _ = fed_and_made_anew()
    process = FeederProcess(world)
    world.make_updates_anew()
    with pytest.raises(ChangelogRecreated, match="what had been fed"):
        process.feeder.start()
    assert not any(world.logs.values())


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


def test_what_breaks_its_reading_is_a_dead_letter_that_quotes_nothing() -> None:
    class Broken(RecordMapper):
        def updates(self, record: SourceRecord) -> list[RoutedUpdate]:
            if record.offset == 1:
                raise OverflowError("s3cret")
            return super().updates(record)

    world = World()
    for n in range(3):
        world.append(0, {"id": "a", "n": 1 << n})
    process = FeederProcess(world)
    process.feeder._mapper_of = lambda source: Broken(STATE, RecordFormat.JSON, source)
    process.feeder.start()
    process.drain()
    assert process.reasons == ["the record can't be read: OverflowError"]
    assert (world.rejected(), world.counted()) == ({(0, 1)}, {(0, 0): 1, (0, 2): 4})


def test_the_last_boundary_is_found_however_much_stands_behind_it() -> None:
    world = World()
    world.append(0, {"id": "a", "n": 1})
    fed(world).drain()
    world.logs[0] += [UPDATE] * 7_000
    world.starts[0] = 1
    fed(world).drain()
    assert len(world.sent()[0, 0]) == 1

"""Entries that have expired are not read: whichever copy answers, whatever the clocks do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keyhole.encoding.codec import EntryRange
from keyhole.model.epoch import START, Position
from keyhole.model.read import ReadBounds
from keyhole.model.state import StateDescriptor, TtlClock
from keyhole.rpc.frames import FRAME_BYTES
from keyhole.stores.base import Advance, Batch
from keyhole.testing.clock import ManualClock
from keyhole.v1.state_pb2 import ROLE_OWNER, ROLE_STANDBY, Source
from tests.support.simulation import World
from tests.support.states import KEY_GROUPS, content, descriptor, key, names_in, row, standing, table

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]
OTHERS = [key(names_in(group)[1]) for group in range(KEY_GROUPS)]
TTL_MS = 10_000
BY_CLOCK = descriptor(ttl_ms=TTL_MS)
BY_WATERMARK = descriptor(ttl_ms=TTL_MS, ttl_clock=TtlClock.EVENT_TIME)


def world_of(of: StateDescriptor) -> World:
    made = World(of, "ab", standbys=1)
    made.watermark_ms = 1000
    made.run_epoch(0, {name: row(1.0) for name in KEYS})
    made.settle()
    return made


@pytest.fixture
def by_clock() -> Iterator[World]:
    """Every key group has an owner and a standby."""
    made = world_of(BY_CLOCK)
    yield made
    made.close()


@pytest.fixture
def by_watermark() -> Iterator[World]:
    """The same; the first epoch's watermark is at one second."""
    made = world_of(BY_WATERMARK)
    yield made
    made.close()


def answers(world: World) -> list[tuple[Source, list[bytes | None]]]:
    """Of every copy of every key group."""
    found = []
    for server in world.servers.values():
        for held in server.tables.values():
            for copy in (held.owned, held.standby):
                for name in filter(copy.holds, KEYS):
                    answer = copy.answers([name], ReadBounds(), held._visibility.show(), FRAME_BYTES)
                    within = EntryRange(name, name, name + b"\xff")
                    scanned = copy.scan(within, ReadBounds(), held._visibility.show(), descending=False)
                    # None, or not there any more.
                    assert next((row for _, row in scanned.entries), None) == answer.rows[0]
                    scanned.close()
                    found.append((answer.sources[0], list(answer.rows)))
    assert [source.role for source, _ in found].count(ROLE_OWNER) == KEY_GROUPS
    return found


def shown(world: World) -> set[bytes | None]:
    return {row for _, rows in answers(world) for row in rows}


def roles(world: World) -> set[int]:
    return {source.role for source, _ in answers(world)}


def test_by_the_clock_every_copy_hides_what_has_expired_without_any_epoch(by_clock: World) -> None:
    assert roles(by_clock) == {ROLE_OWNER, ROLE_STANDBY}
    by_clock.clock.advance(TTL_MS / 1000 - 0.001)
    assert shown(by_clock) == {row(1.0)}
    by_clock.clock.advance(0.001)
    assert shown(by_clock) == {None}


def test_a_clock_that_is_set_back_does_not_bring_expired_entries_back(by_clock: World) -> None:
    by_clock.clock.advance(TTL_MS / 1000)
    assert shown(by_clock) == {None}
    by_clock.clock.jump(-3600)
    assert shown(by_clock) == {None}


def test_a_clock_that_is_behind_shows_nothing_that_had_expired_when_the_epoch_was_committed(by_clock: World) -> None:
    by_clock.clock.advance(TTL_MS / 1000)
    by_clock.run_epoch(1, {name: row(2.0) for name in OTHERS})
    by_clock.follow()
    by_clock.clock.jump(-3600)
    assert shown(by_clock) == {None}


def test_nor_what_had_expired_then_and_is_not_removed_yet() -> None:
    """An epoch looks at a part of the state only, for what it can remove."""
    made = table(BY_CLOCK, clock=ManualClock(now_ms=0))
    entry = (2000).to_bytes(8, "big") + row(1.0)
    advances = {0: Advance(START, Position(offset=9, epoch=1, generation=1, checksum=0))}
    made.store.apply(Batch(puts=[(KEYS[0], entry)], advances=advances))
    for committed, row_shown in (1, row(1.0)), (2, None):  # at that many seconds
        made.publish(made.store.snapshot(), frozenset({0}), standing(committed), {})
        assert list(made.lookup([KEYS[0]]).rows) == [row_shown]


def test_an_epoch_that_only_removes_what_has_expired_is_complete_in_every_key_group(by_clock: World) -> None:
    by_clock.clock.advance(TTL_MS / 1000)
    by_clock.run_epoch(1, {})
    assert by_clock.coordinator is not None
    complete = by_clock.coordinator.complete
    assert complete is not None
    topic = by_clock.descriptor.topic
    # Each key group's last record is the marker; after it stands Kafka's own note of the transaction's end.
    assert complete.markers["counts"] == [by_clock.kafka.end(topic, group) - 2 for group in range(KEY_GROUPS)]
    by_clock.settle()
    for server in by_clock.servers.values():
        assert content(server.tables["app", "counts"].store) == {}
    assert {source.epoch for source, _ in answers(by_clock)} == {2}
    # The next run finds all that it takes for complete.
    by_clock.driver_dies()
    by_clock.servers["a"].die(lose_store=True)
    by_clock.run_epoch(2, {name: row(3.0) for name in KEYS})
    by_clock.settle()
    assert shown(by_clock) == {row(3.0)}


def test_by_the_watermark_every_copy_hides_what_has_expired_as_of_its_epoch(by_watermark: World) -> None:
    by_watermark.clock.advance(3600)
    assert shown(by_watermark) == {row(1.0)}
    by_watermark.watermark_ms = TTL_MS + 999
    by_watermark.run_epoch(1, {})
    by_watermark.follow()
    assert shown(by_watermark) == {row(1.0)}
    by_watermark.watermark_ms = TTL_MS + 1000
    # Of an epoch that touches none of the key groups: the complete epoch tells.
    by_watermark.run_epoch(2, {})
    by_watermark.follow()
    assert {source.watermark_ms for source, _ in answers(by_watermark)} == {TTL_MS + 1000}
    assert shown(by_watermark) == {None}


def test_a_new_owner_hides_by_the_watermark_of_the_last_epoch_before_it_has_committed_any(by_watermark: World) -> None:
    by_watermark.watermark_ms = TTL_MS + 1000
    by_watermark.run_epoch(1, {})
    by_watermark.servers["a"].die(lose_store=True)
    by_watermark.settle()
    by_watermark.servers["a"].start()
    by_watermark.settle()
    assert {source.watermark_ms for source, _ in answers(by_watermark)} == {TTL_MS + 1000}
    assert shown(by_watermark) == {None}


def test_the_watermark_of_a_new_checkpoint_does_not_bring_expired_entries_back(by_watermark: World) -> None:
    by_watermark.watermark_ms = TTL_MS + 1000
    by_watermark.run_epoch(1, {})
    by_watermark.driver_dies()
    by_watermark.watermark_ms = 0
    by_watermark.run_epoch(0, {}, spark_query_id="spark-2", on_new_checkpoint="continue")
    by_watermark.settle()
    assert {source.watermark_ms for source, _ in answers(by_watermark)} == {TTL_MS + 1000}
    assert shown(by_watermark) == {None}


def test_a_state_that_is_reset_begins_with_the_new_checkpoints_watermark(by_watermark: World) -> None:
    by_watermark.driver_dies()
    by_watermark.watermark_ms = 7
    fresh = {name: row(2.0) for name in KEYS}
    by_watermark.run_epoch(0, fresh, spark_query_id="spark-2", on_new_checkpoint="reset")
    by_watermark.settle()
    assert {source.watermark_ms for source, _ in answers(by_watermark)} == {7}
    assert shown(by_watermark) == {row(2.0)}


class CountedClock(ManualClock):
    """Counts how often it is asked what time it is."""

    asked = 0

    def now_ms(self) -> int:
        self.asked += 1
        return super().now_ms()


@pytest.mark.parametrize(
    ("of", "asked"),
    [(descriptor(), 0), (BY_WATERMARK, 0), (BY_CLOCK, 1)],
    ids=["without a ttl", "by the watermark", "by the clock"],
)
def test_the_clock_is_asked_once_for_all_keys_of_a_frame_and_only_where_entries_expire_by_it(
    of: StateDescriptor, asked: int
) -> None:
    clock = CountedClock()
    made = table(of, clock=clock)
    # Two key groups that it owns, of two epochs, and two that it follows, likewise.
    ahead = Position(offset=0, epoch=2, generation=1, checksum=0)
    made.publish(made.store.snapshot(), frozenset({0, 1}), standing(1), {1: ahead})
    made.standby.publish(made.store.snapshot(), frozenset({2, 3}), standing(1), {3: standing(2)})
    clock.asked = 0
    answers = made.lookup(KEYS * 100)
    assert len(answers.sources) == KEY_GROUPS
    assert list(answers.rows) == [None] * KEY_GROUPS * 100
    assert clock.asked == asked
    made.scan(EntryRange(KEYS[0], KEYS[0], None)).close()
    assert clock.asked == 2 * asked

"""A query is dropped for good: what goes with it, whoever is killed or wakes meanwhile, and what begins anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keyhole.changelog.base import TopicRight
from keyhole.changelog.settings import CONTROL, topic_name
from keyhole.coordinator.dropping import drop, dropping
from keyhole.errors import (
    Fenced,
    InvalidConfiguration,
    KafkaUnreachable,
    KeyholeError,
    SavepointMismatch,
    UnknownState,
)
from keyhole.protocol.control import SavepointRecord, generations, record
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.memory_kafka import MemoryKafka
from tests.support.simulation import World
from tests.support.states import descriptor, key, row

APPLICATION, QUERY, STATE = "app", "main", "counts"
SECONDS = 5.0


@pytest.fixture
def world() -> Iterator[World]:
    world = World(descriptor())
    yield world
    world.close()


def on_record(world: World) -> set[str]:
    return set(MemoryChangelog(world.kafka, APPLICATION).control("reader").read(SECONDS))


def dropped(world: World) -> None:
    """As `keyhole drop` does once all servers have retired the query."""
    of = drop(APPLICATION, QUERY, MemoryChangelog(world.kafka, APPLICATION), world.clock, SECONDS)
    assert ([state.state for state in of.states], list(of.topics)) == ([STATE], [topic_name(APPLICATION, STATE)])


def changelog_of(world: World) -> str | None:
    return world.kafka.topic_id(topic_name(APPLICATION, STATE))


def test_what_would_go_is_told_and_nothing_is_changed(world: World) -> None:
    world.run_epoch(0, {key("a"): row(1.0)})
    of = dropping(APPLICATION, QUERY, MemoryChangelog(world.kafka, APPLICATION), SECONDS)
    assert list(of.topics) == [topic_name(APPLICATION, STATE)]
    assert world.run_epoch(1, {key("a"): row(2.0)}).epoch == 2


def test_of_a_query_that_was_dropped_its_generation_is_on_record_and_a_new_checkpoint_begins_anew(world: World) -> None:
    world.run_epoch(0, {key("a"): row(1.0)})
    world.run_epoch(1, {key("a"): row(2.0)})
    world.driver_dies()
    for server in world.servers.values():
        server.forget()
    before = changelog_of(world)
    dropped(world)
    assert changelog_of(world) is None
    assert on_record(world) == {f"generation/{QUERY}", f"opened/{QUERY}"}
    with pytest.raises(UnknownState, match="no query 'main' on record; it has: none"):
        dropped(world)
    done = world.run_epoch(0, {key("b"): row(3.0)}, spark_query_id="spark-2")
    assert (done.epoch, done.replayed) == (1, False)
    records = MemoryChangelog(world.kafka, APPLICATION).control("reader").read(SECONDS)
    assert generations(records) == {QUERY: 2}
    assert changelog_of(world) not in (None, before)
    reader = MemoryChangelog(world.kafka, APPLICATION).reader()
    assert sum(reader.ends({STATE: range(descriptor().key_groups)}, SECONDS).values()) > 0


def test_a_run_that_goes_on_regardless_is_fenced_and_writes_nothing(world: World) -> None:
    world.run_epoch(0, {key("a"): row(1.0)})
    dropped(world)
    with pytest.raises(KeyholeError) as failed:
        world.run_epoch(1, {key("a"): row(2.0)})
    assert isinstance(failed.value, Fenced) or isinstance(failed.value.__cause__, Fenced), failed.value
    assert on_record(world) == {f"generation/{QUERY}", f"opened/{QUERY}"}
    assert changelog_of(world) is None


def test_other_queries_of_the_application_keep_all_that_they_have(world: World) -> None:
    world.run_epoch(0, {key("a"): row(1.0)})
    world.driver_dies()
    changelog = MemoryChangelog(world.kafka, APPLICATION)
    other = changelog.control("other")
    other.open(SECONDS)
    other.append(record("state", "others", descriptor(state="others", query="other")), SECONDS)
    world.kafka.ensure(topic_name(APPLICATION, "others"), 4)
    dropped(world)
    assert on_record(world) == {f"generation/{QUERY}", f"opened/{QUERY}", "state/others"}
    assert world.kafka.topic_id(topic_name(APPLICATION, "others")) is not None


def test_no_query_of_this_name_is_told_with_those_there_are_and_leaves_no_record(world: World) -> None:
    world.run_epoch(0, {key("a"): row(1.0)})
    before = on_record(world)
    with pytest.raises(UnknownState, match="no query 'mian' on record; it has: 'main'"):
        drop(APPLICATION, "mian", MemoryChangelog(world.kafka, APPLICATION), world.clock, SECONDS)
    assert on_record(world) == before


def test_nothing_of_an_application_that_is_being_restored_is_dropped(world: World) -> None:
    control = MemoryChangelog(world.kafka, APPLICATION).control(QUERY)
    control.open(SECONDS)
    control.append(record("savepoint", QUERY, SavepointRecord("s", "f", (STATE,), finished=False)), SECONDS)
    with pytest.raises(SavepointMismatch):
        dropped(world)


@pytest.mark.parametrize(
    ("topic", "right"),
    [
        (topic_name(APPLICATION, CONTROL), TopicRight.WRITE),
        (topic_name(APPLICATION, STATE), TopicRight.DELETE),
    ],
)
def test_who_may_not_drop_it_fences_nobody_and_leaves_it_as_it_is(world: World, topic: str, right: TopicRight) -> None:
    world.run_epoch(0, {key("a"): row(1.0)})
    before = on_record(world)
    world.kafka.denied = {(topic, right)}
    with pytest.raises(InvalidConfiguration, match=f"don't let the user of this process {right} topic {topic}"):
        dropped(world)
    world.kafka.denied = set()
    assert on_record(world) == before
    assert world.run_epoch(1, {key("a"): row(2.0)}).epoch == 2


class Counted(MemoryKafka):
    """Is away at one of the calls to it."""

    calls, away_at = 0, -1

    def reach(self) -> None:
        super().reach()
        self.calls += 1
        if self.calls == self.away_at:
            raise KafkaUnreachable("away at this call")


def test_who_is_broken_off_at_any_step_begins_again_and_all_of_it_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog = MemoryChangelog(world.kafka, APPLICATION)
    monkeypatch.setattr(world.kafka, "__class__", Counted)
    kafka = world.kafka
    assert isinstance(kafka, Counted)
    broken_off = 0
    for epoch in range(100):
        world.run_epoch(0, {key("a"): row(1.0)}, spark_query_id=f"spark-{epoch}")
        world.driver_dies()
        kafka.calls, kafka.away_at = 0, broken_off + 1
        try:
            drop(APPLICATION, QUERY, changelog, world.clock, SECONDS)
        except KafkaUnreachable:
            broken_off += 1
            kafka.away_at = -1
            drop(APPLICATION, QUERY, changelog, world.clock, SECONDS)
        kafka.away_at = -1
        assert on_record(world) == {f"generation/{QUERY}", f"opened/{QUERY}"}
        assert changelog_of(world) is None
        if broken_off <= epoch:
            break
    assert broken_off > 5

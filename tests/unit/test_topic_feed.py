"""A topic's feed goes through outages of Kafka and of a schema registry: it begins again, and each row counts once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import msgspec
import pytest

from keyhole.changelog.kafka.absences import APART_SECONDS
from keyhole.errors import ChangelogRecreated, Fenced, KafkaUnreachable, MalformedRequest
from keyhole.feed.feed_options import RecordFormat
from keyhole.feed.feeder import Feeder
from keyhole.feed.kafka.source import KafkaSource
from keyhole.feed.record_encoding import JsonEncoding, RegistryAway
from keyhole.feed.topic_feed import Behind, FeedFigures, TopicFeed
from keyhole.testing.clock import ManualClock
from tests.support.feeder_world import STATE, TOPIC, FeederProcess, World

ROWS = 40


class UnsteadyProcess(FeederProcess):
    """Kafka is away at one of its calls. Time passes with each of them."""

    away_in: int | None = None

    def call(self) -> None:
        self.world.clock.advance(0.3)
        if self.away_in is not None:
            if not self.away_in:
                raise KafkaUnreachable("Kafka is away")
            self.away_in -= 1


class FullProcess(UnsteadyProcess):
    """Kafka answers, and takes no record, as where replicas lack; from `full` on."""

    full = True
    asked = 0

    def call(self) -> None:
        super().call()
        self.asked += 1
        assert self.asked < 5_000, "it would go on for ever"

    def serve(self, *, waits: bool) -> None:
        super().serve(waits=waits and not self.full)


class WorldFeed(TopicFeed):
    """Feeds a world's topic. `away`: of each of its feeders, in which call Kafka is away; the last ones have it."""

    process: type[UnsteadyProcess] = UnsteadyProcess

    def __init__(
        self, world: World, stop: threading.Event, *away: int, from_earliest: bool = False, strict: bool = False
    ) -> None:
        super().__init__(
            "world", STATE, TOPIC, RecordFormat.JSON, world.clock, from_earliest=from_earliest, strict=strict
        )
        self.world = world
        self.opened: list[UnsteadyProcess] = []
        self.between: list[FeedFigures] = []
        self._stop = stop
        self._away = list(away)
        self.stop_at: int | None = None

    @contextmanager
    def _opened(self) -> Iterator[tuple[Feeder, Behind]]:
        self.between.append(self.figures)
        process = self.process(self.world, from_earliest=self._from_earliest, strict=self._strict)
        self.opened.append(process)
        if len(self.opened) == self.stop_at:
            self._stop.set()
        process.away_in = self._away.pop(0) if self._away else None

        def behind() -> int:
            left = sum(map(len, self.world.source)) - sum(process._positions.values())
            if not left:
                self._stop.set()
            return left

        yield process.feeder, behind
        process.serve(waits=True)


def world_of(rows: int = ROWS) -> World:
    world = World()
    for number in range(rows):
        world.append(0, {"id": f"k{number % 5}", "n": number + 1})
    world.append(0, {"id": 1})
    return world


@pytest.mark.parametrize("away", range(1, 60, 4))
def test_kafka_is_away_at_any_call_and_each_row_counts_once(away: int) -> None:
    world, stop = world_of(), threading.Event()
    feed = WorldFeed(world, stop, away, away + 9)
    feed.run(stop)
    assert len(feed.opened) == 3
    assert [figures.feeding for figures in feed.between] == [False] * 3
    assert world.counted() == world.expected()
    assert world.rejected() == world.unreadable()
    figures = feed.figures
    assert (figures.feeding, figures.behind) == (True, 0)
    assert figures.records >= ROWS
    assert figures.refused >= 1
    assert figures.why_refused


def test_it_waits_longer_each_time_and_for_less_once_a_feeder_has_begun() -> None:
    world, stop = world_of(0), threading.Event()
    before = world.clock.monotonic()
    WorldFeed(world, stop, *[0] * 12).run(stop)
    assert 12 * 0.3 < world.clock.monotonic() - before < 12 * 5.3 + 60


def test_the_earliest_records_are_for_the_first_start_alone() -> None:
    world, stop = world_of(), threading.Event()
    feed = WorldFeed(world, stop, 0, 40, from_earliest=True)
    feed.run(stop)
    assert [process.feeder._from_earliest for process in feed.opened] == [True, True, False]


@pytest.mark.parametrize("error", [Fenced("another feeder has begun"), ChangelogRecreated("made anew")], ids=repr)
def test_what_no_wait_mends_ends_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    world, stop = world_of(), threading.Event()

    def refuse(self: Feeder) -> None:
        raise error

    monkeypatch.setattr(Feeder, "start", refuse)
    with pytest.raises(type(error)):
        WorldFeed(world, stop).run(stop)


def test_one_that_is_told_to_stop_while_kafka_is_away_ends() -> None:
    world, stop = world_of(), threading.Event()
    feed = WorldFeed(world, stop, *[0] * 20)
    feed.stop_at = 10
    feed.run(stop)
    assert len(feed.opened) == 10
    assert feed.figures == FeedFigures()


def test_a_start_whose_boundary_is_not_taken_is_an_outage_and_one_that_is_told_to_stop_ends() -> None:
    world, stop = world_of(), threading.Event()

    class Full(FullProcess):
        def serve(self, *, waits: bool) -> None:
            super().serve(waits=waits)
            if self.world.clock.monotonic() > 60:
                stop.set()

    feed = WorldFeed(world, stop)
    feed.process = Full
    feed.run(stop)
    assert len(feed.opened) > 1
    assert not world.counted()


def test_one_that_is_told_to_stop_while_too_much_is_under_way_ends_and_the_next_one_sends_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keyhole.feed.feeder.MOST_WAITING", 5)
    world, stop = world_of(), threading.Event()

    class FullOnceItReads(FullProcess):
        def serve(self, *, waits: bool) -> None:
            self.full = bool(self._positions)
            super().serve(waits=waits)
            if self.feeder.waiting > 5 and self.asked > 100:
                stop.set()

    feed = WorldFeed(world, stop)
    feed.process = FullOnceItReads
    before = world.clock.monotonic()
    feed.run(stop)
    assert feed.opened[0].feeder.waiting <= 5 + 3
    assert "the next start sends the rest once more" in caplog.text
    assert world.clock.monotonic() - before < 120
    stop.clear()
    WorldFeed(world, stop).run(stop)
    assert world.counted() == world.expected()


class AwayEncoding(JsonEncoding):
    """JSON of which some records can't be read for so many tries, as if their schemas were not told."""

    def __init__(self, tries: int, *numbers: int) -> None:
        self.tries = dict.fromkeys(numbers, tries)

    def row(self, value: bytes) -> dict[str, Any]:
        found = super().row(value)
        number = found.get("n", 0)
        if self.tries.get(number, 0):
            self.tries[number] -= 1
            raise RegistryAway("it is away")
        return found


@pytest.mark.parametrize("tries", [1, 3, 40])
def test_a_registry_that_is_away_is_waited_for_and_no_record_is_given_up_or_sent_each_time(tries: int) -> None:
    world, stop = world_of(), threading.Event()
    world.add_partition()
    for number in range(ROWS):
        world.append(1, {"id": f"k{number % 5}", "n": 100 + number})

    class Process(UnsteadyProcess):
        encoding = AwayEncoding(tries, 10, 110, 111)

    feed = WorldFeed(world, stop)
    feed.process = Process
    feed.run(stop)
    assert len(feed.opened) == 1 + 3 * tries
    assert {(figures.feeding, figures.waits_for) for figures in feed.between[1:]} == {(False, "the schema registry")}
    assert world.counted() == world.expected()
    assert world.rejected() == world.unreadable(), "only what no registry makes readable"
    assert max(map(len, world.sent().values())) == 1, "each begins at the record that could not be read"
    assert feed.figures.feeding


def test_the_registry_is_asked_less_often_each_time_until_it_answers() -> None:
    world, stop = world_of(), threading.Event()

    class Process(UnsteadyProcess):
        encoding = AwayEncoding(30, 10)

    feed, before = WorldFeed(world, stop), world.clock.monotonic()
    feed.process = Process
    feed.run(stop)
    assert world.clock.monotonic() - before > 20 * 2.5


def test_one_that_is_told_to_stop_while_the_registry_is_away_ends() -> None:
    world, stop = world_of(), threading.Event()

    class Process(UnsteadyProcess):
        encoding = AwayEncoding(1000, 10)

    feed = WorldFeed(world, stop)
    feed.process, feed.stop_at = Process, 5
    feed.run(stop)
    assert len(feed.opened) == 5


def world_with_two_unfit() -> World:
    """In one partition records 3 and 5 can't be fed, and in the other one none."""
    world = World()
    world.add_partition()
    for number in range(8):
        world.append(0, {"id": "a", "n": number + 1} if number not in (3, 5) else {"id": 70007})
        world.append(1, {"id": "b", "n": 100 + number})
    return world


@pytest.mark.parametrize("away", [None, *range(1, 40, 3)])
def test_a_strict_one_ends_at_the_first_record_that_can_not_be_fed_and_says_which(away: int | None) -> None:
    world, stop = world_with_two_unfit(), threading.Event()
    feed = WorldFeed(world, stop, *(() if away is None else (away,)), strict=True)
    with pytest.raises(MalformedRequest) as caught:
        feed.run(stop)
    assert caught.value.facts == {"topic": TOPIC, "partition": "0", "offset": "3"}
    assert "the record at offset 3 of partition 0 of topic orders can't be fed: " in caught.value.message
    assert "70007" not in caught.value.message
    assert world.rejected() == set()
    expected = world.expected()
    counted = world.counted()
    assert {at: n for at, n in counted.items() if at[0] == 0} == {(0, of): expected[0, of] for of in range(3)}
    assert counted.items() <= expected.items()
    assert feed.figures.refused == 0


def test_a_start_that_is_strict_again_ends_there_again_and_one_that_is_not_goes_on_from_there() -> None:
    world, stop = world_with_two_unfit(), threading.Event()
    for _ in range(3):
        with pytest.raises(MalformedRequest, match="offset 3 of partition 0"):
            WorldFeed(world, stop, strict=True).run(stop)
    WorldFeed(world, stop).run(stop)
    assert world.counted() == world.expected()
    assert world.rejected() == {(0, 3), (0, 5)}
    assert max(map(len, world.sent().values())) == 1, "what was before it was not sent once more"


def test_a_strict_one_that_comes_past_where_another_was_ends_at_the_next() -> None:
    world, stop = world_with_two_unfit(), threading.Event()
    world.source[0], later = world.source[0][:4], world.source[0][4:]
    WorldFeed(world, stop).run(stop)
    world.source[0] += later
    stop.clear()
    with pytest.raises(MalformedRequest, match="offset 5 of partition 0"):
        WorldFeed(world, stop, strict=True).run(stop)


class _Unheard:
    """A broker that has heard of no topic."""

    def __init__(self, *_: object) -> None:
        pass

    def describe(self, *_: object) -> None:
        return None

    def close(self) -> None:
        pass


def test_a_topic_is_gone_once_two_looks_in_turn_have_not_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started may not have heard of every topic yet."""
    for module in ("source", "updates_topic"):
        monkeypatch.setattr(f"keyhole.feed.kafka.{module}.Topics", _Unheard)
    clock = ManualClock()
    fed = msgspec.structs.replace(STATE, updates_topic_id="updates-1")
    feed = TopicFeed("kafka:1", fed, TOPIC, RecordFormat.JSON, clock)
    with ExitStack() as opened:
        with pytest.raises(KafkaUnreachable, match="has not heard of it"):
            feed._opened_topics(opened, feed._is_gone)
        source = opened.enter_context(closing(KafkaSource("kafka:1", TOPIC, feed._is_gone)))
        with pytest.raises(KafkaUnreachable, match="has not heard of it"):
            source.look()
        clock.advance(APART_SECONDS)
        with pytest.raises(ChangelogRecreated, match=r"does not exist any more.*keyhole drop"):
            feed._opened_topics(opened, feed._is_gone)
        with pytest.raises(ChangelogRecreated, match="does not exist"):
            source.look()
        # Once it was found, one look that misses it is the first again.
        feed._absences.found(TOPIC)
        clock.advance(30.0)
        with pytest.raises(KafkaUnreachable):
            source.look()
        # Who looks once is told so at once.
        with pytest.raises(ChangelogRecreated):
            feed._opened_topics(opened)

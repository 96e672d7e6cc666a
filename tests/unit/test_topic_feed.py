"""A topic's feed goes through outages of Kafka: it begins again at the last boundary, and each row counts once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from keyhole.errors import ChangelogRecreated, Fenced, KafkaUnreachable
from keyhole.feed.feeder import Feeder
from keyhole.feed.options import RecordFormat
from keyhole.feed.topic_feed import Behind, FeedFigures, TopicFeed
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

    def __init__(self, world: World, stop: threading.Event, *away: int, from_earliest: bool = False) -> None:
        super().__init__("world", STATE, TOPIC, RecordFormat.JSON, world.clock, from_earliest=from_earliest)
        self.world = world
        self.opened: list[UnsteadyProcess] = []
        self.between: list[FeedFigures] = []
        self._stop = stop
        self._away = list(away)
        self.stop_at: int | None = None

    @contextmanager
    def _opened(self) -> Iterator[tuple[Feeder, Behind]]:
        self.between.append(self.figures)
        process = self.process(self.world, from_earliest=self._from_earliest)
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

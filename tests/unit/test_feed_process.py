"""A process that holds a feed run and feeds: how it ends when it is told to, is replaced, or can't go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec
import pytest

from keyhole.changelog.settings import refused_right
from keyhole.coordinator.feed_run import FeedRun
from keyhole.errors import (
    ChangelogRecreated,
    EpochFailed,
    Fenced,
    InvalidConfiguration,
    KafkaUnreachable,
    KeyholeError,
    StateConflict,
)
from keyhole.feed.process import FeedProcess
from keyhole.feed.topic_feed import FeedFigures
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.memory_kafka import NextCommit
from tests.support.refused_starts import snapshot
from tests.support.simulation import SimulatedFleet, World
from tests.support.states import descriptor
from tests.support.waiting import PATIENCE_SECONDS

SUM = descriptor(
    kind=StateKind.REDUCING, reducers=("sum",), value=ValueSchema(1, (ValueField("n", "double"),)), topic_id=""
)


class FakeFeed:
    """A feed that reads a record a look, until it is stopped; `fails`: what it ends with at once; `refuses`: why it
    can't begin; `denied`: what Kafka doesn't let it do.
    """

    def __init__(
        self,
        of: StateDescriptor,
        fails: BaseException | None,
        refuses: KeyholeError | None,
        denied: KeyholeError | None = None,
    ) -> None:
        self.of = of
        self.figures = FeedFigures()
        self.finished = False
        self.recorded: Collection[str] | None = None
        self._fails = fails
        self._refuses = refuses
        self._denied = denied

    def check_rights(self) -> None:
        if self._denied is not None:
            raise self._denied

    def sources(self) -> Mapping[str, str]:
        return {"id-1": "orders"}

    def check(self, recorded: Collection[str]) -> None:
        self.recorded = recorded
        if self._refuses is not None:
            raise self._refuses

    def run(self, stop: threading.Event) -> None:
        if self._fails is not None:
            raise self._fails
        self.figures = FeedFigures(True, 1)
        assert stop.wait(PATIENCE_SECONDS)
        self.figures = FeedFigures(True, 2, behind=0)
        self.finished = True


class Processes:
    """Makes processes of one world's state, and closes them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.made: list[FeedProcess] = []
        self.feeds: list[FakeFeed] = []
        self.refuses: KeyholeError | None = None
        self.denied: KeyholeError | None = None

    def start(self, fails: BaseException | None = None, *, take_over: bool = True) -> FeedProcess:
        process = self.make(SUM, fails, take_over=take_over)
        process.start()
        return process

    def make(self, of: StateDescriptor, fails: BaseException | None = None, *, take_over: bool = True) -> FeedProcess:
        def feed_of(of: StateDescriptor, topic_id: str) -> FakeFeed:
            feed = FakeFeed(of, fails, self.refuses, self.denied)
            if topic_id:  # else it is only asked for it
                self.feeds.append(feed)
            return feed

        world = self.world
        fleet = SimulatedFleet(world)
        changelog = MemoryChangelog(world.kafka, "app")
        run = FeedRun(world.config, SUM.query, changelog, world.clock, fleet=fleet, heartbeat_seconds=1e6)
        self.made.append(FeedProcess(run, of, 0, feed_of, world.clock, take_over=take_over))
        return self.made[-1]


@pytest.fixture
def processes() -> Iterator[Processes]:
    world = World(SUM)
    made = Processes(world)
    yield made
    for process in made.made:
        process.close()
    world.close()


def once(act: Callable[[], object]) -> Callable[[FeedFigures], None]:
    """Does it when the first figures are shown that a feed has told."""
    done = threading.Event()

    def show(figures: FeedFigures) -> None:
        if figures.feeding and not done.is_set():
            done.set()
            act()

    return show


def test_told_to_stop_it_feeds_to_its_end_and_says_how_far_it_came(processes: Processes) -> None:
    process, stop = processes.start(), threading.Event()
    assert process.feed(stop, once(stop.set)) == FeedFigures(True, 2, behind=0)
    (feed,) = processes.feeds
    assert feed.finished
    assert feed.of.updates_topic_id, "it is fed as it is on record"


def test_a_second_process_ends_the_first_which_says_who_took_over(processes: Processes) -> None:
    first, stop = processes.start(), threading.Event()

    def replace() -> None:
        processes.start()
        with pytest.raises(Fenced):
            first._run.beat(0.0)

    with pytest.raises(Fenced, match=r"taken over from its run 1, which must stop: by run 2 \(") as caught:
        first.feed(stop, once(replace))
    assert stop.is_set()
    assert processes.feeds[0].finished
    assert "Is the job running twice?" in caught.value.message


@pytest.mark.parametrize("fate", [NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, NextCommit.IS_LOST_AND_NOT_ANSWERED])
def test_one_that_can_not_know_what_is_on_record_ends_and_the_next_start_goes_on(
    processes: Processes, fate: NextCommit
) -> None:
    first = processes.start()

    def be_lost() -> None:
        processes.world.kafka.next_commit = fate
        with pytest.raises(EpochFailed, match="unknown outcome"):
            first._run.beat(0.0)

    with pytest.raises(KafkaUnreachable, match="Start it again: it goes on where this one was"):
        first.feed(threading.Event(), once(be_lost))
    assert processes.feeds[0].finished
    first.close()
    second, stop = processes.start(take_over=False), threading.Event()
    assert second.feed(stop, once(stop.set)).feeding
    second._run.beat(0.0)


def test_who_took_over_is_waited_for_until_it_is_on_record(processes: Processes) -> None:
    first, stop = processes.start(), threading.Event()
    asked = first._run.fenced_by

    def fence() -> None:
        MemoryChangelog(processes.world.kafka, "app").control(SUM.query).open(1.0)
        with pytest.raises(Fenced, match="nobody is on record who has"):
            first._run.beat(0.0)

    def then_it_is_on_record() -> Fenced | None:
        answer = asked()
        if len(processes.made) == 1:
            processes.start()
        return answer

    first._run.fenced_by = then_it_is_on_record  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="by run 2") as caught:
        first.feed(stop, once(fence))
    assert "nobody" not in caught.value.message


def test_a_lease_that_is_lost_first_is_told_as_what_it_is(processes: Processes) -> None:
    first = processes.start(Fenced("keyhole.app.counts.feed.orders was taken over"))
    processes.start()
    with pytest.raises(Fenced, match="by run 2"):
        first.feed(threading.Event(), lambda figures: None)


def test_a_lease_that_is_lost_to_nobody_s_run_is_told_as_it_came(processes: Processes) -> None:
    lost = Fenced("keyhole.app.counts.feed.orders was taken over")
    with pytest.raises(Fenced) as caught:
        processes.start(lost).feed(threading.Event(), lambda figures: None)
    assert caught.value is lost


@pytest.mark.parametrize("error", [InvalidConfiguration("no"), RuntimeError("a bug")], ids=repr)
def test_what_a_feed_ends_with_ends_the_process(processes: Processes, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        processes.start(error).feed(threading.Event(), lambda figures: None)
    assert caught.value is error


def test_one_that_has_ended_is_followed_by_one_that_goes_on(processes: Processes) -> None:
    first, stop = processes.start(), threading.Event()
    first.feed(stop, once(stop.set))
    first.close()
    second, stop = processes.start(), threading.Event()
    second.feed(stop, once(stop.set))
    assert processes.feeds[0].of == processes.feeds[1].of


def test_a_column_that_is_added_is_a_newer_schema_that_is_fed_from_then_on(processes: Processes) -> None:
    first = processes.start()
    first.close()
    more = ValueSchema(1, (*SUM.value.fields, ValueField("rows", "bigint")))
    process = processes.make(msgspec.structs.replace(SUM, value=more, reducers=("sum", "sum")))
    process.start()
    stop = threading.Event()
    process.feed(stop, once(stop.set))
    of = processes.feeds[-1].of
    assert (of.value.version, [field.name for field in of.value.fields]) == (2, ["n", "rows"])


def test_a_start_beside_a_process_that_goes_on_is_refused_and_says_who_that_is(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, sleep = processes.start(), processes.world.clock.sleep

    def beats(seconds: float) -> None:
        sleep(seconds)
        first._run.beat(0.0)

    monkeypatch.setattr(processes.world.clock, "sleep", beats)
    for _ in range(2):
        with pytest.raises(StateConflict, match=r"goes on: run 1 \(run id .* process \d+ on .*--take-over"):
            processes.start(take_over=False)
    first._run.beat(0.0)


def test_a_process_that_has_died_is_followed_once_it_is_silent(processes: Processes) -> None:
    processes.start(take_over=False)
    before = processes.world.clock.monotonic()
    second, stop = processes.start(take_over=False), threading.Event()
    assert 3 <= processes.world.clock.monotonic() - before < 10
    assert isinstance(second._run, FeedRun)
    assert second._run.generation == 2
    assert second.feed(stop, once(stop.set)).records == 2


def test_figures_that_can_t_be_shown_end_the_feed(processes: Processes) -> None:
    process, stop = processes.start(), threading.Event()

    def nobody_reads() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        process.feed(stop, once(nobody_reads))
    assert stop.is_set()


def test_a_start_that_is_refused_leaves_the_process_before_it_as_it_is(processes: Processes) -> None:
    first, stop = processes.start(), threading.Event()
    other = descriptor(value=ValueSchema(1, (ValueField("n", "bigint"),)), topic_id="")
    refused = processes.make(other)
    with pytest.raises(KeyholeError):
        refused.start()
    first._run.beat(0.0)
    assert first.feed(stop, once(stop.set)).records == 2


def test_one_that_kafka_does_not_let_feed_takes_nothing_over(processes: Processes) -> None:
    """Whoever may not read its source, or keep its positions, took the state from the process that fed it, and died."""
    first, stop = processes.start(), threading.Event()
    before = snapshot(processes.world)
    processes.denied = refused_right("orders", "READ")
    with pytest.raises(InvalidConfiguration, match="READ topic orders"):
        processes.start(take_over=True)
    assert snapshot(processes.world) == before
    first._run.beat(0.0)
    assert first.feed(stop, once(stop.set)).records == 2


def test_a_topic_that_a_real_time_query_feeds_is_taken_from_nobody(processes: Processes) -> None:
    world = processes.world
    changelog, fleet = MemoryChangelog(world.kafka, "app"), SimulatedFleet(world)
    query = FeedRun(world.config, SUM.query, changelog, world.clock, fleet=fleet, heartbeat_seconds=1e6)
    query.start({SUM: 0}, sources={"id-1.spent": "orders"})
    with pytest.raises(StateConflict, match="topic orders feeds state 'counts' already, by a real-time query"):
        processes.start(take_over=True)
    assert not processes.feeds, "that is on record, and no log is read for it"
    query.beat(0.0)
    query.close()


def test_what_feeds_a_state_is_on_record_by_the_time_it_is_fed(processes: Processes) -> None:
    processes.start().close()
    processes.start()
    assert [feed.recorded for feed in processes.feeds] == [("id-1",)]


def test_one_that_could_not_feed_takes_nothing_over(processes: Processes) -> None:
    """A wrong topic, of which records were deleted, ended the process that fed the right one."""
    first, stop = processes.start(), threading.Event()
    processes.refuses = ChangelogRecreated("records of topic other were deleted before they were fed")
    with pytest.raises(ChangelogRecreated, match="topic other"):
        processes.start(take_over=True)
    first._run.beat(0.0)
    processes.refuses = None
    assert first.feed(stop, once(stop.set)).records == 2

"""Which starts of streaming queries get a caretaker, and when it ends: without Spark, without servers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Addresses
from keyhole.spark.driver import query_starts
from keyhole.spark.driver.query_starts import QueryStart, StartListener
from keyhole.spark.write_path.caretakers import CaredName, Caretakers
from tests.support.caretaking import NoAddresses
from tests.support.waiting import until

CONFIG = JobConfig("app", ("a:1",), "kafka:1")


@dataclass(eq=False)
class FakeCaretaker:
    """Runs until it is left, or its query ends."""

    query: str
    states: Mapping[str, int]
    spark_query_id: str
    left: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    again: bool = False

    def run(self, alive: Callable[[], bool]) -> bool:
        while alive() and not self.again and not self.left.wait(0.01):
            pass
        self.ended.set()
        return self.again

    def leave(self) -> None:
        self.left.set()

    def close(self) -> None:
        self.ended.set()


@dataclass(eq=False)
class FakeSink:
    """Of states; `query`: as the user has given it."""

    made: list[FakeCaretaker]
    standbys: dict[str, int]
    query: str = ""
    feeds: str = ""
    config: JobConfig = CONFIG
    again: bool = False

    def name_in(self, name: str | None) -> str:
        return self.query or name or next(iter(self.standbys))

    def feeds_another(self, run_id: str) -> bool:
        return self.feeds not in ("", run_id)

    def make_caretaker(
        self, config: JobConfig, query: str, standbys: Mapping[str, int], spark_query_id: str, addresses: Addresses
    ) -> FakeCaretaker:
        again, self.again = self.again, False
        self.made.append(FakeCaretaker(query, standbys, spark_query_id, again=again))
        return self.made[-1]


class FakeStart(QueryStart):
    """Lives until it is ended."""

    def alive(self) -> bool:
        return self.run_id not in _ended


_ended: set[str] = set()


@pytest.fixture
def made() -> Iterator[list[FakeCaretaker]]:
    """All that were made."""
    caretakers: list[FakeCaretaker] = []
    yield caretakers
    _ended.update(("run-1", "run-2"))
    for caretaker in caretakers:
        assert caretaker.ended.wait(10)
    _ended.clear()


@pytest.fixture
def caretakers() -> Caretakers:
    return Caretakers(0.05, lambda config: NoAddresses())


def start(run_id: str = "run-1", name: str | None = None) -> QueryStart:
    return FakeStart("spark-1", run_id, name, None)


def test_a_query_without_a_first_batch_has_a_caretaker_until_that_comes(
    caretakers: Caretakers, made: list[FakeCaretaker]
) -> None:
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: made)
    (caretaker,) = made
    assert (caretaker.query, caretaker.states, caretaker.spark_query_id) == ("main", {"s": 1}, "spark-1")
    assert not caretaker.ended.wait(0.2)
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-1")
    assert caretaker.left.is_set()
    assert caretaker.ended.wait(10)
    until(lambda: not caretakers._caring)


def test_a_query_whose_first_batch_comes_soon_has_none(caretakers: Caretakers, made: list[FakeCaretaker]) -> None:
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.started(start())
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-1")
    threading.Event().wait(0.3)
    assert made == []


def test_its_end_ends_it_and_the_next_start_has_another(caretakers: Caretakers, made: list[FakeCaretaker]) -> None:
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-0")
    caretakers.started(start())
    until(lambda: made)
    _ended.add("run-1")
    assert made[0].ended.wait(10)
    caretakers.started(start("run-2"))
    until(lambda: len(made) == 2)
    assert not made[1].ended.wait(0.2)


def test_of_sinks_that_are_put_together_the_one_with_all_states_counts(
    caretakers: Caretakers, made: list[FakeCaretaker]
) -> None:
    sinks = [FakeSink(made, {"s": 1}), FakeSink(made, {"s": 1, "t": 0}), FakeSink(made, {"t": 0})]
    for sink in sinks:
        caretakers.watch(sink)
    caretakers.started(start(name="named"))
    until(lambda: made)
    assert [(of.query, of.states) for of in made] == [("named", {"s": 1, "t": 0})]


def test_sinks_of_a_query_under_names_of_their_own_have_one_each(
    caretakers: Caretakers, made: list[FakeCaretaker]
) -> None:
    sinks = [FakeSink(made, {"s": 1}), FakeSink(made, {"t": 0}), FakeSink(made, {"u": 0}, feeds="run-2")]
    for sink in sinks:
        caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: len(made) == 2)
    assert sorted(of.query for of in made) == ["s", "t"]  # the third one is fed by another query


def test_a_sink_that_nobody_has_any_more_is_none_of_a_query(caretakers: Caretakers, made: list[FakeCaretaker]) -> None:
    caretakers.watch(FakeSink(made, {"s": 1}))
    gc.collect()
    caretakers.started(start())
    threading.Event().wait(0.3)
    assert made == []


def test_one_that_can_not_know_what_is_on_record_is_followed_by_another(
    caretakers: Caretakers, made: list[FakeCaretaker]
) -> None:
    sink = FakeSink(made, {"s": 1}, again=True)
    caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: len(made) == 2)
    assert made[0].ended.wait(10)
    assert not made[1].ended.wait(0.1)


# --- what is heard of Spark -------------------------------------------------------------------------------------------


class Asked:
    """An event, or a session, of the JVM's: answers each question with its name, and notes it."""

    def __init__(self, asked: list[str], name: str = "") -> None:
        self._asked = asked
        self._name = name

    def __getattr__(self, name: str) -> Asked:
        return Asked(self._asked, name)

    def __call__(self, *arguments: object) -> Asked:
        self._asked.append(self._name)
        return self

    def __str__(self) -> str:
        return self._name


def test_of_a_batch_nothing_is_asked() -> None:
    asked: list[str] = []
    listener, event = StartListener(None, lambda start: None), Asked(asked)
    listener.onQueryProgress(event)
    listener.onQueryIdle(event)
    listener.onQueryTerminated(event)
    assert asked == []
    listener.onQueryStarted(event)
    assert sorted(set(asked)) == ["id", "name", "runId", "toString"]


def test_spark_that_has_stopped_runs_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def __getattr__(self, name: str) -> object:
            raise ConnectionError("no JVM any more")

    monkeypatch.setattr(query_starts.SparkContext, "_jvm", Gone())
    assert not QueryStart("spark-1", "run-1", None, Gone()).alive()

"""Which starts of streaming queries get a caretaker, and when it ends: without Spark, without servers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Addresses
from keyhole.errors import KafkaUnreachable, KeyholeError, ProtocolMismatch
from keyhole.model.epoch import EpochStamp
from keyhole.protocol.control import CompleteRecord, QueryControl, QueryRecord
from keyhole.spark.driver import query_starts
from keyhole.spark.driver.query_starts import QueryStart, StartListener
from keyhole.spark.write_path.caretakers import CaredName, Caretakers
from tests.support.caretaking import NoAddresses
from tests.support.sums import SUM
from tests.support.waiting import LONG_SECONDS, until

CONFIG = JobConfig("app", ("a:1",), "kafka:1")


@dataclass(eq=False)
class FakeCaretaker:
    """Runs until it is left, or its query ends."""

    query: str
    states: Mapping[str, int]
    spark_query_id: str
    begun: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    again: bool = False

    def run(self, alive: Callable[[], bool]) -> bool:
        self.begun.set()
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
        caretaker = FakeCaretaker(query, standbys, spark_query_id, again=again)
        self.made.append(caretaker)
        return caretaker


@dataclass
class FakeRecords:
    """What the control topic has: by query Spark's id of it, and its states."""

    queries: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    restoring: str = ""
    asked: list[tuple[str, bool]] = field(default_factory=list)
    fails: list[KeyholeError] = field(default_factory=list)

    def has(self, query: str, spark_query_id: str, *states: str) -> None:
        self.queries[query] = spark_query_id, frozenset(states)

    def read(self, config: JobConfig, query: str, decided: bool) -> QueryControl:
        self.asked.append((query, decided))
        if self.fails:
            raise self.fails.pop()
        states = {
            state: msgspec.structs.replace(SUM, state=state, query=name)
            for name, (_, of_query) in self.queries.items()
            for state in of_query
        }
        spark_query_id, _ = self.queries.get(query, ("", frozenset()))
        return QueryControl(
            states,
            query=QueryRecord(spark_query_id, base=0) if spark_query_id else None,
            complete=CompleteRecord.of(EpochStamp(1, 1, 0, 0), 0, {}, ""),
            restoring=self.restoring,
        )


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
    _ended.update(("run-1", "run-2", "run-3"))
    for caretaker in caretakers:
        assert caretaker.ended.wait(LONG_SECONDS)
    _ended.clear()


@pytest.fixture
def records() -> FakeRecords:
    """Of the query "main", with one state."""
    made = FakeRecords()
    made.has("main", "spark-1", "s")
    return made


@pytest.fixture
def caretakers(records: FakeRecords) -> Caretakers:
    return Caretakers(0.05, lambda config: NoAddresses(), records.read, again_seconds=0.05)


def start(run_id: str = "run-1", name: str | None = None, query_id: str = "spark-1") -> QueryStart:
    return FakeStart(query_id, run_id, name)


def over(caretakers: Caretakers) -> None:
    """Returns once nobody cares for any start any more."""
    until(lambda: not caretakers._runs)


def test_a_query_without_a_first_batch_has_a_caretaker_until_that_comes(
    caretakers: Caretakers, made: list[FakeCaretaker]
) -> None:
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: made)
    (caretaker,) = made
    assert (caretaker.query, caretaker.states, caretaker.spark_query_id) == ("main", {"s": 1}, "spark-1")
    assert caretaker.begun.wait(LONG_SECONDS)
    assert not caretaker.ended.wait(0.2)
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-1")
    assert caretaker.left.is_set()
    assert caretaker.ended.wait(LONG_SECONDS)
    over(caretakers)


def test_a_query_whose_first_batch_comes_soon_has_none(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_here = threading.Event()
    # The time for it ends once it is here, however slow the machine is.
    clock = SimpleNamespace(sleep=lambda seconds: is_here.wait(LONG_SECONDS))
    monkeypatch.setattr("keyhole.spark.write_path.caretakers.time", clock)
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.started(start())
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-1")
    is_here.set()
    over(caretakers)
    assert (made, records.asked) == ([], [])


def test_its_end_ends_it_and_the_next_start_has_another(caretakers: Caretakers, made: list[FakeCaretaker]) -> None:
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-0")
    caretakers.started(start())
    until(lambda: made)
    _ended.add("run-1")
    assert made[0].ended.wait(LONG_SECONDS)
    caretakers.started(start("run-2"))
    until(lambda: len(made) == 2)
    assert not made[1].ended.wait(0.2)


def test_of_sinks_that_are_put_together_the_one_with_all_states_counts(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker]
) -> None:
    records.has("named", "spark-1", "s", "t")
    sinks = [FakeSink(made, {"s": 1}), FakeSink(made, {"s": 1, "t": 0}), FakeSink(made, {"t": 0})]
    for sink in sinks:
        caretakers.watch(sink)
    caretakers.started(start(name="named"))
    until(lambda: made)
    assert [(of.query, of.states) for of in made] == [("named", {"s": 1, "t": 0})]
    assert records.asked == [("named", False)]


def test_sinks_of_a_query_under_names_of_their_own_have_one_each(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker]
) -> None:
    for name in "stu":
        records.has(name, "spark-1", name)
    sinks = [FakeSink(made, {"s": 1}), FakeSink(made, {"t": 0}), FakeSink(made, {"u": 0}, feeds="run-2")]
    for sink in sinks:
        caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: len(made) == 2)
    assert sorted(of.query for of in made) == ["s", "t"]  # the third one is fed by another query


def test_a_sink_that_nobody_has_any_more_is_none_of_a_query(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker]
) -> None:
    caretakers.watch(FakeSink(made, {"s": 1}, "main"))
    gc.collect()
    caretakers.started(start())
    over(caretakers)
    assert (made, records.asked) == ([], [])


def test_one_that_can_not_know_what_is_on_record_is_followed_by_another(
    caretakers: Caretakers, made: list[FakeCaretaker]
) -> None:
    sink = FakeSink(made, {"s": 1}, "main", again=True)
    caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: len(made) == 2)
    assert made[0].ended.wait(LONG_SECONDS)
    assert not made[1].ended.wait(0.1)


# --- several queries of one process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("of_b", [("b",), ("b", "c")], ids=["one state each", "one and two states"])
@pytest.mark.parametrize("named", [True, False], ids=["by query=", "by Spark's name"])
def test_two_idle_queries_have_a_caretaker_each(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker], named: bool, of_b: tuple[str, ...]
) -> None:
    states = {"qa": {"a": 0}, "qb": dict.fromkeys(of_b, 1)}
    ids = {"qa": "spark-1", "qb": "spark-2"}
    sinks = [FakeSink(made, of, query if named else "") for query, of in states.items()]
    for query, of in states.items():
        records.has(query, ids[query], *of)
    for sink in sinks:
        caretakers.watch(sink)
    caretakers.started(start("run-1", "qa", "spark-1"))
    until(lambda: made)
    caretakers.started(start("run-2", "qb", "spark-2"))
    until(lambda: len(made) == 2)
    assert [(of.query, of.states, of.spark_query_id) for of in made] == [
        (query, states[query], ids[query]) for query in ("qa", "qb")
    ]
    assert not made[0].ended.wait(0.2)
    caretakers.first_batch(CaredName.of(CONFIG, "qb"), "run-2")
    assert made[1].ended.wait(LONG_SECONDS)
    assert not made[0].ended.is_set()


def test_the_start_of_a_query_that_is_none_of_the_sinks_changes_nothing(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker]
) -> None:
    sinks = [FakeSink(made, {"s": 1}, "main"), FakeSink(made, {"t": 1})]
    for sink in sinks:
        caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: made)
    caretakers.started(start("run-2", "console", "spark-2"))
    until(lambda: list(caretakers._runs) == ["run-1"])
    assert {query for query, _ in records.asked} == {"main", "t", "console"}
    assert len(made) == 1
    assert not made[0].ended.is_set()


def test_a_start_that_is_refused_leaves_the_caretaker_of_another_run_alone(
    caretakers: Caretakers, made: list[FakeCaretaker]
) -> None:
    """It has the name, and another checkpoint."""
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: made)
    caretakers.started(start("run-2", query_id="spark-2"))
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-2")
    assert not made[0].left.is_set()
    assert not made[0].ended.wait(0.2)
    # And whether its own run has begun is known all the same.
    caretakers.first_batch(CaredName.of(CONFIG, "main"), "run-1")
    assert made[0].ended.wait(LONG_SECONDS)
    assert len(made) == 1


# --- what passes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KafkaUnreachable("away"), ProtocolMismatch("a record of a later version")])
def test_a_record_that_can_not_be_read_yet_is_read_again(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker], error: KeyholeError
) -> None:
    records.fails = [error, error]
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: made)
    assert records.fails == []


def test_a_restore_of_the_application_is_waited_for(
    caretakers: Caretakers, records: FakeRecords, made: list[FakeCaretaker]
) -> None:
    records.restoring = "savepoint-1"
    sink = FakeSink(made, {"s": 1}, "main")
    caretakers.watch(sink)
    caretakers.started(start())
    until(lambda: len(records.asked) > 2)
    assert made == []
    records.restoring = ""
    until(lambda: made)


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
    listener, event = StartListener(lambda start: None), Asked(asked)
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

    monkeypatch.setattr(SparkContext, "_jvm", Gone())
    monkeypatch.setattr(SparkSession, "_instantiatedSession", Gone())
    assert not QueryStart("spark-1", "run-1", None).alive()
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    assert not QueryStart("spark-1", "run-1", None).alive()


class Unheard:
    """A session that can't be listened to at first, as pyspark's own error says of one of Spark Connect's."""

    asked = 0

    def sessionUUID(self) -> str:  # noqa: N802 - Spark's name
        self.asked += 1
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "_jvm"})


@pytest.mark.parametrize("error", [TypeError("'JavaPackage' object is not callable"), ConnectionError()])
def test_a_session_that_can_not_be_heard_keeps_nobody_from_making_a_sink_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    listened: list[object] = []

    def fails(session: object, heard: object) -> None:
        listened.append(session)
        raise error

    sessions = query_starts._Sessions()
    monkeypatch.setattr(query_starts, "_SESSIONS", sessions)
    monkeypatch.setattr(query_starts._Sessions, "_listen", staticmethod(fails))
    query_starts.hear_starts(print, Unheard())
    session = Asked([], "session-1")
    query_starts.hear_starts(print, session)
    query_starts.hear_starts(print, session)
    assert len(listened) == 2
    monkeypatch.setattr(query_starts._Sessions, "_listen", staticmethod(lambda session, heard: listened.append(heard)))
    query_starts.hear_starts(print, session)
    query_starts.hear_starts(print, session)
    assert len(listened) == 3


def test_whoever_comes_second_waits_until_the_session_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    listening, go_on, returned = threading.Event(), threading.Event(), threading.Event()

    def slow(session: object, heard: object) -> None:
        listening.set()
        assert go_on.wait(LONG_SECONDS)

    monkeypatch.setattr(query_starts, "_SESSIONS", query_starts._Sessions())
    monkeypatch.setattr(query_starts._Sessions, "_listen", staticmethod(slow))
    session = Asked([], "session-1")
    first = threading.Thread(target=query_starts.hear_starts, args=(print, session))
    second = threading.Thread(target=lambda: [query_starts.hear_starts(print, session), returned.set()])
    first.start()
    assert listening.wait(LONG_SECONDS)
    second.start()
    assert not returned.wait(0.2)
    go_on.set()
    assert returned.wait(LONG_SECONDS)
    first.join(LONG_SECONDS)
    second.join(LONG_SECONDS)

"""The states of a transformWithState processor, read from servers: as Spark has them, without another shuffle.

One query has all the sinks: each of its two batches is given to one after the other.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from keyhole.errors import DeadlineExceeded, InvalidConfiguration
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.spark import queryable
from keyhole.spark.changes import own_rows, split
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.running import ROCKSDB
from keyhole.spark.sink import Sink
from keyhole.spark.write_path import stage_plan as staging
from keyhole.spark.write_path.stage_plan import StagedState
from tests.support.micro_batches import session_settings
from tests.support.refusals import longer_and_longer
from tests.support.scenario import Scenario, Scenarios

SCHEMA = "k string, v long, n long"


@pytest.fixture(scope="module", autouse=True)
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    with session_settings(spark, ROCKSDB):
        yield


class Highest(StatefulProcessor):
    """Per key the last value, all values since the last negative one, and how often each came.

    Args:
        taken: Counts the rows that it is given.
    """

    def __init__(self, taken: Accumulator[int] | None = None) -> None:
        self._taken = taken

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "v bigint")
        self._all = handle.getListState("all", "v bigint")
        handle.getValueState("unexposed", "v bigint")
        self._times = handle.getMapState("times", "of bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        from pyspark.sql import Row

        count = 0
        for row in sorted(rows, key=lambda row: row.n):
            count += 1
            if row.v < 0:
                for state in (self._last, self._all, self._times):
                    state.clear()
                continue
            self._last.update((row.v,))
            self._all.appendValue((row.v,))
            (times,) = self._times.getValue((row.v,)) or (0,)
            self._times.updateValue((row.v,), (times + 1,))
        if self._taken is not None:
            self._taken.add(count)
        yield Row(k=key[0], rows=count)

    def close(self) -> None:
        pass


EXPOSE: Any = {
    "last": queryable.ExposedValue("v bigint"),
    "all": queryable.ExposedList("v bigint", name="values"),
    "times": queryable.ExposedMap("of bigint", "n bigint"),
}
BATCHES = [
    [("a", 3), ("a", 3), ("b", 5), ("c", 1), ("c", -1)],
    [("a", 4), ("b", -1), ("b", 7), ("b", 7)],
]
OWN_ROWS = [("a", 1), ("a", 2), ("b", 1), ("b", 3), ("c", 2)]
"""Of both batches."""

PARTITIONS, MOST_SHUFFLED = 2, 3
"""Of the batch; and of what is shuffled once more, at most."""
IN_PLACE, SHUFFLED = 4, 3
"""Key groups: as many as go into the batch's partitions, and as many as don't."""


def exposing(*states: str, of: StatefulProcessor | None = None) -> queryable.QueryableProcessor:
    """All of them, where none is named."""
    return queryable.QueryableProcessor(
        of or Highest(), key="k", expose={name: EXPOSE[name] for name in states or EXPOSE}
    )


def write_json(folder: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """In a task: a file for each call."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    (folder / uuid.uuid4().hex).write_text(json.dumps(rows))


def read_nothing(folder: Path, batches: Iterator[pa.RecordBatch]) -> None:
    (folder / uuid.uuid4().hex).write_text("[]")


@dataclass(frozen=True)
class Writing:
    """One of the sinks that write the processor's own rows in its tasks."""

    key_groups: int
    beside_another_state: bool
    write: Callable[[Path, Iterator[pa.RecordBatch]], None]

    def __str__(self) -> str:
        place = "in place" if self.key_groups == IN_PLACE else "shuffled once more"
        return f"{self.write.__name__}, {'beside another state' if self.beside_another_state else 'alone'}, {place}"


# Each of the three ways beside each of the others.
WRITING = [
    Writing(IN_PLACE, False, write_json),
    Writing(IN_PLACE, True, read_nothing),
    Writing(SHUFFLED, False, read_nothing),
    Writing(SHUFFLED, True, write_json),
]
WRITING_BY_NAME = {str(writing): writing for writing in WRITING}

Held = dict[tuple[str, int], Any]
"""By state and partition, what servers hold, whoever has staged it."""


@dataclass
class Fed:
    """What the query has shown, by sink.

    Attributes:
        passes: The exchanges of each pass of each batch, beside the batch's own.
        own: The rows that `rows=` was given, each with its batch.
        held: What servers hold of an epoch after it was staged once, and when it was staged anew, as where a server was
            lost.
        plans: By which each batch was staged.
        wide: By which its joined rows would be made before it is known how few they are.
        taken: The rows that the processor has been given, of both batches.
    """

    scenario: Scenario
    passes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    own: dict[int, list[tuple[int, str, int]]] = field(default_factory=lambda: defaultdict(list))
    held: dict[str, list[tuple[Held, Held]]] = field(default_factory=lambda: defaultdict(list))
    plans: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    wide: list[str] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)
    refused: InvalidConfiguration | None = None

    def application(self, name: str) -> str:
        """Of a sink."""
        return f"{self.scenario.application}-{name.translate({ord(' '): '-', ord(','): None})}"

    def query(self, name: str) -> Any:
        """What tells a sink from the others: each has an application of its own, and is one of the query's names."""
        application = self.application(name)
        return {"config": self.scenario.service.config(application), "query": application}

    def get(self, name: str, state: str, keys: str = "abc") -> dict[str, Any]:
        """The values that there are."""
        answers = self.scenario.client.get_many(self.application(name), state, list(keys))
        return {key: answer.value for key, answer in zip(keys, answers, strict=True) if answer.found}

    @contextlib.contextmanager
    def staged_twice(self, name: str) -> Iterator[None]:
        stage_all = staging.stage_all

        def stage(staged: Sequence[StagedState], order: StageOrder) -> list[PartitionReceipt]:
            first = stage_all(staged, order)
            plans = [classic(plan)._jdf.queryExecution() for one in staged for plan in one.receipts(order)]
            self.plans[name] += [plan.executedPlan().toString() for plan in plans]
            again = stage_all(staged, order)
            self.held[name].append((held(first), held(again)))
            return again

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "stage_all", stage)
            yield


def held(receipts: Sequence[PartitionReceipt]) -> Held:
    return {(of.state, of.partition): [sorted(server.groups, key=str) for server in of.servers] for of in receipts}


def plain_sink(fed: Fed, key_groups: int) -> Sink:
    def take(rows: DataFrame, batch_id: int) -> None:
        fed.own[key_groups].extend((batch_id, row.k, row.rows) for row in rows.collect())

    return queryable.exposed(exposing(), rows=take, key_groups=key_groups, **fed.query(f"plain-{key_groups}"))


def joined_sink(fed: Fed) -> Sink:
    """A state of the processor's own rows with those of a table of which Spark doesn't know that few are wanted."""
    choose = "CASE WHEN id < 3 THEN char(97 + id) ELSE string(id) END AS k"
    many = fed.scenario.spark.range(20_000).selectExpr(choose, "id AS w")

    def wide(batch: DataFrame) -> DataFrame:
        joined = own_rows(batch).join(many, "k").select("k", "rows", "w")
        fed.wide.append(classic(joined)._jdf.queryExecution().executedPlan().toString())
        return joined

    options = fed.query("joined")
    config = options["config"]
    return queryable.together(
        queryable.exposed(exposing("last"), key_groups=IN_PLACE, config=config),
        queryable.value("wide", key="k", key_groups=IN_PLACE, config=config).of(wide),
        **options,
    )


def writing_sink(fed: Fed, of: Writing, files: Path) -> Sink:
    files.mkdir()
    options, write = fed.query(str(of)), functools.partial(of.write, files)
    if not of.beside_another_state:
        return queryable.exposed(exposing(), write=write, key_groups=of.key_groups, **options)
    config = options["config"]
    sink = queryable.exposed(exposing(), write=write, key_groups=of.key_groups, config=config)
    rows = queryable.value("rows", key="k", value=["rows"], key_groups=4, config=config)
    return queryable.together(sink, rows.of(own_rows), **options)


def some_sink(fed: Fed, key_groups: int) -> Sink:
    """Of one of the states whose changes the batch holds."""
    files = fed.scenario.directory / f"some-{key_groups}"
    files.mkdir()
    write = functools.partial(read_nothing, files)
    return queryable.exposed(exposing("last"), write=write, key_groups=key_groups, **fed.query(f"some-{key_groups}"))


@pytest.fixture(scope="module")
def fed(spark: SparkSession, scenarios: Scenarios) -> Fed:
    fed = Fed(scenarios())
    taken = spark.sparkContext.accumulator(0)
    twice = {"joined": joined_sink(fed)}  # first, as Spark hasn't seen anything of the batch yet
    twice |= {f"plain-{key_groups}": plain_sink(fed, key_groups) for key_groups in (IN_PLACE, SHUFFLED)}
    once = {name: writing_sink(fed, of, fed.scenario.directory / name) for name, of in WRITING_BY_NAME.items()}
    once |= {f"some-{key_groups}": some_sink(fed, key_groups) for key_groups in (IN_PLACE, SHUFFLED)}
    expose = {"last": EXPOSE["last"], "unexposed": queryable.ExposedValue("v bigint")}
    refused = queryable.exposed(queryable.QueryableProcessor(Highest(), key="k", expose=expose), **fed.query("refused"))

    def feed(batch: DataFrame, batch_id: int) -> None:
        with session_settings(batch.sparkSession, {"spark.sql.shuffle.partitions": str(MOST_SHUFFLED)}):
            feed_all(batch, batch_id)

    def feed_all(batch: DataFrame, batch_id: int) -> None:
        for name, sink in twice.items():
            with fed.staged_twice(name):
                sink(batch, batch_id)
        for name, sink in once.items():
            before = taken.value
            sink(batch, batch_id)
            fed.taken[name] += taken.value - before
        with pytest.raises(InvalidConfiguration) as error:
            refused(batch, batch_id)
        fed.refused = error.value

    numbers = itertools.count()
    # What makes files so long is not read; but Spark takes a batch that it hasn't seen for as large as its source.
    batches = [[{"k": k, "v": v, "n": next(numbers), "unread": "-" * 10_000} for k, v in batch] for batch in BATCHES]
    changes = exposing(of=Highest(taken)).transform(fed.scenario.stream(SCHEMA, batches), "k string, rows int")
    with session_settings(spark, {"spark.sql.autoBroadcastJoinThreshold": "10KB"}):
        fed.scenario.run(changes, "update", feed, partitions=PARTITIONS)
    for key_groups in (IN_PLACE, SHUFFLED):
        fed.passes[key_groups] = [plan.count("Exchange ") for plan in fed.plans[f"plain-{key_groups}"]]
    return fed


placed = pytest.mark.parametrize("key_groups", [IN_PLACE, SHUFFLED], ids=["Spark's partitions", "shuffled once more"])
written = pytest.mark.parametrize("name", WRITING_BY_NAME)


@placed
def test_the_states_of_a_processor_are_read_as_spark_has_them(fed: Fed, key_groups: int) -> None:
    name, scan = (
        f"plain-{key_groups}",
        functools.partial(fed.scenario.client.scan, fed.application(f"plain-{key_groups}")),
    )
    assert {key: value.v for key, value in fed.get(name, "last").items()} == {"a": 4, "b": 7}
    values = {key: [of.v for of in scan("values", key).values] for key in "abc"}
    assert values == {"a": [3, 3, 4], "b": [7, 7], "c": []}
    times = {key: [(of.map_key, of.value.n) for of in scan("times", key)] for key in "abc"}
    assert times == {"a": [(3, 2), (4, 1)], "b": [(7, 2)], "c": []}
    assert {scan(state, "a").epoch for state in ("values", "times")} == {2}


@placed
def test_one_pass_of_a_batch_stages_all_states_and_shuffles_it_at_most_once(fed: Fed, key_groups: int) -> None:
    shuffles = {IN_PLACE: 0, SHUFFLED: 1}[key_groups]
    assert fed.passes[key_groups] == [shuffles, shuffles]


@pytest.mark.parametrize("name", [f"plain-{IN_PLACE}", f"plain-{SHUFFLED}", "joined"])
def test_rows_that_are_staged_anew_are_the_same(fed: Fed, name: str) -> None:
    assert len(fed.held[name]) == len(BATCHES)
    assert all(first == again for first, again in fed.held[name])


@placed
def test_a_processors_own_rows_are_given_once_each_with_their_batch(fed: Fed, key_groups: int) -> None:
    assert sorted(fed.own[key_groups]) == [(0, "a", 2), (0, "b", 1), (0, "c", 2), (1, "a", 1), (1, "b", 3)]


def test_joined_rows_are_staged_alike_when_spark_knows_how_small_the_batch_is(fed: Fed) -> None:
    """It then broadcasts the batch, in place of moving it to where the other rows of its keys are."""
    assert all("SortMergeJoin" in plan for plan in fed.wide)
    assert any("BroadcastHashJoin" in plan for plan in fed.plans["joined"]), "Spark plans otherwise now"
    answers = fed.get("joined", "wide")
    assert {key: (of.rows, of.w) for key, of in answers.items()} == {"a": (1, 0), "b": (3, 1), "c": (2, 2)}


@written
def test_own_rows_are_written_once_in_each_task(fed: Fed, name: str) -> None:
    files = list((fed.scenario.directory / name).iterdir())
    assert len(files) == PARTITIONS * len(BATCHES)
    found = sorted((row["k"], row["rows"]) for file in files for row in json.loads(file.read_text()))
    assert found == (OWN_ROWS if WRITING_BY_NAME[name].write is write_json else [])


@written
def test_a_batch_whose_own_rows_are_written_runs_once(fed: Fed, name: str) -> None:
    assert fed.taken[name] == sum(map(len, BATCHES))


@written
def test_states_are_staged_beside_own_rows_that_are_written(fed: Fed, name: str) -> None:
    assert {key: of.v for key, of in fed.get(name, "last").items()} == {"a": 4, "b": 7}
    if WRITING_BY_NAME[name].beside_another_state:
        assert {key: of.rows for key, of in fed.get(name, "rows").items()} == {"a": 1, "b": 3, "c": 2}


@placed
def test_changes_of_states_that_the_sink_does_not_have_are_left_out(fed: Fed, key_groups: int) -> None:
    assert {key: of.v for key, of in fed.get(f"some-{key_groups}", "last").items()} == {"a": 4, "b": 7}


def test_a_state_that_the_batches_processor_does_not_expose_is_refused_by_name(fed: Fed) -> None:
    assert fed.refused is not None
    assert "no changes of state 'unexposed': its processor doesn't expose it" in fed.refused.message


def test_a_state_that_is_not_declared_is_not_served_and_declared_again_it_has_what_it_had_and_what_changes_from_then_on(
    scenarios: Scenarios,
) -> None:
    scenario = scenarios()
    batches: list[list[dict[str, Any]]] = []
    runs: list[tuple[str, list[tuple[str, int]]]] = [
        ("last", [("a", 1), ("b", 1)]),
        ("all", [("a", 2), ("b", 2)]),
        ("last", [("b", 3), ("c", 3)]),
    ]
    for exposed, rows in runs:
        batches.append([{"k": k, "v": v, "n": v} for k, v in rows])
        processor = exposing(exposed)
        sink = queryable.exposed(processor, query="main", key_groups=4, config=scenario.config)
        scenario.run(processor.transform(scenario.stream(SCHEMA, batches), "k string, rows int"), "update", sink)
    last = {key: scenario.get("last", key).value.v for key in "abc"}
    assert last == {"a": 1, "b": 3, "c": 3}, "Spark has 2 of a, as docs/spark-reference.md says"
    for seconds in longer_and_longer(3):
        with pytest.raises(DeadlineExceeded) as caught:
            scenario.scan("values", "a", timeout=seconds)
        if "cause" in caught.value.facts:  # on a slow machine the reason may come too late
            break
    assert "holds 0 of 4 key groups" in caught.value.message


def test_a_states_name_is_no_sql(spark: SparkSession) -> None:
    name = "it's `one`, ü"

    class Named(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._last = handle.getValueState(name, "v bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            self._last.update((sum(row.v for row in rows),))
            return iter(())

        def close(self) -> None:
            pass

    processor = queryable.QueryableProcessor(Named(), key="k", expose={name: queryable.ExposedValue("v bigint")})
    # A table: what is given out is the same as of a stream.
    batch = processor.transform(spark.createDataFrame([("a", 1), ("a", 2)], "k string, v long"), "k string")
    assert list(map(tuple, split(batch).changes[name].collect())) == [("put", "a", 3)]

"""The states of a transformWithState processor, read from servers: as Spark has them, without another shuffle."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from keyhole import Client
from keyhole.coordinator.receipts import PartitionReceipt, StageOrder
from keyhole.errors import DeadlineExceeded, InvalidConfiguration
from keyhole.spark import queryable, staging
from keyhole.spark.batch import classic
from keyhole.spark.changes import own_rows, split
from keyhole.spark.staging import StagedState
from tests.support.streams import RunQuery, Service, Stream

pytestmark = pytest.mark.usefixtures("rocksdb")


class Highest(StatefulProcessor):
    """Per key the last value, all values since the last negative one, and how often each came."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "v bigint")
        self._all = handle.getListState("values", "v bigint")
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
        yield Row(k=key[0], rows=count)

    def close(self) -> None:
        pass


EXPOSE: Any = {
    "last": queryable.ExposedValue("v bigint"),
    "values": queryable.ExposedList("v bigint"),
    "times": queryable.ExposedMap("of bigint", "n bigint"),
}
VALUES = [
    [("a", 3), ("a", 3), ("b", 5), ("c", 1), ("c", -1)],
    [("a", 4), ("b", -1), ("b", 7), ("b", 7)],
]


def held(receipts: Sequence[PartitionReceipt]) -> dict[tuple[str, int], Any]:
    """What servers hold of each partition, whoever has staged it."""
    return {(of.state, of.partition): [sorted(server.groups, key=str) for server in of.servers] for of in receipts}


@pytest.mark.parametrize(("key_groups", "shuffles"), [(8, 0), (3, 1)], ids=["Spark's partitions", "shuffled once more"])
def test_the_states_of_a_processor_are_read_as_spark_has_them(
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    key_groups: int,
    shuffles: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[int] = []

    def stage(staged: Sequence[StagedState], order: StageOrder) -> list[PartitionReceipt]:
        for one in staged:
            plans = [classic(plan)._jdf.queryExecution().executedPlan().toString() for plan in one.receipts(order)]
            passes.extend(plan.count("Exchange ") for plan in plans)
        # As where a server was lost: a batch's rows are staged anew, and are the same.
        first, again = all_receipts(staged, order), all_receipts(staged, order)
        assert held(first) == held(again)
        return again

    all_receipts = staging.stage_all
    monkeypatch.setattr(staging, "stage_all", stage)
    numbers = iter(range(100))
    batches = [[{"k": k, "v": v, "n": next(numbers)} for k, v in batch] for batch in VALUES]
    exposing = queryable.QueryableProcessor(Highest(), key="k", expose=EXPOSE)
    own: list[tuple[int, str, int]] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        own.extend((batch_id, row.k, row.rows) for row in rows.collect())

    sink = queryable.exposed(exposing, rows=take, key_groups=key_groups, config=service.config(application))
    run_query(exposing.transform(stream("k string, v long, n long", batches), "k string, rows int"), "update", sink)
    with Client(service.proxy) as client:
        last = {key: client.get(application, "last", key) for key in "abc"}
        assert {key: of.value.v for key, of in last.items() if of.found} == {"a": 4, "b": 7}
        values = {key: [of.v for of in client.scan(application, "values", key).values] for key in "abc"}
        assert values == {"a": [3, 3, 4], "b": [7, 7], "c": []}
        times = {key: [(of.map_key, of.value.n) for of in client.scan(application, "times", key)] for key in "abc"}
        assert times == {"a": [(3, 2), (4, 1)], "b": [(7, 2)], "c": []}
        assert {client.scan(application, state, "a").epoch for state in ("values", "times")} == {2}
    # One pass of a batch stages all three, and shuffles it at most once.
    assert passes == [shuffles, shuffles]
    assert sorted(own) == [(0, "a", 2), (0, "b", 1), (0, "c", 2), (1, "a", 1), (1, "b", 3)]


def test_a_state_that_is_not_declared_is_not_served_and_declared_again_it_has_what_it_had_and_what_changes_from_then_on(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    batches: list[list[dict[str, Any]]] = []
    runs: list[tuple[str, list[tuple[str, int]]]] = [
        ("last", [("a", 1), ("b", 1)]),
        ("values", [("a", 2), ("b", 2)]),
        ("last", [("b", 3), ("c", 3)]),
    ]
    for exposed, rows in runs:
        batches.append([{"k": k, "v": v, "n": v} for k, v in rows])
        exposing = queryable.QueryableProcessor(Highest(), key="k", expose={exposed: EXPOSE[exposed]})
        sink = queryable.exposed(exposing, query="main", config=service.config(application))
        run_query(exposing.transform(stream("k string, v long, n long", batches), "k string, rows int"), "update", sink)
    with Client(service.proxy) as client:
        last = {key: client.get(application, "last", key).value.v for key in "abc"}
        assert last == {"a": 1, "b": 3, "c": 3}, "Spark has 2 of a, as docs/spark.md says"
        with pytest.raises(DeadlineExceeded, match=r"holds 0 of 64 key groups"):
            client.scan(application, "values", "a", timeout=3)


BROADCAST = "spark.sql.autoBroadcastJoinThreshold"


def test_joined_rows_are_staged_alike_when_spark_knows_how_small_the_batch_is(
    spark: SparkSession,
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It then broadcasts the batch, in place of moving it to where the other rows of its keys are."""

    def stage(staged: Sequence[StagedState], order: StageOrder) -> list[PartitionReceipt]:
        first = all_receipts(staged, order)
        plans = [plan._jdf.queryExecution().executedPlan().toString() for one in staged for plan in one.receipts(order)]
        assert any("BroadcastHashJoin" in plan for plan in plans), "Spark plans otherwise now"
        again = all_receipts(staged, order)
        assert held(first) == held(again)
        return again

    def wide(batch: DataFrame) -> DataFrame:
        joined = own_rows(batch).join(many, "k").select("k", "rows", "w")
        assert "SortMergeJoin" in classic(joined)._jdf.queryExecution().executedPlan().toString()
        return joined

    all_receipts = staging.stage_all
    monkeypatch.setattr(staging, "stage_all", stage)
    many = spark.range(20_000).selectExpr("CASE WHEN id < 3 THEN char(97 + id) ELSE string(id) END AS k", "id AS w")
    exposing = queryable.QueryableProcessor(Highest(), key="k", expose={"last": EXPOSE["last"]})
    config = service.config(application)
    sink = queryable.together(
        queryable.exposed(exposing, key_groups=8, config=config),
        queryable.value("wide", key="k", key_groups=8, config=config).of(wide),
    )
    # What the file is as long for is not read; but Spark takes a batch that it hasn't seen for as large as its source.
    rows = [{"k": k, "v": v, "n": n, "unread": "-" * 10_000} for n, (k, v) in enumerate(VALUES[0])]
    before = spark.conf.get(BROADCAST)
    spark.conf.set(BROADCAST, "10KB")
    try:
        run_query(exposing.transform(stream("k string, v long, n long", [rows]), "k string, rows int"), "update", sink)
    finally:
        spark.conf.set(BROADCAST, before)
    with Client(service.proxy) as client:
        answers = {key: client.get(application, "wide", key).value for key in "abc"}
    assert {key: (of.rows, of.w) for key, of in answers.items()} == {"a": (2, 0), "b": (1, 1), "c": (2, 2)}


def write_json(folder: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """In a task: a file for each call."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    (folder / uuid.uuid4().hex).write_text(json.dumps(rows))


def read_nothing(folder: Path, batches: Iterator[pa.RecordBatch]) -> None:
    (folder / uuid.uuid4().hex).write_text("[]")


@pytest.mark.parametrize("write", [write_json, read_nothing])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside another state"])
@pytest.mark.parametrize("key_groups", [8, 3], ids=["Spark's partitions", "shuffled once more"])
def test_own_rows_are_written_in_tasks_and_the_batch_runs_once(
    spark: SparkSession,
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    tmp_path: Path,
    key_groups: int,
    others: bool,
    write: Callable[[Path, Iterator[pa.RecordBatch]], None],
) -> None:
    batches = [[{"k": k, "v": v, "n": n} for n, (k, v) in enumerate(batch)] for batch in VALUES]
    files = tmp_path / "files"
    files.mkdir()
    taken = spark.sparkContext.accumulator(0)

    @F.udf("long", useArrow=False)
    def counted(v: int) -> int:
        taken.add(1)
        return v

    config = service.config(application)
    exposing = queryable.QueryableProcessor(Highest(), key="k", expose=EXPOSE)
    sink = queryable.exposed(exposing, write=functools.partial(write, files), key_groups=key_groups, config=config)
    if others:
        rows = queryable.value("rows", key="k", value=["rows"], key_groups=4, config=config)
        sink = queryable.together(sink, rows.of(own_rows))
    data = stream("k string, v long, n long", batches).withColumn("v", counted("v"))
    run_query(exposing.transform(data, "k string, rows int"), "update", sink, name="written")
    found = [(row["k"], row["rows"]) for file in files.iterdir() for row in json.loads(file.read_text())]
    assert sorted(found) == ([("a", 1), ("a", 2), ("b", 1), ("b", 3), ("c", 2)] if write is write_json else [])
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
    assert len(list(files.iterdir())) == partitions * len(batches), "once in each task"
    assert taken.value == sum(map(len, batches))
    with Client(service.proxy) as client:
        last = {key: client.get(application, "last", key) for key in "abc"}
        assert {key: of.value.v for key, of in last.items() if of.found} == {"a": 4, "b": 7}
        if others:
            assert [client.get(application, "rows", key).value.rows for key in "abc"] == [1, 3, 2]


@pytest.mark.parametrize("key_groups", [8, 3], ids=["Spark's partitions", "shuffled once more"])
def test_changes_of_states_that_the_sink_does_not_have_are_left_out(
    stream: Stream, run_query: RunQuery, service: Service, application: str, tmp_path: Path, key_groups: int
) -> None:
    batches = [[{"k": k, "v": v, "n": n} for n, (k, v) in enumerate(batch)] for batch in VALUES]
    every = queryable.QueryableProcessor(Highest(), key="k", expose=EXPOSE)
    last = queryable.QueryableProcessor(Highest(), key="k", expose={"last": EXPOSE["last"]})
    write = functools.partial(read_nothing, tmp_path)
    sink = queryable.exposed(last, write=write, key_groups=key_groups, config=service.config(application))
    run_query(every.transform(stream("k string, v long, n long", batches), "k string, rows int"), "update", sink)
    with Client(service.proxy) as client:
        found = {key: client.get(application, "last", key) for key in "abc"}
        assert {key: of.value.v for key, of in found.items() if of.found} == {"a": 4, "b": 7}


def test_what_the_processor_says_is_not_said_again(spark: SparkSession, service: Service, application: str) -> None:
    exposing = queryable.QueryableProcessor(Highest(), key="k", expose=EXPOSE)
    with pytest.raises(InvalidConfiguration, match="delete_when, op can't be given: the processor says what is done"):
        queryable.exposed(exposing, op="o", delete_when="v < 0", config=service.config(application))


def test_a_state_that_the_batches_processor_does_not_expose_is_refused_by_name(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    last = queryable.QueryableProcessor(Highest(), key="k", expose={"last": EXPOSE["last"]})
    both = queryable.QueryableProcessor(Highest(), key="k", expose={name: EXPOSE[name] for name in ("last", "times")})
    sink = queryable.exposed(both, config=service.config(application))
    changes = last.transform(stream("k string, v long, n long", [[{"k": "a", "v": 1, "n": 1}]]), "k string, rows int")
    with pytest.raises(StreamingQueryException, match="no changes of state 'times': its processor doesn't expose it"):
        run_query(changes, "update", sink)


def test_a_states_name_is_no_sql(stream: Stream, run_query: RunQuery) -> None:
    name = "it's `one`, ü"

    class Named(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._last = handle.getValueState(name, "v bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            self._last.update((sum(row.v for row in rows),))
            return iter(())

        def close(self) -> None:
            pass

    seen: list[tuple[Any, ...]] = []
    exposing = queryable.QueryableProcessor(Named(), key="k", expose={name: queryable.ExposedValue("v bigint")})
    run_query(
        exposing.transform(stream("k string, v long", [[{"k": "a", "v": 1}, {"k": "a", "v": 2}]]), "k string"),
        "update",
        lambda batch, batch_id: seen.extend(split(batch).changes[name].collect()),
    )
    assert list(map(tuple, seen)) == [("put", "a", 3)]

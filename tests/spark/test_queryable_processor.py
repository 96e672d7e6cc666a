"""Queryable processors in real streaming queries: what they give out, where, and whether it is what Spark stores."""

from __future__ import annotations

import datetime
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from keyhole.errors import InvalidConfiguration
from keyhole.spark.changes import split
from keyhole.spark.driver.cached import kept
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.layout import HashLayout, layout_of
from keyhole.spark.driver.micro_batch import current
from keyhole.spark.driver.partitioning import by_key_group
from keyhole.spark.exposed import ExposedList, ExposedMap, ExposedValue
from keyhole.spark.processor import QueryableProcessor
from keyhole.spark.running import ROCKSDB
from tests.support.micro_batches import session_settings
from tests.support.streams import RunQuery, RunUntil, Stream

_SETTINGS = {**ROCKSDB, "spark.sql.shuffle.partitions": "2"}  # a Python worker starts for each
_HOUR_MS = 3_600_000

SCHEMA = "sensor string, at timestamp, celsius double"
BATCHES = [
    [
        {"sensor": "a", "at": "2020-01-01T00:00:00Z", "celsius": 1.0},
        {"sensor": "a", "at": "2020-01-01T00:10:00Z", "celsius": 2.0},
        {"sensor": "b", "at": "2020-01-01T00:20:00Z", "celsius": 5.0},
    ],
    [{"sensor": "a", "at": "2020-01-01T02:00:00Z", "celsius": 3.0}],
]
OUTPUT = "sensor string, readings int, celsius double"
EXPOSED = {
    "last": ExposedValue("at timestamp, celsius double"),
    "readings": ExposedList("celsius double"),
    "hours": ExposedMap("hour timestamp", "n bigint, highest double"),
}

Changes = dict[str, dict[str, list[tuple[Any, ...]]]]
"""By state and key, the change rows in their order: the operation, and the columns of the entry."""


@pytest.fixture(scope="module", autouse=True)
def _settings(spark: SparkSession) -> Iterator[None]:
    with session_settings(spark, _SETTINGS):
        yield


class Readings(StatefulProcessor):
    """Written for either API: `pandas` says for which."""

    def __init__(self, pandas: bool) -> None:
        self._pandas = pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "at timestamp, celsius double")
        self._readings = handle.getListState("readings", "celsius double")
        self._hours = handle.getMapState("hours", "hour timestamp", "n bigint, highest double")
        self._seen = handle.getValueState("seen", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        given = [row for frame in rows for row in frame.itertuples()] if self._pandas else list(rows)
        for row in sorted(given, key=lambda row: row.at):
            hour = (row.at.replace(minute=0),)
            n, highest = self._hours.getValue(hour) or (0, row.celsius)
            self._last.update((row.at, row.celsius))
            self._readings.appendValue((row.celsius,))
            self._hours.updateValue(hour, (n + 1, max(highest, row.celsius)))
            self._remember(int(row.at.timestamp() * 1000) + _HOUR_MS)
        self._seen.update((len(given),))
        yield self._out(key, len(given))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        self._last.clear()
        self._readings.put([(-1.0,)])
        for (hour,) in list(self._hours.keys()):
            self._hours.removeKey((hour,))
        yield self._out(key, -1)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        rows = initialState.itertuples() if self._pandas else [initialState]
        for row in rows:
            self._last.update((row.at, row.celsius))

    def _remember(self, expiry_ms: int) -> None:
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(expiry_ms)

    def _out(self, key: Any, readings: int) -> Any:
        last = self._last.get()
        row = {"sensor": key[0], "readings": readings, "celsius": None if last is None else last[1]}
        return pd.DataFrame([row]) if self._pandas else Row(**row)


def transformed(data: DataFrame, pandas: bool) -> DataFrame:
    """The stream through the processor, with an initial state of the sensors a and z."""
    day_before = datetime.datetime(2019, 12, 31, tzinfo=datetime.UTC)
    initial = data.sparkSession.createDataFrame([("a", day_before, 10.0), ("z", day_before, 7.0)], SCHEMA)
    exposing = QueryableProcessor(Readings(pandas), key="sensor", expose=EXPOSED)
    transform = exposing.transform_in_pandas if pandas else exposing.transform
    watermarked = data.withWatermark("at", "1 minute")
    return transform(watermarked, OUTPUT, time_mode="eventTime", initial_state=initial.groupBy("sensor"))


def collected(batch: DataFrame) -> tuple[list[tuple[Any, ...]], Changes]:
    """The processor's own rows, and the changes, without the keys' place in the output."""
    with kept(classic(batch)) as rows:
        parts = split(rows)
        changes: Changes = {}
        for state, frame in parts.changes.items():
            changes[state] = defaultdict(list)
            for row in frame.collect():
                changes[state][row.sensor].append((row._keyhole_op, *row[2:]))
        return sorted(map(tuple, parts.rows.collect())), changes


def hour(number: int) -> datetime.datetime:
    return datetime.datetime(2020, 1, 1, number)  # noqa: DTZ001  # as Spark collects a timestamp


def at(number: int, minute: int) -> datetime.datetime:
    return hour(number).replace(minute=minute)


@pytest.mark.parametrize(("pandas", "fails"), [(False, (0, 2)), (True, ())], ids=["rows", "pandas"])
def test_rows_and_changes_part_with_timers_and_initial_state_and_a_batch_that_is_run_again_changes_the_same(
    stream: Stream, run_query: RunQuery, spark: SparkSession, tmp_path: Path, pandas: bool, fails: Sequence[int]
) -> None:
    """`fails`: the batches that are run again by another start of the query, and not at once."""
    seen: dict[int, list[Any]] = defaultdict(list)

    class Stopped(Exception):
        pass

    def see(batch: DataFrame, batch_id: int) -> None:
        seen[batch_id].append(collected(batch))
        if len(seen[batch_id]) == 1 and batch_id in fails:
            raise Stopped("it fails once, when all of it has run")
        if len(seen[batch_id]) == 1:
            seen[batch_id].append(collected(batch))

    data = stream(SCHEMA, BATCHES)
    for _ in fails:
        with pytest.raises(StreamingQueryException, match="it fails once"):
            run_query(transformed(data, pandas), "update", see)
    run_query(transformed(data, pandas), "update", see)

    assert {batch_id: len(runs) for batch_id, runs in seen.items()} == {0: 2, 1: 2, 2: 2}
    assert all(first == again for first, again in seen.values())
    day_before = datetime.datetime(2019, 12, 31)  # noqa: DTZ001
    assert seen[0][0] == (
        [("a", 2, 2.0), ("b", 1, 5.0)],
        {
            "last": {
                "a": [("put", day_before, 10.0), ("put", at(0, 10), 2.0)],
                "b": [("put", at(0, 20), 5.0)],
                "z": [("put", day_before, 7.0)],
            },
            "readings": {"a": [("append", 1.0), ("append", 2.0)], "b": [("append", 5.0)]},
            "hours": {"a": [("put", hour(0), 2, 2.0)], "b": [("put", hour(0), 1, 5.0)]},
        },
    )
    assert seen[1][0] == (
        [("a", 1, 3.0)],
        {
            "last": {"a": [("put", at(2, 0), 3.0)]},
            "readings": {"a": [("append", 3.0)]},
            "hours": {"a": [("put", hour(2), 1, 3.0)]},
        },
    )
    # Without input: the watermark has passed what the timer of b waits for.
    assert seen[2][0] == (
        [("b", -1, None)],
        {
            "last": {"b": [("clear", None, None)]},
            "readings": {"b": [("clear", None), ("append", -1.0)]},
            "hours": {"b": [("delete", hour(0), None, None)]},
        },
    )
    assert applied(seen[batch_id][-1][1] for batch_id in range(3)) == stored(spark, tmp_path / "checkpoint")


def applied(batches: Iterator[Changes]) -> dict[str, Any]:
    """What the changes amount to: by state and key."""
    last: dict[str, Any] = {}
    readings: dict[str, list[Any]] = defaultdict(list)
    hours: dict[str, dict[Any, Any]] = defaultdict(dict)
    for changes in batches:
        for sensor, rows in changes["last"].items():
            for op, *value in rows:
                last[sensor] = tuple(value) if op == "put" else None
        for sensor, rows in changes["readings"].items():
            for op, celsius in rows:
                readings[sensor] = [] if op == "clear" else [*readings[sensor], celsius]
        for sensor, rows in changes["hours"].items():
            for op, start, *value in rows:
                hours[sensor][start] = tuple(value) if op == "put" else None
    return {
        "last": {sensor: value for sensor, value in last.items() if value is not None},
        "readings": dict(readings),
        "hours": {
            (sensor, start): value
            for sensor, entries in hours.items()
            for start, value in entries.items()
            if value is not None
        },
    }


def stored(spark: SparkSession, checkpoint: Path) -> dict[str, Any]:
    """The same as Spark has it in its state store."""

    def rows(state: str) -> list[Row]:
        return spark.read.format("statestore").option("stateVarName", state).load(str(checkpoint)).collect()

    readings: dict[str, list[Any]] = defaultdict(list)
    for row in rows("readings"):
        readings[row.key.sensor].append(row.list_element.celsius)
    return {
        "last": {row.key.sensor: tuple(row.value) for row in rows("last")},
        "readings": dict(readings),
        "hours": {(row.key.sensor, row.user_map_key.hour): tuple(row.user_map_value) for row in rows("hours")},
    }


class Forgetful(StatefulProcessor):
    """Two states that take every reading, of which one forgets it after a millisecond."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._brief = handle.getMapState("brief", "hour timestamp", "celsius double", 1)
        self._lasting = handle.getValueState("lasting", "celsius double")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(brief=self._brief.exists(), lasting=self._lasting.exists())
        for row in rows:
            self._brief.updateValue((row.at,), (row.celsius,))
            self._lasting.update((row.celsius,))


def test_what_expires_in_sparks_state_is_gone_there_and_gives_no_change_row(
    stream: Stream, run_until: RunUntil
) -> None:
    seen = []
    enough = threading.Event()
    exposing = QueryableProcessor(
        Forgetful(),
        key="sensor",
        expose={"brief": ExposedMap("hour timestamp", "celsius double"), "lasting": ExposedValue("celsius double")},
    )
    data = exposing.transform(
        stream(SCHEMA, [[BATCHES[0][2]], [BATCHES[1][0] | {"sensor": "b"}]]),
        "brief boolean, lasting boolean",
        time_mode="processingTime",
    )

    def see(batch: DataFrame, batch_id: int) -> None:
        seen.append(collected(batch))
        if batch_id == 2:
            enough.set()

    run_until(data, "update", see, enough)
    assert seen[:3] == [
        (
            [(False, False)],
            {"brief": {"b": [("put", at(0, 20), 5.0)]}, "lasting": {"b": [("put", 5.0)]}},
        ),
        (
            [(False, True)],
            {"brief": {"b": [("put", at(2, 0), 3.0)]}, "lasting": {"b": [("put", 3.0)]}},
        ),
        ([], {"brief": {}, "lasting": {}}),
    ]


class Last(StatefulProcessor):
    """Has one value of every type."""

    def __init__(self, schema: StructType, pandas: bool) -> None:
        self._schema = schema
        self._pandas = pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", self._schema)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        self._last.update(VALUES)
        count = sum(1 for _ in rows)
        yield pd.DataFrame([{"count": count}]) if self._pandas else Row(count=count)


NOON = datetime.datetime(2020, 1, 2, 12)  # noqa: DTZ001
TYPES = {
    "boolean": True,
    "tinyint": -1,
    "smallint": 2,
    "int": np.int32(3),
    "bigint": 1 << 40,
    "float": 0.1,
    "double": 1.5,
    "decimal(10,2)": Decimal("1.239"),
    "string": "Zürich",
    "binary": bytearray(b"\0x"),
    "date": NOON,
    "timestamp": NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    "timestamp_ntz": NOON,
    "array<double>": (1.0, None),
    "struct<a:int,at:timestamp>": (1, NOON),
    "map<string,array<struct<a:date>>>": {"x": [(NOON,)], "y": None},
}
VALUES = (*TYPES.values(), None)


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_a_change_row_holds_the_key_and_the_value_of_each_type_as_spark_stores_it(
    stream: Stream, run_query: RunQuery, spark: SparkSession, tmp_path: Path, pandas: bool
) -> None:
    key = "k string, d date, b binary, s smallint, i int, l bigint, t boolean"
    row = {"k": "x", "d": "2020-01-01", "b": "YWI=", "s": 1, "i": 2, "l": 3, "t": True}
    schema = StructType.fromDDL(", ".join(f"v{n} {kind}" for n, kind in enumerate([*TYPES, "int"])))
    exposing = QueryableProcessor(Last(schema, pandas), key=list(row), expose={"last": ExposedValue(schema)})
    transform = exposing.transform_in_pandas if pandas else exposing.transform
    seen: list[Row] = []
    run_query(
        transform(stream(key, [[row]]), "count int"),
        "update",
        lambda batch, batch_id: seen.extend(split(batch).changes["last"].collect()),
    )
    (stored,) = (
        spark.read.format("statestore").option("stateVarName", "last").load(str(tmp_path / "checkpoint")).collect()
    )
    assert [tuple(change) for change in seen] == [("put", *stored.key, *stored.value)]
    assert None not in seen[0][:-1]


class Counting(StatefulProcessor):
    """Counts a key's rows in whatever state it is told to declare."""

    def __init__(self, declared: str = "n bigint", add: Any = 1) -> None:
        self._declared = declared
        self._add = add

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", self._declared)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (before,) = self._count.get() or (0,)
        self._count.update((before + self._add * sum(1 for _ in rows),))
        yield Row(k=key[0], g=0)


def counting(processor: StatefulProcessor | None = None, **arguments: Any) -> QueryableProcessor:
    return QueryableProcessor(
        processor or Counting(), **{"key": ["k", "g"], "expose": {"count": ExposedValue("n bigint")}} | arguments
    )


KEYED = "k string, g int, t timestamp"
KEYS = [[{"k": f"k{i}", "g": i % 3} for i in range(20)]]


def untouched(batches: Iterator[Any]) -> Iterator[Any]:
    """A user's, of which nobody knows what it does to the columns with the key."""
    return batches


def test_change_rows_stay_where_the_shuffle_of_their_groups_has_put_them(stream: Stream, run_query: RunQuery) -> None:
    layouts: dict[str, HashLayout | None] = {}
    exchanges: dict[str, int] = {}

    def look(case: str, rows: DataFrame, execution: Any, key: Sequence[str] = ("k", "g"), key_groups: int = 64) -> None:
        layouts[case] = layout_of(classic(rows), execution)
        placed, partitions = by_key_group(classic(rows), layouts[case], key, key_groups)
        numbers = F.spark_partition_id(), F.pmod(F.hash(*key), F.lit(partitions))
        assert [row.right for row in placed.select((numbers[0] == numbers[1]).alias("right")).collect()] == [True] * 20
        exchanges[case] = classic(placed)._jdf.queryExecution().executedPlan().toString().count("Exchange ")

    def see(batch: DataFrame, batch_id: int) -> None:
        execution = current(classic(batch), batch_id).execution
        exchanges["the micro-batch"] = execution.executedPlan().toString().count("Exchange ")
        layouts["all of the output"] = layout_of(classic(batch), execution)
        changes = split(batch).changes["count"]
        look("changes", changes, execution)
        look("some changes", changes.filter("_keyhole_op = 'put'"), execution)
        with kept(classic(batch)) as rows:
            look("kept", split(rows).changes["count"], execution)
        look("partitions don't divide", changes, execution, key_groups=5)
        look("part of the key", changes.drop("g"), execution, ["k"])
        look("another key", changes.withColumn("g", F.col("g") + 1), execution)
        look("shuffled", changes.repartition(2), execution)
        look("merged", changes.coalesce(1), execution)
        look("of a function", changes.mapInArrow(untouched, changes.schema), execution)
        look("the processor's own rows", split(batch).rows, execution)

    run_query(counting().transform(stream(KEYED, KEYS), "k string, g int"), "update", see)
    in_place = HashLayout(("k", "g"), 2)
    assert layouts == {
        "all of the output": HashLayout(("_keyhole_key_k", "_keyhole_key_g"), 2),
        "changes": in_place,
        "some changes": in_place,
        "kept": in_place,
        "partitions don't divide": in_place,
        "part of the key": None,
        "another key": None,
        "shuffled": None,
        "merged": None,
        "of a function": None,
        "the processor's own rows": None,
    }
    # (The plan below a micro-batch's own rows isn't shown: each Exchange but the first one is one that was added. Of
    # two in a row Spark leaves out the first.)
    assert exchanges == {
        "the micro-batch": 1,
        "changes": 0,
        "some changes": 0,
        "kept": 0,
        "partitions don't divide": 1,
        "part of the key": 1,
        "another key": 1,
        "shuffled": 1,
        "merged": 1,
        "of a function": 1,
        "the processor's own rows": 1,
    }


def test_a_value_that_spark_would_store_as_another_one_ends_the_query_and_the_error_says_why(
    stream: Stream, run_query: RunQuery
) -> None:
    data = counting(Counting(add=1.0)).transform(stream(KEYED, KEYS), "k string, g int")
    with pytest.raises(
        StreamingQueryException, match="state 'count': field 'n' is of type bigint, which takes no float"
    ):
        run_query(data, "update", lambda batch, batch_id: batch.collect())


def test_what_does_not_fit_the_data_is_refused_before_there_is_a_query(stream: Stream, spark: SparkSession) -> None:
    data = stream(KEYED, KEYS)
    with pytest.raises(
        InvalidConfiguration, match="key column 'day' exists 0 times in the data, whose columns are k, g"
    ):
        counting(key="day").transform(data, "k string")
    with pytest.raises(InvalidConfiguration, match=r"exposed as value of struct<n:bigint>, but .* declares a value"):
        counting(Counting("n int")).transform(data, "k string")
    with pytest.raises(InvalidConfiguration, match="'_keyhole_op': names that begin with _keyhole_ are Keyhole's"):
        counting().transform(data, "_keyhole_op string")
    with pytest.raises(InvalidConfiguration, match="key column 't' is a timestamp, which pandas is given without"):
        counting(key="t").transform_in_pandas(data, "k string")
    with pytest.raises(InvalidConfiguration, match="output: 'k strin g' is no schema"):
        counting().transform(data, "k strin g")
    with pytest.raises(InvalidConfiguration, match="state 'count': 'n bigin t' is no schema"):
        counting(expose={"count": ExposedValue("n bigin t")}).transform(data, "k string")
    with pytest.raises(InvalidConfiguration, match="state 'count': its schema must name at least one column"):
        counting(expose={"count": ExposedValue("bigint")}).transform(data, "k string")
    with pytest.raises(InvalidConfiguration, match="not the output of a queryable processor"):
        split(spark.range(1))

"""`spark.read.format("keyhole")`: states as data frames, against the same rows as Spark has them itself."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from keyhole.encoding.row_codec import encode_row
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.testing.served_states import ServedStates

PATH = "shop/readings"
_SCHEMA = pa.schema(
    [
        ("sensor", pa.string()),
        ("day", pa.date32()),
        ("n", pa.int64()),
        ("small", pa.int16()),
        ("celsius", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("city", pa.string()),
        ("ok", pa.bool_()),
        ("place", pa.struct([("floor", pa.int32()), ("room", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
_DAY = dt.date(2026, 11, 27)
_AT = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def _row(number: int, draw: random.Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if draw.random() < 0.2 else value

    return {
        "sensor": f"sensor-{number % 20}",
        "day": _DAY + dt.timedelta(days=number // 20),
        "n": maybe(draw.randrange(10)),
        "small": maybe(draw.randrange(4)),
        "celsius": maybe(draw.choice([math.nan, -0.0, 0.0, 4.5, 7.0, math.inf])),
        "price": maybe(draw.choice([Decimal("1.50"), Decimal("2.50"), Decimal("9.99")])),
        "at": maybe(_AT + dt.timedelta(seconds=draw.randrange(10))),
        "city": maybe(draw.choice(["Bern", "Basel", "Chur", "Äsch", ""])),
        "ok": maybe(draw.random() < 0.5),
        "place": maybe({"floor": maybe(draw.randrange(3)), "room": maybe("a")}),
        "tags": maybe(["x"] * draw.randrange(3)),
        "counts": maybe({"a": 1}),
    }


ROWS = [_row(number, random.Random(number)) for number in range(60)]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedStates]:
    with ServedStates() as served:
        served.write(PATH, ROWS, key=("sensor", "day"), schema=_SCHEMA)
        yield served


@pytest.fixture(scope="module")
def own(spark: SparkSession) -> DataFrame:
    """The same rows, as Spark has them. Not cached: Spark finds no NaN in what it has cached."""
    return spark.createDataFrame(pa.Table.from_pylist(ROWS, _SCHEMA))


Read = Callable[..., DataFrameReader]


@pytest.fixture
def read(spark: SparkSession, served: ServedStates) -> Read:
    """Makes a reader with these options."""
    return lambda **options: spark.read.format("keyhole").options(**{"proxy": served.address, "tasks": "3"} | options)


def _shown(of: DataFrame) -> list[str]:
    return sorted(map(repr, of.collect()))


def test_a_state_is_found_by_its_format_and_has_the_rows_that_were_written(read: Read, own: DataFrame) -> None:
    found = read().load(PATH)
    assert {(f.name, f.dataType) for f in found.schema} == {(f.name, f.dataType) for f in own.schema}
    assert found.rdd.getNumPartitions() == 3
    assert _shown(found.select(own.columns)) == _shown(own)
    joined = found.join(own.select("sensor", "day"), ["sensor", "day"])
    assert joined.count() == len(ROWS)


def test_the_servers_leave_out_what_is_not_wanted(read: Read, own: DataFrame) -> None:
    some = read(where="n >= 3\ncity in Bern,Basel").load(PATH).select(own.columns)
    assert _shown(some) == _shown(own.where("n >= 3 and city in ('Bern', 'Basel')"))
    assert some.where("n = 3").count() == own.where("n = 3 and city in ('Bern', 'Basel')").count()
    assert _shown(some) == _shown(own.where("n >= 3 and city in ('Bern', 'Basel')"))


class _Pushing(DataSourceReader):
    def __init__(self) -> None:
        self.filtered = False

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        self.filtered = True
        return filters

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield from [(1,)] if self.filtered else [(1,), (2,)]


class _PushingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pushing"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Pushing()


def test_spark_still_gives_a_query_without_a_filter_what_one_with_a_filter_has_left(spark: SparkSession) -> None:
    """So the source takes no filters from it. Once this fails, it can."""
    spark.conf.set(_PUSHDOWN, "true")
    try:
        spark.dataSource.register(_PushingSource)
        frame = spark.read.format("pushing").load()
        assert frame.where("n = 1").count() == 1
        assert frame.count() == 1
    finally:
        spark.conf.unset(_PUSHDOWN)


def test_columns_that_are_not_asked_for_stay_at_the_servers(read: Read, own: DataFrame) -> None:
    some = read().schema("celsius double, sensor string").load(PATH)
    assert some.columns == ["celsius", "sensor"]
    assert _shown(some) == _shown(own.select("celsius", "sensor"))
    keys = read().schema("sensor string, day date").load(PATH)
    assert _shown(keys) == _shown(own.select("sensor", "day"))


def test_states_of_other_kinds_have_their_map_keys_or_positions_beside_the_key(
    spark: SparkSession, served: ServedStates, read: Read
) -> None:
    hours = [{"sensor": "a", "hour": hour, "celsius": float(hour)} for hour in range(5)]
    served.write("shop/hourly", hours, key="sensor", map_key="hour")
    assert sorted(tuple(row) for row in read().load("shop/hourly").collect()) == [
        ("a", hour, float(hour)) for hour in range(5)
    ]
    text = (KeyColumn("k", KeyType.STRING),)
    value = ValueSchema(1, (ValueField("v", "bigint"),))
    log = StateDescriptor("shop", "log", "q", StateKind.LIST, 4, text, value, topic_id="log")
    rules = StateDescriptor("shop", "rules", "q", StateKind.BROADCAST, 1, text, value, topic_id="rules")
    served._run(lambda: served._server.host(log, {("a", 3): encode_row(1, [30]), ("a", 4): encode_row(1, [40])}))
    served._run(lambda: served._server.host(rules, {"x": encode_row(1, [1])}))
    assert sorted(map(tuple, read().load("shop/log").collect())) == [("a", 3, 30), ("a", 4, 40)]
    assert read().load("shop/log").columns == ["k", "position", "v"]
    assert list(map(tuple, read().load("shop/rules").collect())) == [("x", 1)]


def test_all_of_it_is_of_one_epoch_or_of_the_one_that_is_named(served: ServedStates, read: Read) -> None:
    def write(value: int) -> int:
        return served.write("shop/epochs", [{"k": f"k{at}", "v": value} for at in range(50)], key="k")

    first, second = write(1), write(2)
    frame = read().load("shop/epochs")
    assert {row.v for row in frame.collect()} == {2}
    assert {row.v for row in read(as_of=str(first)).load("shop/epochs").collect()} == {1}
    for value in (3, 4, 5):
        write(value)
    assert {row.v for row in read().load("shop/epochs").collect()} == {5}
    with pytest.raises(PySparkException, match=f"epoch {second} is no longer kept"):
        frame.collect()
    with pytest.raises(PySparkException, match=f"epoch {second} is no longer kept"):
        read(as_of=str(second)).load("shop/epochs").collect()


@pytest.mark.parametrize(
    ("options", "path", "why"),
    [
        ({"proxy": ""}, PATH, "option proxy is missing"),
        ({"prxy": "x"}, PATH, "no option 'prxy'"),
        ({"as_of": "-1"}, PATH, "as_of is '-1'"),
        ({"snapshot": "perhaps"}, PATH, "true or false"),
        ({"timeout": "0"}, PATH, "number of seconds"),
        ({}, "readings", "names no state"),
        ({}, "shop/nothing", "no state shop/nothing"),
    ],
)
def test_a_wrong_option_or_state_is_refused_by_name_before_anything_is_read(
    read: Read, options: dict[str, str], path: str, why: str
) -> None:
    with pytest.raises(AnalysisException, match=why):
        read(**options).load(path)


def test_a_comparison_that_can_not_be_is_refused_by_its_field(read: Read) -> None:
    with pytest.raises(AnalysisException, match="begins with no field"):
        read(where="nothing > 3").load(PATH).collect()


def test_a_column_that_there_is_not_is_refused_with_those_that_there_are(read: Read) -> None:
    with pytest.raises(AnalysisException, match=r"no column celsius string; it has .*celsius double"):
        read().schema("celsius string").load(PATH).collect()

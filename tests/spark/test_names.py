"""Columns of any name through one streaming query, which is started again with more of them, and through lookups."""

from __future__ import annotations

import functools
import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from keyhole.config import JobConfig
from keyhole.encoding.row import attributes
from keyhole.errors import InvalidConfiguration, KeyMismatch, ValueMismatch
from keyhole.spark import queryable
from keyhole.spark.driver.data_frames import quoted
from keyhole.spark.sink import Sink
from keyhole.spark.write_path.epoch_states import EpochStates
from tests.support.hostile_names import NAMES, OF_FIELDS, OF_KEYS, REFUSED, attribute
from tests.support.http_values import plain
from tests.support.micro_batches import session_settings
from tests.support.scenario import Scenario, Scenarios

SCHEMA = "k string, v bigint"
FIRST, SECOND = [{"k": "old", "v": 100}], [{"k": "new", "v": 200}]
# Between them the states have each name as a key column, as a map key, as a value, as what orders, and as a result.
ONE, TWO, THREE = ([*OF_KEYS][start::3] for start in range(3))
KEY: Mapping[str, int] = {name: number for part in (ONE, TWO, THREE) for number, name in enumerate(part)}
FIELDS = dict(zip(OF_FIELDS, range(len(OF_FIELDS)), strict=True))
NESTED = "the struct"


def values(names: Sequence[str], v: int) -> dict[str, int]:
    """What a row of that `v` has in these columns."""
    return {name: v + number for number, name in enumerate(names)}


def key_of(names: Sequence[str]) -> tuple[int, ...]:
    return tuple(KEY[name] for name in names)


def columns(keys: Sequence[str], of_value: Sequence[str], *more: Column) -> Callable[[DataFrame], DataFrame]:
    """For `Sink.of`: always the same key, and values that follow from `v`."""

    def select(rows: DataFrame) -> DataFrame:
        key = [F.lit(KEY[name]).alias(name) for name in keys]
        value = [(F.col("v") + F.lit(number)).alias(name) for number, name in enumerate(of_value)]
        return rows.select(*more, *key, *value)

    return select


@dataclass(frozen=True)
class Sums:
    """Of some columns, as they come in rows; the results have names of their own."""

    inputs: tuple[str, ...]
    results: tuple[str, ...]

    def create(self) -> list[int]:
        return [0] * len(self.inputs)

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        return [total + getattr(row, name) for total, name in zip(accumulator, attributes(self.inputs), strict=True)]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [a + b for a, b in zip(one, other, strict=True)]

    def result(self, accumulator: list[int]) -> Mapping[str, int]:
        return dict(zip(self.results, accumulator, strict=False))


def states(scenario: Scenario, live: Sink) -> Sink:
    config: dict[str, Any] = {"config": scenario.config, "key_groups": 4}
    nested = F.struct(*(F.lit(number).cast("bigint").alias(name) for name, number in FIELDS.items())).alias(NESTED)
    results = tuple(ONE[: len(THREE)])
    result = StructType([StructField(name, LongType()) for name in results])
    sums = Sums(tuple(THREE), results)
    return queryable.together(
        queryable.value("values", key=ONE, **config).of(columns(ONE, ["", *TWO, *THREE], nested)),
        queryable.map("maps", key=TWO, map_key=THREE, order_by=ONE[0], **config).of(columns([*TWO, *THREE], ONE)),
        queryable.list("lists", key=THREE, order_by=TWO[0], unbounded=True, **config).of(columns(THREE, [*ONE, *TWO])),
        queryable.reducing("sums", key=ONE, reducers=dict.fromkeys(TWO, "sum"), **config).of(columns(ONE, TWO)),
        queryable.aggregating("results", key=TWO, aggregator=sums, result=result, **config).of(columns(TWO, THREE)),
        queryable.broadcast("rules", key=THREE, config=scenario.config).of(columns(THREE, ONE)),
        live,
    )


@dataclass(frozen=True)
class Ran:
    scenario: Scenario
    rules: list[dict[str, Any]]


@pytest.fixture(scope="module")
def ran(scenarios: Scenarios) -> Ran:
    """The query, and once more with all names among the values of one state that had but one column."""
    scenario = scenarios()
    live = functools.partial(queryable.value, "live", key="k", config=scenario.config)
    scenario.run(scenario.stream(SCHEMA, [FIRST]), "append", states(scenario, live()), name="names")
    more = live().of(lambda rows: rows.select("k", "v", *((F.col("v") + 1).alias(name) for name in NAMES)))
    sink, rules = states(scenario, more), list[dict[str, Any]]()
    reader = queryable.BroadcastReader(f"{scenario.application}/rules", proxy=scenario.service.proxy)

    def process(rows: DataFrame, batch_id: int) -> None:
        rules.extend(row.asDict() for row in reader.read(rows).collect())
        sink(rows, batch_id)

    scenario.run(scenario.stream(SCHEMA, [FIRST, SECOND]), "append", process, name="names")
    return Ran(scenario, rules)


def test_values_are_read_by_item_and_by_attribute(ran: Ran) -> None:
    row = ran.scenario.get("values", key_of(ONE)).value
    expected = values(["", *TWO, *THREE], 200)
    assert {name: row[name] for name in expected} == expected
    for name, value in expected.items():
        if spelled := attribute(name):
            assert getattr(row, spelled) == value
    assert plain(row[NESTED]) == FIELDS


def test_entries_of_maps_lists_and_broadcast_states_are_scanned(ran: Ran) -> None:
    (entry,) = ran.scenario.scan("maps", key_of(TWO))
    assert (entry.map_key, plain(entry.value)) == (key_of(THREE), values(ONE, 200))
    assert plain(ran.scenario.get("maps", (*key_of(TWO), *key_of(THREE))).value) == values(ONE, 200)
    elements = ran.scenario.scan("lists", key_of(THREE)).values
    assert [plain(element) for element in elements] == [values([*ONE, *TWO], v) for v in (100, 200)]
    (rule,) = ran.scenario.scan("rules", ())
    assert (rule.map_key, plain(rule.value)) == (key_of(THREE), values(ONE, 200))


def test_sums_and_results_of_an_aggregator_are_merged(ran: Ran) -> None:
    both = {name: 300 + 2 * number for number, name in enumerate(TWO)}
    assert plain(ran.scenario.get("sums", key_of(ONE)).value) == both
    results = dict(zip(ONE, (300 + 2 * number for number in range(len(THREE))), strict=False))
    assert plain(ran.scenario.get("results", key_of(TWO)).value) == results


def test_columns_of_all_names_are_added_to_a_live_state(ran: Ran) -> None:
    old, new = (answer.value for answer in ran.scenario.get_many("live", ["old", "new"]))
    assert plain(old) == {"v": 100} | dict.fromkeys(NAMES)
    assert plain(new) == {"v": 200} | dict.fromkeys(NAMES, 201)
    assert (old.type, new.type) == (None, 201)


def test_a_broadcast_state_is_read_in_a_job(ran: Ran) -> None:
    assert ran.rules == [dict(zip(THREE, key_of(THREE), strict=True)) | values(ONE, 100)]


def test_they_are_read_over_http(ran: Ran) -> None:
    path = f"{ran.scenario.application}/values/{quote(json.dumps(key_of(ONE)), safe='')}"
    with urllib.request.urlopen(f"http://{ran.scenario.service.http}/v1/{path}") as response:
        body = json.load(response)
    assert body["value"] == values(["", *TWO, *THREE], 200) | {NESTED: FIELDS}


@pytest.mark.parametrize("into", ["type", "a.b", None])
def test_rows_are_looked_up_by_keys_of_any_names_and_into_a_column_of_any_name(
    ran: Ran, spark: SparkSession, into: str | None
) -> None:
    others = [name for name in ONE if name != into]
    data = spark.range(1).select(*(F.lit(KEY[name]).alias(f"{name}?" if name == into else name) for name in ONE))
    keys = [f"{name}?" if name == into else name for name in ONE]
    state = f"{ran.scenario.application}/values"
    (row,) = queryable.lookup(data, state, key=keys, proxy=ran.scenario.service.proxy, into=into).collect()
    found = row[into or "values"].asDict(recursive=True)
    assert found == values(["", *TWO, *THREE], 200) | {NESTED: FIELDS}
    assert {name: row[name] for name in others} == {name: KEY[name] for name in others}


def staged(sink: Sink, rows: DataFrame) -> None:
    """What a sink does with a batch before it declares anything."""
    EpochStates("app", "query").staged(sink.parts_alone(), rows)


def test_what_spark_takes_for_one_name_is_refused_by_both_unless_it_minds_the_case(
    ran: Ran, spark: SparkSession
) -> None:
    rows = spark.range(1).select(F.col("id"), F.lit(1).alias("ID"), F.lit(2).alias("v"))
    config = ran.scenario.config
    keyed, valued = (queryable.value("s", config=config, **of) for of in ({"key": "id"}, {"key": "v", "value": "ID"}))
    with pytest.raises(KeyMismatch, match="state 's': the batch has the columns 'id' and 'ID', which are one name"):
        staged(keyed, rows)
    with pytest.raises(ValueMismatch, match="state 's': the batch has the columns 'ID' and 'id', which are one name"):
        staged(valued, rows)
    state = f"{ran.scenario.application}/live"
    with pytest.raises(InvalidConfiguration, match=f"lookup of {state}: the rows have the columns 'id' and 'ID'"):
        queryable.lookup(rows.select("*", F.lit("new").alias("k")), state, key="k", proxy=ran.scenario.service.proxy)
    with pytest.raises(InvalidConfiguration, match="there is a column 'Live' already"):
        queryable.lookup(
            spark.range(1).select(F.lit("new").alias("k"), F.lit(1).alias("Live")),
            state,
            key="k",
            proxy=ran.scenario.service.proxy,
        )
    with session_settings(spark, {"spark.sql.caseSensitive": "true"}):
        staged(keyed, rows)
        staged(valued, rows)
        (row,) = queryable.lookup(
            rows.select("*", F.lit("new").alias("k")), state, key="k", proxy=ran.scenario.service.proxy
        ).collect()
        assert (row["id"], row["ID"], row["live"]["v"]) == (0, 1, 200)


@pytest.mark.parametrize("name", REFUSED)
def test_what_spark_would_read_as_something_else_is_refused_by_its_name(
    ran: Ran, spark: SparkSession, name: str
) -> None:
    rows = spark.range(1).select("id", F.lit(1).alias(name))
    with pytest.raises(ValueMismatch, match=REFUSED[name]):
        staged(queryable.value("s", key="id", config=ran.scenario.config), rows)


def test_a_struct_with_a_field_that_has_no_name_is_refused_before_the_state_is_declared(
    ran: Ran, spark: SparkSession
) -> None:
    rows = spark.range(1).select("id", F.struct(F.lit(1).alias("")).alias("v"))
    with pytest.raises(ValueMismatch, match=r"state 's': value column 'v' is of type struct<:int>: .* needs a name"):
        staged(queryable.value("s", key="id", config=ran.scenario.config), rows)


def test_structs_with_fields_of_any_name_are_reduced(spark: SparkSession) -> None:
    struct = F.struct(*(F.lit(number).alias(name) for name, number in [*FIELDS.items(), ("ID", 1), ("id", 2)]))
    rows = spark.range(1).select(F.lit("a").alias("k"), struct.alias("v"), F.lit(3).alias("at"))
    reducers = {"v": "max_by(at)", "at": "max"}
    staged(queryable.reducing("s", key="k", reducers=reducers, config=JobConfig("app", ("a:1",), "")), rows)


def test_names_are_quoted_as_spark_reads_them(spark: SparkSession) -> None:
    rows = spark.range(1).select(*(F.lit(number).alias(name) for number, name in enumerate(NAMES)))
    assert rows.selectExpr(*map(quoted, NAMES)).columns == list(NAMES)

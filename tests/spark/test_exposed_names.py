"""A processor whose states have columns of any names, as it keeps and exposes them: grouped by, stored and read."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from keyhole.spark import queryable
from keyhole.spark.changes import own_rows
from keyhole.spark.running import ROCKSDB
from tests.support.hostile_names import OF_KEYS, attribute
from tests.support.http_values import plain
from tests.support.micro_batches import session_settings
from tests.support.scenario import Scenario, Scenarios

# Spark's own limit for what a processor keeps: the names that Avro takes.
KEPT = [name for name in OF_KEYS if re.fullmatch(r"[^\W\d]\w*", name)]
# Each of the states has the first ones as its key's columns.
ONE, TWO, THREE = (KEPT[start::3] for start in range(3))
KEY = tuple(range(len(ONE)))
OTHERS = [name for name in OF_KEYS if name not in ONE]
FIELDS = dict(zip(KEPT, range(len(KEPT)), strict=True))
NESTED = "nested"
FIRST, SECOND = 100, 200
IN_PLACE, SHUFFLED = 4, 3
"""Key groups: as many as go into the batch's partitions, and as many as don't."""


def values(names: Iterable[str], v: int) -> dict[str, int]:
    """What the states have in these columns behind a row of that `v`."""
    return {name: v + number for number, name in enumerate(names)}


def bigints(names: Iterable[str]) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


VALUE = bigints([*TWO, *THREE]).add(NESTED, bigints(FIELDS))
MAP_KEY, MAP_VALUE = bigints(TWO), bigints(THREE)
ELEMENT = bigints([*TWO, *THREE])
OWN = bigints([*ONE, *OTHERS])


class Named(StatefulProcessor):
    """Of each state the last row, and of the list all rows; and a row of its own for each."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("type", VALUE)
        self._map = handle.getMapState("None", MAP_KEY, MAP_VALUE)
        self._list = handle.getListState("class", ELEMENT)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for v in [row["v"] for row in rows]:
            self._value.update((*values([*TWO, *THREE], v).values(), tuple(FIELDS.values())))
            self._map.updateValue(tuple(values(TWO, 0).values()), tuple(values(THREE, v).values()))
            self._list.appendValue(tuple(values([*TWO, *THREE], v).values()))
            # Row(**...) of PySpark takes none called cls.
            yield Row(*ONE, *OTHERS)(*key, *values(OTHERS, v).values())

    def close(self) -> None:
        pass


EXPOSE: Mapping[str, Any] = {
    "type": queryable.ExposedValue(VALUE),
    "None": queryable.ExposedMap(MAP_KEY, MAP_VALUE, name="__class__"),
    "class": queryable.ExposedList(ELEMENT, name="_"),
}


@pytest.fixture(scope="module")
def ran(spark: SparkSession, scenarios: Scenarios) -> Iterator[Scenario]:
    """A query whose batches go to an application for each way in which they are placed."""
    scenario = scenarios()

    def sink_of(key_groups: int) -> Any:
        of: Any = {"config": scenario.service.config(application(scenario, key_groups)), "key_groups": key_groups}
        exposing = queryable.QueryableProcessor(Named(), key=ONE, expose=EXPOSE)
        own = queryable.value("self", key=ONE, **of).of(own_rows)
        return queryable.together(queryable.exposed(exposing, **of), own, query=f"names-{key_groups}")

    def feed(batch: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink(batch, batch_id)

    sinks = [sink_of(key_groups) for key_groups in (IN_PLACE, SHUFFLED)]
    with session_settings(spark, ROCKSDB):
        rows = scenario.stream("k bigint, v bigint", [[{"k": 0, "v": v}] for v in (FIRST, SECOND)])
        named = rows.select("v", *((F.col("k") + number).alias(name) for number, name in enumerate(ONE)))
        processor = queryable.QueryableProcessor(Named(), key=ONE, expose=EXPOSE)
        scenario.run(processor.transform(named, OWN), "update", feed)
        yield scenario


def application(scenario: Scenario, key_groups: int) -> str:
    return f"{scenario.application}-{key_groups}"


placed = pytest.mark.parametrize("key_groups", [IN_PLACE, SHUFFLED], ids=["Spark's partitions", "shuffled once more"])


def check(row: Any, expected: Mapping[str, Any]) -> None:
    """By item, by attribute, and as a whole."""
    assert plain(row) == expected
    for name, value in expected.items():
        assert plain(row[name]) == value
        if spelled := attribute(name):
            assert plain(getattr(row, spelled)) == value


@placed
def test_an_exposed_value_is_read_by_item_and_by_attribute_and_over_http(ran: Scenario, key_groups: int) -> None:
    expected = values([*TWO, *THREE], SECOND) | {NESTED: FIELDS}
    check(ran.client.get(application(ran, key_groups), "type", KEY).value, expected)
    path = f"{application(ran, key_groups)}/type/{quote(json.dumps(KEY), safe='')}"
    with urllib.request.urlopen(f"http://{ran.service.http}/v1/{path}") as response:
        assert json.load(response)["value"] == expected


@placed
def test_exposed_maps_and_lists_are_scanned(ran: Scenario, key_groups: int) -> None:
    (entry,) = ran.client.scan(application(ran, key_groups), "__class__", KEY)
    assert entry.map_key == tuple(values(TWO, 0).values())
    check(entry.value, values(THREE, SECOND))
    elements = ran.client.scan(application(ran, key_groups), "_", KEY).values
    assert [plain(of) for of in elements] == [values([*TWO, *THREE], v) for v in (FIRST, SECOND)]


@placed
def test_the_processors_own_rows_are_another_state_beside_them(ran: Scenario, key_groups: int) -> None:
    check(ran.client.get(application(ran, key_groups), "self", KEY).value, values(OTHERS, SECOND))

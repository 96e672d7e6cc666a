"""The job's pipeline on real Spark: what it takes for a reading, and its formula."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from jobs.temperature_monitor.pipeline import max_temperature, readings
from jobs.temperature_monitor.recount import reading_of

pytestmark = pytest.mark.integration


def record(sensor: object, temperature: object, **fields: object) -> bytes:
    return json.dumps({"sensor": sensor, "temperature": temperature, **fields}).encode()


GOOD: list[bytes | None] = [
    record("a", 20.5, time="2026-11-21T10:00:00Z"),
    record("a", 21.25, time="2026-11-21T10:00:01Z"),
    record("a", -3, time="2026-11-21T10:00:02Z"),
    record("b", 0.1 + 0.2),
    record("b", 0.3, time="yesterday, about noon", unknown=[1, 2]),
    record("c", -1e-300),
    record("Zürich ☃", -12.5),
    record("x" * 128, 1.0),
]
BAD: list[bytes | None] = [
    None,
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b"[]",
    b"7",
    b"null",
    b"{}",
    b'{"sensor": "a", "temperature": 99',
    record(None, 99.0),
    record("", 99.0),
    record("x" * 129, 99.0),
    record("Z" + "ü" * 64, 99.0),
    record("a", None),
    record("a", "99"),
    record("a", "hot"),
    record("a", True),
    record("a", [99]),
    record("a", float("nan")),
    record("a", float("inf")),
    record("a", float("-inf")),
    b'{"sensor": "a", "temperature": 1e999}',
]


def test_the_maximum_of_every_sensor_is_that_of_its_readings_and_nothing_else_stops_or_changes_it(
    spark: SparkSession,
) -> None:
    records = spark.createDataFrame([(value,) for value in GOOD + BAD], "value binary")
    rows = max_temperature(readings(records)).collect()
    assert {row.sensor: (row.temperature, row.readings) for row in rows} == {
        "a": (21.25, 3),
        "b": (0.1 + 0.2, 2),
        "c": (-1e-300, 1),
        "Zürich ☃": (-12.5, 1),
        "x" * 128: (1.0, 1),
    }


def test_what_is_a_reading_to_spark_is_one_to_the_recount(spark: SparkSession) -> None:
    records = spark.createDataFrame([(value,) for value in GOOD + BAD], "value binary").coalesce(1)
    found = [(row.sensor, row.temperature) for row in readings(records).collect()]
    assert found == [reading for reading in map(reading_of, GOOD + BAD) if reading is not None]
    assert len(found) == len(GOOD)

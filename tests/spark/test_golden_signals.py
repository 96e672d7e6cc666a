"""The job's pipeline on real Spark: what it takes for a measurement, and what the aggregation makes of its rows."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from datetime import datetime

import pytest
from pyspark.sql import Row, SparkSession

from jobs.golden_signals import recount, source
from jobs.golden_signals.pipeline import KEY, VALUE, measurements
from jobs.golden_signals.signals import RESULT, Accumulator, GoldenSignals
from jobs.golden_signals.source import MINUTE_MS, Load, Shape
from tests.support.odd_records import NO_OBJECTS, odd_records

BEGIN_MS = 1_795_219_200_000


def record(**fields: object) -> bytes:
    return json.dumps({"service": "web", "time": BEGIN_MS, "duration": 1, "status": 200} | fields).encode()


def load_record(**fields: object) -> bytes:
    return json.dumps({"service": "web", "time": BEGIN_MS, "cpu": 1, "memory": 2} | fields).encode()


BAD: list[bytes | None] = [
    *NO_OBJECTS,
    b'{"service": "web", "time": 1',
    record(service=None),
    record(service=1),
    record(service=True),
    record(service="true"),
    record(service=["web"]),
    record(service="a/b"),
    record(service="a\n"),
    record(service="x" * 65),
    record(time=-1),
    record(time=4_102_444_800_000),
    record(time=True),
    record(time="1795219200000"),
    record(duration=-1),
    record(duration=86_400_000_001),
    record(duration=1.5),
    record(duration=1 << 63),
    record(duration=None),
    record(status=99),
    record(status=600),
    record(status="200"),
    record(cpu=1, memory=2),
    record(cpu=1),
    load_record(cpu=1001),
    load_record(cpu=-1),
    load_record(memory=None),
    load_record(status=200),
    record(cpu="high"),
    record(cpu=1.5),
    record(memory=True),
    load_record(duration="x"),
    load_record(status="OK"),
    record() + b"xyz",
    record() * 2,
    record().replace(b'"', b"'"),
    record().decode().encode("utf-16"),
]
GOOD: list[bytes | None] = [
    record(),
    record(service="a" + "-._Z" * 15 + "xyz", time=0, duration=0, status=599),
    record(time=4_102_444_799_999, duration=86_400_000_000, unknown={}),
    record(status=500, cpu=None),
    load_record(cpu=0, memory=1000),
]


def key_of(row: Row) -> recount.ServiceMinute:
    minute: datetime = row.minute
    return row.service, round(minute.astimezone().timestamp() * 1000)


def test_what_is_a_measurement_to_spark_is_one_to_the_recount_and_nothing_else_is(spark: SparkSession) -> None:
    values = GOOD + BAD
    found = measurements(spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)).collect()
    expected = [key for value in values for key in recount.recount([value])]
    assert [key_of(row) for row in found] == expected
    assert len(found) == len(GOOD)
    assert [row.failed for row in found] == [False, True, False, True, None]


@pytest.mark.parametrize("good", [{"duration": 1, "status": 200}, {"cpu": 1, "memory": 2}])
def test_of_records_with_any_fault_spark_takes_what_the_recount_takes_as_it_takes_it(
    spark: SparkSession, good: dict[str, int]
) -> None:
    neither = dict.fromkeys(("duration", "status", "cpu", "memory"))
    odd = odd_records({"service": "web", "time": BEGIN_MS, **neither, **good})
    found = measurements(spark.createDataFrame([(value,) for value in odd], "value binary").coalesce(1)).collect()
    expected = [one for value in odd for one in recount.recount([value]).items()]
    assert [key_of(row) for row in found] == [key for key, _ in expected]
    assert [([row.duration_us], row.failed, [row.cpu_permille], [row.memory_permille]) for row in found] == [
        (of.durations_us or [None], bool(of.errors) if of.durations_us else None, *_load(of)) for _, of in expected
    ]
    assert 10 < len(expected) < len(odd) / 2


def _load(of: recount.Measured) -> tuple[list[int] | list[None], list[int] | list[None]]:
    return of.cpu_permille or [None], of.memory_permille or [None]


def test_the_signals_of_a_log_and_a_load_are_those_of_the_recount(spark: SparkSession) -> None:
    log = [source.record(request) for request in itertools.islice(source.requests(3, BEGIN_MS, Shape(20)), 4_000)]
    loads = [
        value
        for second in range(0, 200, 5)
        for value in source.load_records(Load(second * 5, 1000 - second), BEGIN_MS + second * 1000)
    ]
    values = [*log, *loads, *BAD]
    aggregation, state = GoldenSignals(), defaultdict[recount.ServiceMinute, Accumulator](Accumulator)
    frame = measurements(spark.createDataFrame([(value,) for value in values], "value binary"))
    assert tuple(frame.columns) == (*KEY, *VALUE)
    for row in frame.collect():
        state[key_of(row)] = aggregation.add(state[key_of(row)], row)
    measured = recount.recount(values)
    assert state.keys() == measured.keys()
    assert len({minute for _, minute in measured}) == 4
    results = {key: aggregation.result(accumulator) for key, accumulator in state.items()}
    assert {key: measured[key].wrong(result) for key, result in results.items() if measured[key].wrong(result)} == {}
    (stored,) = spark.createDataFrame([results["web", BEGIN_MS + MINUTE_MS]], RESULT).collect()
    assert stored.asDict() == results["web", BEGIN_MS + MINUTE_MS]

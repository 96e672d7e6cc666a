"""The job's pipeline on real Spark: what it takes for a reading, its processor in a stream, and its alerts."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from py4j.java_gateway import GatewayClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from jobs.temperature_monitor.__main__ import alert_log, states
from jobs.temperature_monitor.pipeline import (
    ALERT_COLUMNS,
    ALERTS,
    KEY,
    MAX_SECONDS_AHEAD,
    STATE,
    THRESHOLD_SCHEMA,
    THRESHOLDS,
    alerts,
    exposing,
    latest,
    readings,
    tracked,
    updates,
)
from jobs.temperature_monitor.processor import Statistics, ratio
from jobs.temperature_monitor.recount import Alert, Reading, Recount, reading_of, update_of
from jobs.temperature_monitor.source import malformed_update
from keyhole import Client
from keyhole.cli.reads import Bounds, OutputFormat
from keyhole.cli.scan_command import Range, scan
from keyhole.demo.batch_logs import BatchLogs
from keyhole.encoding.columnar import OP
from keyhole.spark import queryable
from keyhole.spark.changes import split
from keyhole.spark.driver.cached import kept
from keyhole.spark.driver.data_frames import classic
from tests.support.micro_batches import session_settings
from tests.support.odd_records import NO_OBJECTS, odd_records
from tests.support.streams import RunQuery, Service, Stream
from tests.support.waiting import LONG_SECONDS

BEGIN_MS = 1_795_255_200_000  # 2026-11-21T10:00:00Z
KAFKA = "value binary, partition int, offset bigint, timestamp timestamp"


def record(sensor: object, temperature: object, time: object = "2026-11-21T10:00:00Z", **fields: object) -> bytes:
    return json.dumps({"sensor": sensor, "temperature": temperature, "time": time, **fields}).encode()


GOOD: list[bytes | None] = [
    record("a", 20.5),
    record("a", 21.25, "2026-11-21T10:00:01.5Z"),
    record("a", -3, "2026-11-21T10:00:02.123456Z"),
    record("b", 0.1 + 0.2, "1970-01-01T00:00:00Z"),
    record("b", 0.3, "2024-02-29T23:59:59Z", unknown=[1, 2]),
    record("c", -1e-300, "2026-11-21T10:01:00Z"),
    record("Zürich ☃", -12.5),
    record("x" * 128, 1.0),
]
BAD: list[bytes | None] = [
    *NO_OBJECTS,
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
    b'{"sensor": "a", "temperature": 1e999, "time": "2026-11-21T10:00:00Z"}',
    record("a", 99.0, None),
    record("a", 99.0, BEGIN_MS),
    record("a", 99.0, "yesterday, about noon"),
    record("a", 99.0, "2026-11-21"),
    record("a", 99.0, "2026-11-21T10:00:00"),
    record("a", 99.0, "2026-11-21T10:00:00+00:00"),
    record("a", 99.0, "2026-11-21T10:00:00.Z"),
    record("a", 99.0, "2026-11-21T24:00:00Z"),
    record("a", 99.0, "2026-02-30T10:00:00Z"),
    record("a", 99.0, "1969-12-31T23:59:59Z"),
    record("a", 99.0, "2026-11-21T10:00:00Z\n"),
    record("a", 99.0, "2026-11-21T10:01:00.000001Z"),
    record("a", 99.0, "2099-11-21T10:00:00Z"),
    record(42, 99.0),
    record(True, 99.0),
    record({"a": 1}, 99.0),
    record(["a"], 99.0),
    record("\ud800", 99.0),
    record("a", 99.0) + b"xyz",
    record("a", 99.0) + b"}",
    record("a", 99.0) + b"] junk",
    record("a", 99.0) * 2,
    record("a", 99.0).replace(b'"', b"'"),
    record("a", 99.0).replace(b'"a"', b'"\xff"'),
    record("a", 99.0).decode().encode("utf-16"),
    record("a", 99.0, unknown=float("nan")),
]
BAD_UPDATES = [{"sensor": of, "ratio": 2.0} for of in (42, True, {"a": 1}, "\ud800")] + [{"sensor": "e", "ratio": {}}]


def records(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    """As Kafka's, all recorded at BEGIN_MS."""
    at = datetime.fromtimestamp(BEGIN_MS / 1000, UTC)
    return spark.createDataFrame([(value, 1, offset, at) for offset, value in enumerate(values)], KAFKA).coalesce(1)


def test_what_is_a_reading_to_spark_is_one_to_the_recount_and_nothing_else_is(spark: SparkSession) -> None:
    found = readings(records(spark, GOOD + BAD)).collect()
    expected = [reading_of(value, BEGIN_MS) for value in GOOD + BAD]
    assert [(row.sensor, row.time_ms, row.temperature) for row in found] == [of for of in expected if of is not None]
    assert [row.kafka_offset for row in found] == list(range(len(GOOD)))
    assert {row.kafka_partition for row in found} == {1}
    assert MAX_SECONDS_AHEAD == 60


def test_what_is_an_update_to_spark_is_one_to_the_recount_and_the_last_of_a_batch_counts(spark: SparkSession) -> None:
    pairs: list[tuple[object, object]] = [("a", 1.5), ("a", 2), ("b", 0), ("c", -1.5), ("d", 1.0), ("d", 0.5)]
    wrong: list[tuple[object, object]] = [("", 2.0), (None, 2.0), ("x" * 129, 2.0), ("e", None), ("e", "2")]
    wrong += [("e", True), ("e", float("nan")), ("e", float("inf"))]
    values = [json.dumps({"sensor": sensor, "ratio": ratio}).encode() for sensor, ratio in pairs + wrong]
    broken = [malformed_update(("e", 2.0), number) for number in range(3)]
    broken += [json.dumps(update).encode() for update in BAD_UPDATES]
    broken += [values[0] + b"xyz", values[0] * 2, values[0].replace(b'"', b"'")]
    assert [update_of(value) for value in broken] == [None] * len(broken)
    found = updates(records(spark, [*values, None, b"", b"{}", b"not json", *broken]))
    expected = [update_of(value) for value in values]
    assert [(row.sensor, row.ratio) for row in found.collect()] == [of for of in expected if of is not None] == pairs
    assert {row.sensor: row.ratio for row in latest(found).collect()} == {"a": 2.0, "b": 0.0, "c": -1.5, "d": 0.5}


def test_of_records_with_any_fault_spark_takes_what_the_recount_takes_as_it_takes_it(spark: SparkSession) -> None:
    odd: list[bytes | None] = [*odd_records({"sensor": "a", "temperature": 1.5, "time": "2026-11-21T10:00:00Z"})]
    expected = [(at, of) for at, value in enumerate(odd) if (of := reading_of(value, BEGIN_MS)) is not None]
    found = readings(records(spark, odd)).collect()
    assert [(row.kafka_offset, (row.sensor, row.time_ms, row.temperature)) for row in found] == expected
    assert 10 < len(expected) < len(odd) / 2
    odd = [*odd_records({"sensor": "a", "ratio": 1.5})]
    taken = [(at, update) for at, value in enumerate(odd) if (update := update_of(value)) is not None]
    assert [(row.kafka_offset, (row.sensor, row.ratio)) for row in updates(records(spark, odd)).collect()] == taken
    assert 10 < len(taken) < len(odd) / 2


def test_a_jump_beyond_its_sensors_threshold_is_an_alert(spark: SparkSession) -> None:
    jumps = [("a", 2, 1, 10.0, 15.0, 1.5), ("a", 3, 2, 15.0, 10.0, 1.5), ("a", 4, 3, 10.0, 20.0, 2.0)]
    jumps += [("b", 2, 1, 10.0, 15.0, 1.5), ("c", 2, 1, 10.0, 99.0, 9.9)]
    of = spark.createDataFrame(
        jumps, "sensor string, reading bigint, time_ms bigint, last double, new double, ratio double"
    )
    thresholds = spark.createDataFrame([("a", 1.5), ("b", 1.25), ("d", 1.0)], THRESHOLD_SCHEMA)
    found = sorted(tuple(row) for row in alerts(of, thresholds).collect())
    own = [("a", 4, 3, 10.0, 20.0, 2.0, 1.5), ("b", 2, 1, 10.0, 15.0, 1.5, 1.25)]
    assert found == own
    for default, more in ((0.99, []), (1.0, [("c", 2, 1, 10.0, 99.0, 9.9, 1.0)]), (9.9, [])):
        assert sorted(tuple(row) for row in alerts(of, thresholds, default).collect()) == own + more
    none_set = spark.createDataFrame([], THRESHOLD_SCHEMA)
    assert sorted(tuple(row)[:2] for row in alerts(of, none_set, 1.5).collect()) == [("a", 4), ("c", 2)]


def test_a_fall_to_zero_is_an_alert_whose_infinite_ratio_readers_get_in_python_and_in_json(
    spark: SparkSession, service: Service, application: str, capsys: pytest.CaptureFixture[str]
) -> None:
    thresholds = spark.createDataFrame([("a", 1.5)], THRESHOLD_SCHEMA)
    falls = [("a", n, 1, 5.0, new, ratio(5.0, new)) for n, new in enumerate((4.0, 0.0, -5.0), 2)]
    jumps = spark.createDataFrame(
        falls, "sensor string, reading bigint, time_ms bigint, last double, new double, ratio double"
    )
    log = alert_log(service.config(application)).of(lambda batch: alerts(batch, thresholds))
    # From a table, which is staged as a batch is.
    assert queryable.together(log, query="alerts").bootstrap(jumps)
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        (alert,) = client.scan(application, ALERTS, "a").values
        scan(
            client, OutputFormat(as_json=True), f"{application}/{ALERTS}", "a", Range(None, None, False, None), Bounds()
        )
    assert (alert.last, alert.new, alert.ratio, alert.threshold) == (5.0, 0.0, math.inf, 1.5)
    assert '"ratio": "Infinity"' in capsys.readouterr().out


MOST_QUESTIONS = 190
"""That a batch of the job asks Spark's JVM, once its run has begun. They were 430."""


@pytest.mark.usefixtures("rocksdb")
def test_a_batch_asks_sparks_jvm_nothing_that_the_batch_before_has_been_told(
    spark: SparkSession,
    service: Service,
    application: str,
    stream: Stream,
    run_query: RunQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = dataclasses.replace(service.config(application), proxy=service.proxy)
    thresholds = spark.createDataFrame([("a", 1.5)], THRESHOLD_SCHEMA)
    assert queryable.broadcast(THRESHOLDS, key=KEY, query=THRESHOLDS, config=config).bootstrap(thresholds)
    sink = states(exposing(), config)
    questions = 0
    of_batches: list[int] = []
    send = GatewayClient.send_command

    def counted(self: GatewayClient, command: str, retry: bool = True, binary: bool = False) -> object:
        nonlocal questions
        questions += not command.startswith("m\n")  # that it holds something no longer is no question
        return send(self, command, retry, binary)

    def take(data: DataFrame, batch_id: int) -> None:
        nonlocal questions
        questions = 0
        sink(data, batch_id)
        of_batches.append(questions)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    rows: list[list[dict[str, object]]] = [
        [{"sensor": "a", "time_ms": BEGIN_MS + n, "temperature": of, "kafka_partition": 0, "kafka_offset": n}]
        for n, of in enumerate((1.0, 2.0, 2.5, 5.0))
    ]
    schema = "sensor string, time_ms bigint, temperature double, kafka_partition int, kafka_offset bigint"
    data = stream(schema, rows).withColumn("time", f.timestamp_millis("time_ms"))
    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        run_query(tracked(data, exposing()), "update", take)
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        assert client.get(application, STATE, "a").value.readings == 4
        assert [alert.new for alert in client.scan(application, ALERTS, "a").values] == [2.0, 5.0]
    assert max(of_batches[1:]) <= MOST_QUESTIONS


@pytest.mark.usefixtures("rocksdb")
def test_a_stream_gives_what_the_recount_makes_of_its_batches_and_forgets_silent_sensors(
    spark: SparkSession, stream: Stream, run_query: RunQuery, tmp_path: Path
) -> None:
    draw = random.Random(7)
    batches: list[list[Reading]] = []
    now = BEGIN_MS
    for number in range(4):
        batch = []
        for _ in range(60):
            now += 5_000
            late = draw.choice([0, 0, 0, 30_000, 120_000])
            batch.append(Reading(f"s{draw.randrange(5)}", now - late, round(draw.uniform(-2, 12), 1)))
        batches.append(batch)
        now += 3_000_000 * (number % 2)  # fifty minutes, after every other
    # One sensor goes on; the others are silent for more than an hour.
    batches += [[Reading("s0", now + 2_400_000 * n, 7.0)] for n in range(4)]
    thresholds = {"s0": 1.5, "s1": 1.0, "s2": 3.0, "s4": 1.2}
    of = spark.createDataFrame([*thresholds.items()], THRESHOLD_SCHEMA)
    sensors: dict[str, Statistics] = {}
    logged: defaultdict[str, list[Alert]] = defaultdict(list)
    forgotten: set[str] = set()
    seen: list[int] = []

    def take(data: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        with kept(classic(data)) as batch:
            both = split(batch)
            for row in alerts(both.rows, of).orderBy("sensor", "reading").collect():
                logged[row.sensor].append(Alert(*(row[name] for name in ALERT_COLUMNS)))
            for row in both.changes["sensors"].collect():
                if row[OP] == "put":
                    sensors[row.sensor] = Statistics(*(row[name] for name in Statistics._fields))
                else:
                    assert row[OP] == "clear"
                    del sensors[row.sensor]
                    forgotten.add(row.sensor)

    offset = 0
    rows: list[list[dict[str, object]]] = []
    for batch in batches:
        rows.append([])
        for reading in batch:
            offset += 1
            rows[-1].append({**reading._asdict(), "kafka_partition": 0, "kafka_offset": offset})
        draw.shuffle(rows[-1])
    schema = "sensor string, time_ms bigint, temperature double, kafka_partition int, kafka_offset bigint"
    data = stream(schema, rows).withColumn("time", f.timestamp_millis("time_ms"))
    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        run_query(tracked(data, exposing()), "update", take)

    logs = BatchLogs(tmp_path / "checkpoint", tmp_path / "none")
    recount = Recount()
    coming = iter(batches)
    before = ""
    for batch_id in range(logs.newest() + 1):
        source = (tmp_path / "checkpoint" / "offsets" / str(batch_id)).read_text().splitlines()[-1]
        recount.take(next(coming) if source != before else [], logs.watermark_ms(batch_id), thresholds)
        before = source
    assert seen == list(range(logs.newest() + 1))
    assert next(coming, None) is None
    assert {sensor: len(of.temperatures) for sensor, of in recount.sensors.items()} == {
        sensor: of.readings for sensor, of in sensors.items()
    }
    for sensor, counted in recount.sensors.items():
        found, temperatures = sensors[sensor], counted.temperatures
        assert found.mean == pytest.approx(counted.mean, rel=1e-9)
        assert found._replace(mean=0.0) == Statistics(
            temperatures[-1], min(temperatures), max(temperatures), 0.0, len(temperatures), counted.time_ms
        )
    assert logged == recount.logged
    assert len(logged) == 4
    assert forgotten >= {"s1", "s2", "s3", "s4"}
    assert "s0" in sensors

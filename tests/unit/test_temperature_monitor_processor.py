"""What is kept of a sensor, its jumps and its end: the processor on Spark's own tester, and the recount of the same."""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from jobs.temperature_monitor import verify
from jobs.temperature_monitor.config import TemperatureMonitorConfig
from jobs.temperature_monitor.pipeline import LOWEST_THRESHOLD
from jobs.temperature_monitor.processor import HOUR_MS, SENSORS, Sensors, Statistics, ratio
from jobs.temperature_monitor.recount import Alert, Reading, Recount, default_of, thresholds_of
from keyhole import Answer, Source
from keyhole.config import load
from keyhole.demo.batch_logs import BatchLogs, keep
from keyhole.encoding.columnar import ipc_stream
from keyhole.encoding.row import row_class
from keyhole.model.read import Role
from keyhole.spark.driver.checkpoint_files import LocalFiles
from keyhole.spark.driver.pins import BatchPins

BEGIN_MS = 1_795_219_200_000
SECOND_MS = 1000


class Bench:
    """The processor without Spark; readings get their offsets as they come, and the watermark is moved by hand."""

    def __init__(self) -> None:
        # In Spark, too, rows pass that are behind the watermark of their batch: what is too late the processor decides.
        self._tester = TwsTester(Sensors(), timeMode="eventTime", eventTimeExtractor=lambda _: sys.maxsize)
        self._offset = 0

    def take(self, *readings: Reading, backwards: bool = False) -> list[Row]:
        """A batch: the jumps."""
        of: defaultdict[str, list[Row]] = defaultdict(list)
        for sensor, time_ms, temperature in readings:
            self._offset += 1
            row = Row(kafka_partition=0, kafka_offset=self._offset, time_ms=time_ms, temperature=temperature)
            of[sensor].append(row)
        return [
            row for sensor, rows in of.items() for row in self._tester.test(sensor, rows[::-1] if backwards else rows)
        ]

    def advance(self, watermark_ms: int) -> None:
        self._tester.setWatermark(watermark_ms)

    def kept(self, sensor: str = "a") -> Statistics | None:
        stored = self._tester.peekValueState(SENSORS, sensor)
        return None if stored is None else Statistics(*stored)


def reading(second: float, temperature: float, sensor: str = "a") -> Reading:
    return Reading(sensor, BEGIN_MS + round(second * SECOND_MS), temperature)


def test_last_is_the_newest_in_kafka_whatever_its_time_and_the_order_in_which_spark_hands_rows_out() -> None:
    bench = Bench()
    jumps = bench.take(reading(3, 10.0), reading(9, 20.0), reading(5, 15.0), backwards=True)
    assert bench.kept() == (15.0, 10.0, 20.0, 15.0, 3, BEGIN_MS + 9 * SECOND_MS)
    assert [(row.reading, row.last, row.new, row.ratio) for row in jumps] == [
        (2, 10.0, 20.0, 2.0),
        (3, 20.0, 15.0, 4 / 3),
    ]
    assert [row.time_ms for row in jumps] == [BEGIN_MS + 9 * SECOND_MS, BEGIN_MS + 5 * SECOND_MS]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_the_mean_of_any_finite_readings_is_between_them(readings: list[float]) -> None:
    of = Statistics(0.0, math.inf, -math.inf, 0.0, 0, 0)
    for temperature in readings:
        of = of.with_reading(temperature, BEGIN_MS)
    room = max(map(abs, readings)) * 1e-12 + 1e-300
    assert min(readings) - room <= of.mean <= max(readings) + room


def test_a_jump_is_told_from_one_batch_to_the_next() -> None:
    bench = Bench()
    assert bench.take(reading(0, 10.0)) == []
    (jump,) = bench.take(reading(1, 5.0))
    assert (jump.sensor, jump.reading, jump.last, jump.new, jump.ratio) == ("a", 2, 10.0, 5.0, 2.0)
    assert bench.take(reading(2, 5.0)) == []


@pytest.mark.parametrize(
    ("last", "new", "expected"),
    [
        (10.0, 15.0, 1.5),
        (15.0, 10.0, 1.5),
        (10.0, 10.0, 1.0),
        (0.0, 5.0, 1.0),
        (-5.0, 5.0, 1.0),
        (5.0, 0.0, math.inf),
        (5.0, -0.0, math.inf),
        (5.0, -5.0, 1.0),
        (0.0, 0.0, 1.0),
        (5e-324, 1e308, math.inf),
    ],
)
def test_a_ratio_is_either_way_infinite_to_zero_and_there_is_none_from_what_is_not_above_zero_or_to_below_it(
    last: float, new: float, expected: float
) -> None:
    assert ratio(last, new) == expected


def test_a_reading_at_the_watermark_is_too_late_and_one_after_it_is_not() -> None:
    bench = Bench()
    bench.take(reading(100, 10.0))
    bench.advance(BEGIN_MS + 40 * SECOND_MS)
    assert bench.take(reading(40, 99.0), reading(40.001, 11.0))[0].new == 11.0
    kept = bench.kept()
    assert kept is not None
    assert (kept.last, kept.max, kept.readings, kept.time_ms) == (11.0, 11.0, 2, BEGIN_MS + 100 * SECOND_MS)
    assert bench.take(reading(30, 99.0, "b")) == []
    assert bench.kept("b") is None


def test_a_sensor_is_forgotten_an_hour_after_its_newest_reading_and_begins_anew() -> None:
    bench = Bench()
    bench.take(reading(0, 10.0), reading(0, 1.0, "b"))
    bench.take(reading(1800, 20.0))
    bench.advance(BEGIN_MS + HOUR_MS)
    assert bench.kept("b") is None
    assert bench.kept() is not None
    bench.advance(BEGIN_MS + HOUR_MS + 1800 * SECOND_MS - 1)
    assert bench.kept() is not None
    bench.advance(BEGIN_MS + HOUR_MS + 1800 * SECOND_MS)
    assert bench.kept() is None
    assert bench.take(reading(10_000, 30.0)) == []
    assert bench.kept() == (30.0, 30.0, 30.0, 30.0, 1, BEGIN_MS + 10_000 * SECOND_MS)


@pytest.mark.parametrize("seed", range(20))
def test_processor_and_recount_agree_on_any_stream(seed: int) -> None:
    draw = random.Random(seed)
    default = draw.choice([None, 1.0, 1.5, 3.0])
    bench, recount, now, watermark_ms = Bench(), Recount(default), 0.0, 0
    seen: set[str] = set()
    logged: defaultdict[str, list[tuple[float, ...]]] = defaultdict(list)
    for _ in range(30):
        thresholds = {sensor: draw.choice([1.0, 1.2, 2.0]) for sensor in "abcd" if draw.random() < 0.7}
        batch = []
        for _ in range(draw.randrange(6)):
            now += draw.choice([1, 30, 900, 3000])
            sensor, late = draw.choice("abcd"), draw.choice([0, 0, 30, 90])
            batch.append(reading(now - late, draw.choice([-1.0, 0.0, 5.0, 7.5, 10.0, 30.0]), sensor))
        seen |= {one.sensor for one in batch}
        for jump in sorted(bench.take(*batch), key=lambda row: row.reading):
            threshold = thresholds.get(jump.sensor, default)
            if threshold is not None and jump.ratio > threshold:
                logged[jump.sensor].append((jump.time_ms, jump.last, jump.new, jump.ratio, threshold))
        recount.take(batch, watermark_ms, thresholds)
        advanced = max([watermark_ms, *(one.time_ms - 60 * SECOND_MS for one in batch)])
        if advanced > watermark_ms:
            watermark_ms = advanced
            bench.advance(watermark_ms)
            recount.take([], watermark_ms, {})
        for sensor in seen:
            assert verify.agrees(answer_of(bench.kept(sensor)), recount.sensors.get(sensor))
    assert {sensor: alerts[-100:] for sensor, alerts in logged.items()} == recount.alerts()


def answer_of(kept: Statistics | None) -> Answer:
    """As a reader gets it."""
    fields = [("last", float), ("min", float), ("max", float), ("mean", float), ("readings", int), ("time_ms", int)]
    source = Source("server-0", Role.OWNER, 1, None, None, 1, 1, False)
    return Answer(kept is not None, None if kept is None else row_class(fields)(*kept), source)


def test_an_answer_that_differs_in_anything_is_none_that_was_counted() -> None:
    recount = Recount()
    recount.take([reading(0, 10.0), reading(1, 10.3)], 0, {})
    of = recount.sensors["a"]
    right = Statistics(10.3, 10.0, 10.3, of.mean, 2, BEGIN_MS + SECOND_MS)
    assert verify.agrees(answer_of(right), of)
    for name, value in right._asdict().items():
        assert not verify.agrees(answer_of(right._replace(**{name: value + 1})), of)
    assert not verify.agrees(answer_of(None), of)
    assert not verify.agrees(answer_of(right), None)


def test_a_fall_to_zero_is_an_alert_of_the_recount_and_a_rise_from_it_or_a_fall_below_it_is_none() -> None:
    recount = Recount()
    recount.take([reading(n, of) for n, of in enumerate([5.0, 0.0, 5.0, -5.0, 5.0])], 0, {"a": 1.5})
    assert recount.alerts() == {"a": [Alert(BEGIN_MS + SECOND_MS, 5.0, 0.0, math.inf, 1.5)]}


def test_a_sensor_without_a_threshold_has_the_default_one_of_the_recount_and_one_with_it_its_own() -> None:
    recount = Recount(1.5)
    for thresholds in ({"b": 3.0}, {}):
        recount.take([reading(n, of, sensor) for n, of in enumerate([5.0, 10.0]) for sensor in "ab"], 0, thresholds)
    (first, *later) = recount.alerts()["a"]
    assert first == Alert(BEGIN_MS + SECOND_MS, 5.0, 10.0, 2.0, 1.5)
    assert recount.alerts()["b"] == later
    assert len(later) == 2


@pytest.mark.parametrize(
    ("setting", "default"), [(None, None), ("0.0", None), ("0.99", None), ("1", 1.0), ("1.5", 1.5), ("1e308", 1e308)]
)
def test_a_default_threshold_below_one_is_none_to_the_recount_and_to_the_job(
    setting: str | None, default: float | None
) -> None:
    assert default_of(setting) == default
    given = {} if setting is None else {"KEYHOLE_TEMPERATURE_MONITOR_DEFAULT_THRESHOLD": setting}
    config = load(TemperatureMonitorConfig, given, topic="r", thresholds_topic="t", checkpoint="c", directory=Path("d"))
    assert (config.default_threshold >= LOWEST_THRESHOLD) == (default is not None)
    assert default in (None, config.default_threshold)


def test_the_recount_keeps_the_last_hundred_alerts() -> None:
    recount = Recount()
    recount.take([reading(number, 10.0 + 10.0 * (number % 2)) for number in range(200)], 0, {"a": 1.5})
    alerts = recount.alerts()["a"]
    assert len(alerts) == 100
    assert alerts[-1] == Alert(BEGIN_MS + 199 * SECOND_MS, 10.0, 20.0, 2.0, 1.5)


def test_an_update_of_one_or_more_sets_a_threshold_and_one_below_takes_it_away() -> None:
    assert thresholds_of([("a", 1.0), ("b", 1.5), ("b", 2.5), ("c", 1.5), ("c", 0.99), ("d", -3.0)]) == {
        "a": 1.0,
        "b": 2.5,
    }


def write_log(checkpoint: Path, batches: Sequence[int]) -> None:
    for folder in ("offsets", "commits", "keyhole/broadcast/app.rules"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    for batch in batches:
        offsets = f'v1\n{{"batchWatermarkMs":{batch * 1000}}}\n{{"readings":{{"0":{batch + 7},"1":{batch}}}}}'
        (checkpoint / "offsets" / str(batch)).write_text(offsets)
        (checkpoint / "offsets" / f".{batch}.crc").write_text("no log")
        (checkpoint / "commits" / str(batch)).write_text("v1\n{}")
        pins = BatchPins(LocalFiles(checkpoint / "keyhole/broadcast/app.rules"), batch, kept=100)
        rows = pa.Table.from_pylist([{"sensor": "a", "ratio": 1.5}] * min(batch, 1))
        pins.share(ipc_stream(rows), str(batch), pins.before())


def test_what_a_checkpoint_drops_of_its_logs_is_in_their_copies(tmp_path: Path) -> None:
    checkpoint, beside, copies = tmp_path / "checkpoint", tmp_path / "checkpoint-rules", tmp_path / "logs"
    write_log(checkpoint, range(3))
    write_log(beside, [0])
    keep(checkpoint, copies)
    write_log(checkpoint, [3])
    for folder in ("offsets", "keyhole/broadcast/app.rules"):
        (checkpoint / folder / "0").unlink()
    keep(checkpoint, copies)
    write_log(checkpoint, [4])
    logs = BatchLogs(checkpoint, copies)
    assert logs.newest() == logs.begun() == 4
    (checkpoint / "commits" / "4").unlink()
    assert (logs.newest(), logs.begun()) == (3, 4)
    assert [logs.watermark_ms(batch) for batch in range(5)] == [0, 1000, 2000, 3000, 4000]
    assert [logs.ends(batch) for batch in (0, 4)] == [{0: 7, 1: 0}, {0: 11, 1: 4}]
    of_batches = [logs.broadcast("app.rules", batch) for batch in range(5)]
    read = [(epoch, verify.thresholds_in(content)) for epoch, content in of_batches]
    assert read == [(0, {}), *((epoch, {"a": 1.5}) for epoch in range(1, 5))]
    assert BatchLogs(beside, copies).ends(0) == {0: 7, 1: 0}
    assert sorted(path.name for path in copies.glob("checkpoint/offsets/*")) == ["0", "1", "2", "3"]


def test_a_query_beside_is_waited_for_until_it_has_taken_all_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, coming = tmp_path / "checkpoint-rules", iter(range(3))
    logs = BatchLogs(checkpoint, tmp_path / "logs")
    with pytest.raises(TimeoutError, match="the query of checkpoint-rules has not taken all within 0 s"):
        logs.await_ends({0: 9, 1: 2}, 0)
    # Each look finds one batch more than the one before.
    monkeypatch.setattr("time.sleep", lambda _: write_log(checkpoint, [next(coming)]))
    assert logs.await_ends({0: 9, 1: 2}, 60) == 2

"""The request log, the machine's load, what a measurement is to the recount, and the signals of known rows."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from typing import NamedTuple

import msgspec
import psutil
import pytest

from jobs.golden_signals import pipeline, recount, signals, source
from jobs.golden_signals.recount import Measured
from jobs.golden_signals.signals import RESULT, GoldenSignals
from jobs.golden_signals.source import MINUTE_MS, SERVICES, Load, Machine, Request, Shape
from keyhole.spark.worker.aggregating import Aggregator
from tests.support.odd_records import NO_OBJECTS

BEGIN_MS = 1_795_219_200_000  # 2026-11-21, on the hour
SIGNALS = GoldenSignals()


class Row(NamedTuple):
    duration_us: int | None = None
    failed: bool | None = None
    cpu_permille: int | None = None
    memory_permille: int | None = None


def result_of(*rows: Row) -> signals.Result:
    accumulator = SIGNALS.create()
    for row in rows:
        accumulator = SIGNALS.add(accumulator, row)
    return SIGNALS.result(accumulator)


def record(**fields: object) -> bytes:
    return json.dumps({"service": "web", "time": BEGIN_MS, "duration": 1, "status": 200} | fields).encode()


def load_record(**fields: object) -> bytes:
    return json.dumps({"service": "web", "time": BEGIN_MS, "cpu": 1, "memory": 2} | fields).encode()


def sent(count: int, seed: int = 1) -> list[Request]:
    return list(itertools.islice(source.requests(seed, BEGIN_MS, Shape(per_second=20)), count))


def test_the_same_seed_gives_the_same_log_and_another_seed_another() -> None:
    assert sent(500) == sent(500)
    assert sent(500) != sent(500, seed=2)


def test_the_log_is_in_the_order_of_time_at_its_rate_with_each_service_having_its_share() -> None:
    log = sent(20_000)
    times = [request.time_ms for request in log]
    assert times == sorted(times)
    assert times[0] >= BEGIN_MS
    assert 19 < len(log) / (times[-1] - BEGIN_MS) * 1000 < 21
    for service in SERVICES:
        share = sum(request.service == service.name for request in log) / len(log)
        assert share == pytest.approx(service.share, abs=0.02)


def test_in_every_tenth_minute_one_service_is_slow_and_fails() -> None:
    of_minute: defaultdict[tuple[str, int], list[Request]] = defaultdict(list)
    for request in sent(25_000):
        of_minute[request.service, (request.time_ms - BEGIN_MS) // MINUTE_MS].append(request)

    def median_and_failures(service: str, minute: int) -> tuple[int, float]:
        found = of_minute[service, minute]
        return sorted(r.duration_us for r in found)[len(found) // 2], sum(r.status == 503 for r in found) / len(found)

    for service, minute in (("web", 9), ("search", 19)):
        slow, failing = median_and_failures(service, minute)
        usual, fine = median_and_failures(service, minute - 1)
        assert slow > 4 * usual
        assert failing > 0.1 > fine


def test_the_load_is_that_of_this_machine() -> None:
    machine = Machine()
    cpu, memory = machine.load()
    assert 0 <= cpu <= 1000
    assert memory == pytest.approx(psutil.virtual_memory().percent * 10, abs=100)
    records = [json.loads(value) for value in source.load_records(Load(1, 2), BEGIN_MS)]
    assert [(item["service"], item["cpu"], item["memory"]) for item in records] == [(s.name, 1, 2) for s in SERVICES]


def test_what_the_source_sends_is_counted() -> None:
    values = [source.record(Request("web", BEGIN_MS + 1, 1_500, 503)), *source.load_records(Load(1, 2), BEGIN_MS + 2)]
    counted = recount.recount(values)
    assert counted["web", BEGIN_MS] == Measured([1_500], 1, [1], [2])
    assert set(counted) == {(service.name, BEGIN_MS) for service in SERVICES}


@pytest.mark.parametrize(
    "value",
    [
        *NO_OBJECTS,
        record(service=None),
        record(service=1),
        record(service="true"),
        record(service="a/b"),
        record(service="a\n"),
        record(service="x" * 65),
        record(time=-1),
        record(time=4_102_444_800_000),
        record(time=True),
        record(duration=-1),
        record(duration=86_400_000_001),
        record(duration=1.5),
        record(duration=None),
        record(status=99),
        record(status="200"),
        record(cpu=1, memory=2),
        record(cpu=1),
        load_record(cpu=1001),
        load_record(memory=None),
        load_record(status=200),
    ],
)
def test_what_is_no_measurement_is_not_counted(value: bytes | None) -> None:
    assert recount.recount([value]) == {}


def test_the_signals_of_known_rows() -> None:
    requests = [Row(number * 1_000, failed=number > 98) for number in range(1, 101)]
    loads = [Row(cpu_permille=200, memory_permille=500), Row(cpu_permille=900, memory_permille=400)]
    result = result_of(*requests, *loads)
    assert result == {
        "requests": 100,
        "per_second": 100 / 60,
        "errors": 2,
        "error_ratio": 0.02,
        "mean_ms": 50.5,
        "p50_ms": pytest.approx(50, rel=0.0101),
        "p90_ms": pytest.approx(90, rel=0.0101),
        "p99_ms": pytest.approx(99, rel=0.0101),
        "max_ms": 100.0,
        "cpu_mean": 0.55,
        "cpu_max": 0.9,
        "memory_max": 0.5,
        "saturation": 0.55,
    }
    assert list(result) == [field.split()[0] for field in RESULT.split(", ")]


def test_what_was_not_measured_is_none_and_not_nought() -> None:
    requests_only, loads_only = result_of(Row(0, failed=False)), result_of(Row(cpu_permille=0, memory_permille=0))
    assert (requests_only["p50_ms"], requests_only["max_ms"], requests_only["saturation"]) == (0.0, 0.0, None)
    assert (loads_only["requests"], loads_only["errors"], loads_only["saturation"]) == (0, 0, 0.0)
    assert {loads_only[name] for name in ("error_ratio", "mean_ms", "p50_ms", "p99_ms", "max_ms")} == {None}


def test_a_duration_of_a_day_beside_one_of_a_microsecond_takes_little_room() -> None:
    accumulator = SIGNALS.create()
    for duration_us in (0, 1, 86_400_000_000):
        SIGNALS.add(accumulator, Row(duration_us, failed=False))
    assert len(SIGNALS.encode(accumulator)) < 1_400


def test_an_accumulator_of_a_later_layout_is_refused_and_so_is_what_is_none() -> None:
    stored = msgspec.msgpack.decode(SIGNALS.encode(SIGNALS.create()))
    with pytest.raises(ValueError, match="layout 2"):
        SIGNALS.decode(msgspec.msgpack.encode([2, *stored[1:]]))
    with pytest.raises(ValueError, match="array"):
        SIGNALS.decode(b"\x00")


def test_the_recount_tells_which_fields_are_wrong() -> None:
    measured = Measured([1_000] * 10, 1, [100], [200])
    right = result_of(*[Row(1_000, failed=number == 0) for number in range(10)], Row(None, None, 100, 200))
    assert measured.wrong(right) == []
    assert measured.wrong(right | {"errors": 2, "p99_ms": 1.02, "max_ms": 1.005}) == ["errors", "max_ms", "p99_ms"]
    assert measured.wrong(right | {"cpu_mean": None}) == ["cpu_mean"]
    assert Measured([1_000]).wrong(right | {"saturation": 0.0}) != []


def test_the_job_says_what_the_aggregation_takes_and_readers_get() -> None:
    assert isinstance(SIGNALS, Aggregator)
    assert Row._fields == pipeline.VALUE
    assert re.fullmatch(r"(\w+ (bigint|double)(, )?)+", RESULT)
    assert signals.RELATIVE_ERROR == recount.RELATIVE_ERROR

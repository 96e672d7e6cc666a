"""The source's readings, what a reading is to the recount, and how the demo measures freshness."""

from __future__ import annotations

import io
import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from jobs.temperature_monitor import pipeline, source, verify
from jobs.temperature_monitor.description import JOB
from jobs.temperature_monitor.recount import reading_of, update_of
from keyhole import Answer, Entries, Entry, Source
from keyhole.demo import command as demo
from keyhole.demo import reading_ages
from keyhole.demo.answers_table import AnswersTable
from keyhole.demo.batch_logs import BatchLogs
from keyhole.demo.recount import RecountVerdict
from keyhole.encoding.row import row_class
from keyhole.errors import ServerLost
from keyhole.model.read import Role
from tests.support import promql
from tests.support.odd_records import NO_OBJECTS

YEAR_HOURS = 8759


NOW_MS = 1_795_219_200_000  # 2026-11-21


def record(**fields: object) -> bytes:
    return json.dumps({"sensor": "a", "time": "2026-11-21T00:00:00Z", "temperature": 1.5} | fields).encode()


@pytest.mark.parametrize(("fahrenheit", "celsius"), [(32.0, 0.0), (212.0, 100.0), (39.4, 4.1), (-40.0, -40.0)])
def test_fahrenheit_becomes_celsius_to_a_tenth(fahrenheit: float, celsius: float) -> None:
    assert source.celsius(fahrenheit) == celsius


def test_the_cities_have_a_year_of_plausible_temperatures_hour_by_hour_and_begin_again() -> None:
    hours = list(itertools.islice(source.recorded(), YEAR_HOURS + 1))
    assert hours[0] == hours[-1]
    assert hours[0] == [("seattle", 4.1), ("san-francisco", 8.8)]
    assert {sensor for hour in hours for sensor, _ in hour} == set(source.CITIES)
    temperatures = [temperature for hour in hours for _, temperature in hour]
    assert 0 < min(temperatures) < max(temperatures) < 30


def test_the_fleet_walks_in_turn_and_the_same_way_in_every_run() -> None:
    first, second = (list(itertools.islice(source.fleet(3), 9)) for _ in range(2))
    assert first == second
    assert [sensor for sensor, _ in first] == ["sensor-0", "sensor-1", "sensor-2"] * 3
    assert len({temperature for sensor, temperature in first if sensor == "sensor-0"}) == 3


def test_each_reading_of_the_probe_is_higher_than_the_one_before() -> None:
    temperatures = [temperature for _, temperature in itertools.islice(source.probe(), 2_000)]
    assert all(before < after for before, after in itertools.pairwise(temperatures))


def test_the_probe_alone_is_in_its_partition_and_every_sensor_always_in_the_same() -> None:
    sensors = [*source.CITIES, *(f"sensor-{number}" for number in range(200))]
    assert source.partition_of(source.PROBE) == source.PROBE_PARTITION
    assert {source.partition_of(sensor) for sensor in sensors} == {1, 2}
    assert [source.partition_of(sensor) for sensor in sensors] == [source.partition_of(sensor) for sensor in sensors]


def test_the_demo_knows_the_job_and_its_source_by_their_names() -> None:
    """The distribution can't import them, so it says them again."""
    names = (pipeline.APPLICATION, pipeline.STATE)
    assert (demo.APPLICATION, demo.STATE) == (verify.APPLICATION, verify.STATE) == names
    assert JOB.probe == (pipeline.STATE, source.PROBE) == (demo.STATE, demo.PROBE)
    assert (demo.PROBE_PARTITION, JOB.partitions) == (source.PROBE_PARTITION, source.PARTITIONS)
    assert (pipeline.ALERTS, pipeline.THRESHOLDS) == (verify.ALERTS, verify.THRESHOLDS)
    assert demo.ALERTS == pipeline.ALERTS
    assert [*JOB.more_topics] == [verify.THRESHOLDS_TOPIC]
    assert set(source.CITIES) < set(demo.SHOWN)


def test_every_watched_sensor_gets_a_threshold_and_loses_it_again() -> None:
    updates = list(itertools.islice(source.updates(), 12 * 6))
    assert [sensor for sensor, _ in updates] == list(source.WATCHED) * 6
    assert {sensor for sensor, ratio in updates if ratio >= pipeline.LOWEST_THRESHOLD} == set(source.WATCHED)
    assert {sensor for sensor, ratio in updates if ratio < pipeline.LOWEST_THRESHOLD} == set(source.WATCHED)


def test_what_the_source_sends_is_a_reading_or_an_update_and_what_it_breaks_is_none() -> None:
    moment = datetime(2026, 11, 21, 0, 0, 0, 250_000, tzinfo=UTC)
    assert reading_of(source.record(("a", 1.5), moment), NOW_MS) == ("a", NOW_MS + 250, 1.5)
    assert reading_of(source.malformed(("a", 1.5), moment), NOW_MS) is None
    assert update_of(source.update_record(("a", 1.5))) == ("a", 1.5)


def test_some_of_the_updates_that_the_source_sends_are_broken_and_all_others_are_in_their_order() -> None:
    sent = [update_of(value) for of in itertools.islice(source.update_records(broken=True), 1000) for value in of]
    assert [update for update in sent if update is not None] == list(itertools.islice(source.updates(), 1000))
    broken = [at for at, update in enumerate(sent) if update is None]
    assert broken == [4, 405, 806], "one of each kind of mistake"
    # KeyholeRejectedRecords looks at ten minutes, in which 300 are sent, and waits five, in which 150 are.
    (threshold,) = [alert["expr"] for alert in promql.alerts() if alert["alert"] == "KeyholeRejectedRecords"]
    assert threshold.rpartition(">")[2].strip() == "0.01"
    assert max(sum(update is None for update in sent[at : at + 300]) for at in range(700)) <= 0.005 * 300
    assert sum(update is None for update in sent[: len(source.WATCHED) + 150]) < 0.01 * 150
    whole = [value for of in itertools.islice(source.update_records(broken=False), 24) for value in of]
    assert None not in map(update_of, whole)


def test_a_whole_number_is_a_temperature() -> None:
    assert reading_of(record(temperature=7), NOW_MS) == ("a", NOW_MS, 7.0)


def test_a_reading_may_be_a_minute_ahead_of_its_record_and_no_more() -> None:
    assert reading_of(record(time="2026-11-21T00:01:00Z"), NOW_MS) == ("a", NOW_MS + 60_000, 1.5)
    assert reading_of(record(time="2026-11-21T00:01:00.000001Z"), NOW_MS) is None


@pytest.mark.parametrize(
    "value",
    [
        *NO_OBJECTS,
        record(sensor=None),
        record(sensor=""),
        record(sensor="x" * 129),
        record(temperature=None),
        record(temperature="warm"),
        record(temperature=True),
        record(temperature=float("nan")),
        record(temperature=float("inf")),
        record(time=None),
        record(time=NOW_MS),
        record(time="yesterday"),
        record(time="2026-02-30T00:00:00Z"),
        record(time="2026-11-21 00:00:00Z"),
    ],
)
def test_what_is_no_reading_is_not_counted(value: bytes | None) -> None:
    assert reading_of(value, NOW_MS) is None


def test_the_offsets_of_a_batch_are_the_last_line_of_its_file_in_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text('v1\n{"batchWatermarkMs":0}\n{"readings":{"1":20,"0":7}}')
    assert BatchLogs(tmp_path, tmp_path / "logs").ends(4) == {0: 7, 1: 20}


@pytest.mark.parametrize(
    ("verdict", "passed", "mismatches"),
    [
        (RecountVerdict(epoch=3, keys=10, agreed=10, surplus=0, events=50), True, 0),
        (RecountVerdict(epoch=3, keys=10, agreed=9, surplus=0, events=50), False, 1),
        (RecountVerdict(epoch=3, keys=10, agreed=10, surplus=2, events=50), False, 2),
        (RecountVerdict(epoch=3, keys=0, agreed=0, surplus=0, events=0), False, 0),
    ],
    ids=["all agree", "one differs", "two too many", "nothing counted"],
)
def test_it_passes_only_if_keys_were_counted_and_all_agree(
    verdict: RecountVerdict, passed: bool, mismatches: int
) -> None:
    assert (verdict.passed, verdict.mismatches) == (passed, mismatches)


def answer(last: float | None, *, epoch: int = 1) -> Answer:
    """The probe's, as of a moment ago; None: absent."""
    now = datetime.now(UTC)
    committed, as_of = now - timedelta(seconds=60), now - timedelta(seconds=3)
    source = Source("server-0", Role.OWNER, epoch, committed, None, 1, 1, False, as_of)
    fields = [(name, float) for name in ("last", "min", "max", "mean")]
    value = None if last is None else row_class([*fields, ("readings", int)])(last, last - 2, last + 1, last - 0.5, 12)
    return Answer(last is not None, value, source)


def test_a_temperature_of_the_probe_is_sighted_once_and_only_higher_ones_count() -> None:
    sightings = reading_ages.Sightings()
    for moment, shown in enumerate([answer(None, epoch=0), answer(0.1), answer(0.1), answer(0.3, epoch=2)]):
        sightings.note(shown, float(moment))
    assert sightings.first_shown == [(0.1, 1.0), (0.3, 3.0)]
    assert sightings.epoch == 2


def rendered(table: AnswersTable) -> str:
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(table.render())
    return capture.get()


def test_the_table_shows_values_epoch_age_and_server_and_a_dash_for_what_is_absent() -> None:
    table = AnswersTable("answers", ["san-francisco", "b"])
    table.update([answer(21.5, epoch=7), answer(None)])
    a, b = [line.split() for line in rendered(table).splitlines() if "server-0" in line]
    # As of three seconds ago when they were made, and committed a minute ago.
    ages = [float(line.pop(-3)) for line in (a, b)]
    assert all(3.0 <= age < 60.0 for age in ages)
    assert a == ["san-francisco", *("21.50", "19.50", "22.50", "21.00", "12"), *("7", "s", "server-0")]
    assert b == ["b", *["-"] * 5, "1", "s", "server-0"]


def test_the_table_shows_the_last_alert_until_there_is_another() -> None:
    table = AnswersTable("answers", ["a", "b"])
    table.update([answer(21.5), answer(21.5)])
    fields = [("time_ms", int), ("last", float), ("new", float), ("ratio", float), ("threshold", float)]
    alert = row_class(fields)(NOW_MS, 10.0, 15.0, 1.5, 1.2)
    source = Source("server-0", Role.OWNER, 1, None, None, 1, 1, False)
    table.note_alerts("a", Entries((Entry(0, alert),), source))
    table.note_alerts("b", Entries((), source))
    assert "alert at 00:00:00: a from 10.00 to 15.00 °C" in rendered(table)


def test_the_last_answers_stay_in_sight_while_there_are_none_and_the_reason_is_shown() -> None:
    table = AnswersTable("answers", ["a"])
    table.update([answer(21.5)])
    table.fail(ServerLost("gone"))
    assert "21.50" in rendered(table)
    assert "no answers now: SERVER_LOST" in rendered(table)
    table.update([answer(21.5)])
    assert "no answers now" not in rendered(table)


def test_only_what_was_sent_while_somebody_looked_and_was_shown_has_an_age() -> None:
    first_shown = [(0.05, 1_000.0), (0.20, 1_500.0), (0.30, 2_000.0)]
    sent = [(0.04, 400.0), (0.05, 500.0), (0.10, 1_100.0), (0.20, 1_400.0), (0.25, 1_450.0), (0.31, 1_900.0)]
    assert reading_ages.ages_ms(sent, first_shown) == [400.0, 100.0, 550.0]


def test_nothing_shown_gives_no_ages() -> None:
    assert reading_ages.ages_ms([(0.1, 5.0)], []) == []


@pytest.mark.parametrize(("fraction", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_percentiles_are_by_nearest_rank(fraction: float, expected: float) -> None:
    assert reading_ages.percentile(range(100, 0, -1), fraction) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    assert reading_ages.percentile([], 0.5) is None


def shown_at(readings: int, time_ms: int) -> Answer:
    source = Source("server-0", Role.OWNER, 1, None, None, 1, 1, False)
    return Answer(True, row_class([("readings", int), ("time_ms", int)])(readings, time_ms), source)


def test_how_old_readings_were_when_they_were_first_shown_is_told_of_the_last_half_minute() -> None:
    recent = reading_ages.Recent()
    assert recent.percentiles_ms(0.0) is None
    # What waited for the start tells nothing; nor do the same readings once more.
    for moment in (100_000.0, 100_020.0):
        recent.note(shown_at(500, 99_900), moment)
    assert recent.percentiles_ms(100_020.0) is None
    # Of 99,950, 100,000, 100,050 and 100,100 the last three were sent while somebody looked.
    recent.note(shown_at(504, 100_100), 101_000.0)
    assert recent.percentiles_ms(101_000.0) == (950.0, 1_000.0)
    recent.note(Answer(False, None, shown_at(0, 0).source), 102_000.0)
    recent.note(shown_at(505, 120_000), 125_000.0)
    assert recent.percentiles_ms(131_000.0) == (950.0, 5_000.0)
    assert recent.percentiles_ms(131_001.0) == (5_000.0, 5_000.0)
    assert recent.percentiles_ms(156_000.0) is None


def test_the_table_says_how_fresh_readings_are() -> None:
    table = AnswersTable("answers", ["san-francisco"])
    table.update([answer(21.5)])
    assert "first shown" not in rendered(table)
    table.note_freshness((1_240.0, 2_051.0))
    assert "first shown 1.2 s after it was sent: median of the last 30 s; p99 2.1 s" in rendered(table)
    table.note_freshness((8.4, 940.0))
    assert "first shown 8 ms after it was sent: median of the last 30 s; p99 940 ms" in rendered(table)
    table.note_freshness(None)
    assert "no new reading of the probe in the last 30 s" in rendered(table)

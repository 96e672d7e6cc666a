"""The recordings and how they become chunks, the rates against HeartPy's own, blobs' files, and the processor."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import Row

from jobs.vital_signs import source
from jobs.vital_signs.archive import Archive
from jobs.vital_signs.blobs import Blob, stored_chunks, write_blob
from jobs.vital_signs.chunks import (
    CALIBRATIONS,
    CHUNK_US,
    PULSE,
    SATURATION,
    SECOND_US,
    Calibration,
    Chunk,
    decode,
    encode,
    is_name,
)
from jobs.vital_signs.files import Folder
from jobs.vital_signs.processor import OUTPUT, last_piece
from jobs.vital_signs.saturation import Saturation, saturation
from jobs.vital_signs.segments import HOUR_US, Segment, covered, extended, first_key, gaps
from jobs.vital_signs.source import Shape
from jobs.vital_signs.vitals import Floats, Vitals, beats, vitals
from keyhole.errors import InvalidConfiguration
from tests.support.vital_signs import BEGIN_US, BLOB_US, KEY, ProcessorBench, chunk, empty_chunk

Vector = dict[str, Any]
HEARTPY: list[Vector] = json.loads((Path(__file__).resolve().parents[2] / "vectors" / "heart_rates.json").read_text())
RECORDINGS = {recording.name: recording for recording in source.recordings()}


def pulse(seconds: float, *, bpm: float = 72, breaths: float | None = None, rate_hz: float = 200) -> Floats:
    """A made-up pulse wave; breathing makes its beats come up to 8 % sooner or later."""
    at = np.arange(0, seconds, 1 / rate_hz)
    pace = np.full_like(at, bpm / 60)
    if breaths is not None:
        pace *= 1 + 0.08 * np.sin(2 * np.pi * breaths / 60 * at)
    phase = np.cumsum(pace) / rate_hz % 1
    return np.asarray(np.exp(-((phase - 0.3) ** 2) / 0.005) + 0.3 * np.exp(-((phase - 0.6) ** 2) / 0.005))


def piece_of(vector: Vector) -> Floats:
    """At 200 Hz."""
    wave = source.resampled(RECORDINGS[vector["recording"]], 200)
    return wave[vector["begin_seconds"] : vector["end_seconds"]].ravel().astype(np.float64)


def name_of(vector: Vector) -> str:
    return f"{vector['recording']} {vector['begin_seconds']}-{vector['end_seconds']}"


def is_noisy(vector: Vector) -> bool:
    return bool(vector["beats_rejected"] > 0.1 * vector["beats"])


NOISY = [vector for vector in HEARTPY if is_noisy(vector)]
CLEAN = [vector for vector in HEARTPY if not is_noisy(vector) and vector["begin_seconds"] != 480]
BREATHING = [vector for vector in CLEAN if vector["breathing_rate"] > 6 and vector["recording"] != "data.csv"]


# The recordings, and chunks of them


def test_the_recordings_are_real_ones_of_known_length_and_rate_and_heartpy_is_not_imported_for_them() -> None:
    assert [(len(recording.counts), round(recording.rate_hz)) for recording in RECORDINGS.values()] == [
        (2_483, 100),
        (15_000, 117),
        (68_476, 100),
    ]
    assert all(0 <= recording.counts.min() < recording.counts.max() < 1024 for recording in RECORDINGS.values())
    code = "import sys; from jobs.vital_signs import source; source.recordings(); assert 'heartpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_without_heartpys_package_the_recordings_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidConfiguration, match=r"keyhole-spark\[jobs\]"):
        source.recordings()


@pytest.mark.parametrize("rate_hz", [0, 501])
def test_a_rate_that_no_chunk_can_have_is_refused(rate_hz: int) -> None:
    with pytest.raises(InvalidConfiguration, match="from 1 to 500"):
        source.resampled(RECORDINGS["data.csv"], rate_hz)


@pytest.mark.parametrize(("rate_hz", "size"), [(1, 12), (167, 2_004), (200, 2_400), (500, 6_000)])
def test_a_chunk_is_a_second_of_twelve_bytes_a_sample(rate_hz: int, size: int) -> None:
    wave = source.resampled(RECORDINGS["data.csv"], rate_hz)
    assert wave.shape == (24, rate_hz)
    assert len(encode(BEGIN_US, wave[0]).samples) == size


def test_resampling_to_the_rate_of_the_recording_changes_nothing() -> None:
    recording = RECORDINGS["data.csv"]
    assert (source.resampled(recording, 100).ravel() == recording.counts[:2_400]).all()


def test_bytes_become_times_and_volts() -> None:
    first, second = (
        encode(BEGIN_US, np.array([0, 512], np.int32)),
        encode(BEGIN_US + SECOND_US, np.array([1024], np.int32)),
    )
    times, volts = decode([first, second], CALIBRATIONS["pleth"])
    assert times.tolist() == [BEGIN_US, BEGIN_US + SECOND_US // 2, BEGIN_US + SECOND_US]
    assert volts.tolist() == [0.0, 2.5, 5.0]
    _, other = decode([second], Calibration("mV", 2.0, -48.0))
    assert other.tolist() == [2_000.0]


def test_of_no_chunks_there_are_no_samples() -> None:
    times, volts = decode([], CALIBRATIONS["pleth"])
    assert (len(times), len(volts)) == (0, 0)


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer size"):
        decode([Chunk(BEGIN_US, b"x" * 13)], CALIBRATIONS["pleth"])


def test_the_same_seed_gives_the_same_chunks_with_gaps_late_ones_and_none_twice() -> None:
    shape = Shape(patients=6, rate_hz=20, drops=0.02)
    seconds = list(itertools.islice(source.chunks(5, BEGIN_US, shape), 300))
    assert seconds == list(itertools.islice(source.chunks(5, BEGIN_US, shape), 300))
    assert seconds != list(itertools.islice(source.chunks(6, BEGIN_US, shape), 300))
    sent = [(second, item) for second, items in enumerate(seconds) for item in items]
    assert {item.patient for _, item in sent} == {f"patient-{number}" for number in range(6)}
    assert len({(item.patient, item.chunk.start_us) for _, item in sent}) == len(sent)
    behind = [second - (item.chunk.start_us - BEGIN_US) // SECOND_US for second, item in sent]
    assert set(behind) == set(range(6))
    assert behind.count(0) > 0.9 * len(behind)
    of_one = covered(Segment(c.start_us, c.start_us + CHUNK_US) for _, (p, _, c) in sent if p == "patient-1")
    assert len(of_one) > 1


def test_what_is_sent_is_the_recording_second_after_second() -> None:
    shape = Shape(patients=1, rate_hz=50, drops=0.0, late=0.0)
    sent = [item.chunk for items in itertools.islice(source.chunks(1, BEGIN_US, shape), 60) for item in items]
    wave = source.resampled(RECORDINGS["data.csv"], 50)
    counts = decode(sent, Calibration("count", 1.0, 0.0)).values.reshape(60, 50)
    (first,) = [second for second in range(len(wave)) if (wave[second] == counts[0]).all()]
    assert all((wave[(first + second) % len(wave)] == counts[second]).all() for second in range(60))


@pytest.mark.parametrize("name", ["", "1a", "a/b", "..", "a.b", "true", "null", "a\n", "ä", "x" * 65])
def test_what_could_not_be_a_folder_is_no_name(name: str) -> None:
    assert not is_name(name)


# The rates


@pytest.mark.parametrize("vector", CLEAN, ids=name_of)
def test_the_heart_rate_is_heartpys_within_two_percent_where_heartpy_finds_the_wave_clean(vector: Vector) -> None:
    assert vitals(piece_of(vector), 200).heart_rate == pytest.approx(vector["heart_rate"], rel=0.02)


def test_where_heartpy_takes_second_waves_for_beats_ours_is_that_of_the_minutes_around() -> None:
    (before, odd, after) = [vector for vector in HEARTPY if vector["begin_seconds"] in (420, 480, 540)]
    assert odd["heart_rate"] > 1.2 * max(before["heart_rate"], after["heart_rate"])
    assert after["heart_rate"] * 0.98 < (vitals(piece_of(odd), 200).heart_rate or 0) < before["heart_rate"]


@pytest.mark.parametrize("vector", NOISY, ids=name_of)
def test_where_heartpy_rejects_many_beats_there_is_no_rate(vector: Vector) -> None:
    """HeartPy tells the rate of the few that are left."""
    found = vitals(piece_of(vector), 200)
    assert (found.heart_rate, found.breathing_rate) == (None, None)


@pytest.mark.parametrize("vector", BREATHING, ids=name_of)
def test_the_breathing_rate_is_heartpys_within_three_breaths_a_minute(vector: Vector) -> None:
    """HeartPy's grid is of two; six is the lower end of its band, and says only that it found no breathing."""
    assert vitals(piece_of(vector), 200).breathing_rate == pytest.approx(vector["breathing_rate"], abs=3)


@pytest.mark.parametrize("rate_hz", [50, 100, 200, 500])
@pytest.mark.parametrize("bpm", [45, 72, 110, 170])
def test_a_made_up_pulse_has_the_rate_that_it_was_made_with(bpm: float, rate_hz: float) -> None:
    assert vitals(pulse(20, bpm=bpm, rate_hz=rate_hz), rate_hz).heart_rate == pytest.approx(bpm, rel=0.01)


@pytest.mark.parametrize("breaths", [8, 12, 15, 20])
def test_breathing_is_told_from_the_beats_that_it_hurries(breaths: float) -> None:
    found = vitals(pulse(60, breaths=breaths), 200)
    assert found.breathing_rate == pytest.approx(breaths, abs=0.5)
    assert found.heart_rate == pytest.approx(72, rel=0.01)


def test_the_unit_and_a_slow_drift_of_the_wave_do_not_matter() -> None:
    wave = pulse(60, breaths=12)
    drifting = 3.0 + 0.001 * (wave + np.linspace(0, 5, len(wave)))
    assert beats(drifting, 200) == pytest.approx(beats(wave, 200), abs=0.02)


@pytest.mark.parametrize(
    "wave",
    [
        np.empty(0),
        np.zeros(4_000),
        np.linspace(0, 1, 4_000),
        pulse(4.9),
        np.random.default_rng(1).normal(size=4_000),
    ],
    ids=["nothing", "flat", "rising", "too short", "noise"],
)
def test_of_what_is_no_pulse_there_is_no_rate(wave: Floats) -> None:
    found = vitals(wave, 200)
    assert (found.heart_rate, found.breathing_rate) == (None, None)


def test_half_a_minute_is_needed_to_tell_breathing() -> None:
    assert vitals(pulse(29.9, breaths=12), 200).breathing_rate is None
    assert vitals(pulse(30, breaths=12), 200).breathing_rate is not None


# Segments and files; tests/property has the rest


def test_a_late_chunk_closes_a_gap_and_only_what_changes_is_told() -> None:
    known = [Segment(0, 2), Segment(3, 5), Segment(8, 9)]
    assert extended(known, [Segment(2, 3)]) == ([Segment(0, 5)], [3])
    assert extended(known, [Segment(3, 4)]) == ([], [])
    assert extended(known, [Segment(9, 10)]) == ([Segment(8, 10)], [])


def test_segments_are_cut_at_the_hour_so_that_a_range_from_there_has_all() -> None:
    long = covered([Segment(HOUR_US - 3, HOUR_US + 3), Segment(HOUR_US + 5, 2 * HOUR_US + 1)])
    assert long == [
        Segment(HOUR_US - 3, HOUR_US),
        Segment(HOUR_US, HOUR_US + 3),
        Segment(HOUR_US + 5, 2 * HOUR_US),
        Segment(2 * HOUR_US, 2 * HOUR_US + 1),
    ]
    in_range = [segment for segment in long if first_key(HOUR_US + 1) <= segment.start_us < 2 * HOUR_US]
    assert gaps(in_range, HOUR_US + 1, 2 * HOUR_US) == [Segment(HOUR_US + 3, HOUR_US + 5)]
    assert gaps([], 5, 7) == [Segment(5, 7)]
    assert gaps(long, HOUR_US, HOUR_US) == []


def blob(*seconds: int) -> Blob:
    return Blob(*KEY, BEGIN_US, BEGIN_US + BLOB_US, tuple(chunk(second) for second in seconds))


def test_blobs_of_other_lengths_stay_readable_and_what_is_in_several_is_read_once(tmp_path: Path) -> None:
    write_blob(Folder(tmp_path), blob(10, 19, 25))
    for start, end, seconds in [(0, 20, (10, 19)), (20, 40, (25, 30)), (-90, 0, (-7,))]:
        chunks = tuple(chunk(second) for second in seconds)
        write_blob(Folder(tmp_path), Blob(*KEY, BEGIN_US + start * SECOND_US, BEGIN_US + end * SECOND_US, chunks))
    times, _ = Archive(tmp_path, lambda *_: []).read(KEY[0], BEGIN_US - 10 * SECOND_US, BEGIN_US + 31 * SECOND_US)
    assert [(time - BEGIN_US) // SECOND_US for time in times[::4]] == [-7, 10, 19, 25, 30]
    assert len(times) == 20


def test_a_blob_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_blob(Folder(tmp_path), Blob(*KEY, BEGIN_US, BEGIN_US + BLOB_US, (Chunk(BEGIN_US, 7),)))  # type: ignore[arg-type]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("patient", ["../p", "", "a/b"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, patient: str) -> None:
    with pytest.raises(ValueError, match="folder"):
        write_blob(Folder(tmp_path), Blob(patient, "pleth", BEGIN_US, BEGIN_US + BLOB_US, ()))
    with pytest.raises(ValueError, match="folder"):
        Archive(tmp_path, lambda *_: []).read(patient, 0, 1)


def test_reading_cuts_samples_not_chunks(tmp_path: Path) -> None:
    write_blob(Folder(tmp_path), blob(57, 58, 59))
    archive = Archive(tmp_path, lambda *key: [chunk(60), chunk(61)] if key == KEY else [])
    times, values = archive.read("patient-1", BEGIN_US + 58_500_000, BEGIN_US + 60_250_001)
    assert [(time - BEGIN_US) / SECOND_US for time in times] == [58.5, 58.75, 59, 59.25, 59.5, 59.75, 60, 60.25]
    assert len(values) == len(times)
    assert len(archive.read("patient-2", BEGIN_US, BEGIN_US + BLOB_US).times_us) == 0


def test_a_signal_that_nobody_has_said_the_unit_of_is_read_as_it_was_counted_and_one_that_is_given_by_its_own(
    tmp_path: Path,
) -> None:
    sent = encode(BEGIN_US, np.array([970, -3], np.int32))
    write_blob(Folder(tmp_path), Blob("p", "ecg", BEGIN_US, BEGIN_US + BLOB_US, (sent,)))
    given = {"ecg": Calibration("mV", 0.5, 1.0)}
    for calibrations, signal, values in [
        (CALIBRATIONS, "ecg", [970, -3]),
        (CALIBRATIONS, "true-ish", [970, -3]),
        (CALIBRATIONS, SATURATION, [97.0, -0.3]),
        (given, "ecg", [486.0, -0.5]),
        (given, SATURATION, [970, -3]),
    ]:
        read = Archive(tmp_path, lambda *_: [sent], calibrations).read("p", BEGIN_US, BEGIN_US + SECOND_US, signal)
        assert read.values.tolist() == pytest.approx(values)


def test_who_reads_the_files_before_the_list_misses_what_closes_in_between(tmp_path: Path) -> None:
    """Why the order in Archive.read matters."""
    still_open = [chunk(0)]

    def close() -> None:
        write_blob(Folder(tmp_path), blob(0))
        still_open.clear()

    files_first = list(stored_chunks(Folder(tmp_path), *KEY, BEGIN_US, BEGIN_US + BLOB_US))
    close()
    assert [*files_first, *still_open] == []
    assert list(stored_chunks(Folder(tmp_path), *KEY, BEGIN_US, BEGIN_US + BLOB_US)) == [chunk(0)]


# The processor, on Spark's own tester


def test_the_rates_are_those_of_the_last_minute_without_gaps() -> None:
    bench = ProcessorBench()
    wave = source.resampled(RECORDINGS["data3.csv"], 200)
    sent = [encode(BEGIN_US + second * SECOND_US, wave[second]) for second in range(75) if second != 20]
    for first in range(0, len(sent), 10):
        bench.take(sent[first : first + 10])
    rates = bench.vitals()
    assert rates is not None
    expected = vitals(wave[21:75].ravel() * (5 / 1024), 200)
    assert rates == (*expected, BEGIN_US + 21 * SECOND_US, BEGIN_US + 75 * SECOND_US)
    assert rates[0] == pytest.approx(101, abs=2)


def tenths(second: int, *counts: int) -> Chunk:
    """Of a saturation."""
    return encode(BEGIN_US + second * SECOND_US, np.array(counts, np.int32))


def test_an_oxygen_saturation_is_that_of_the_last_minute_without_gaps_and_what_no_body_has_does_not_count() -> None:
    bench = ProcessorBench(("patient-1", SATURATION))
    bench.take([tenths(0, 800), tenths(2, 960), tenths(3, 0), tenths(4, 980), tenths(5, 1001)])
    assert bench.vitals() is None
    assert bench.saturation() == (97.0, 96.0, 2, BEGIN_US + 2 * SECOND_US, BEGIN_US + 6 * SECOND_US)
    bench.take([tenths(1, 1000)])
    assert bench.saturation() == (pytest.approx(93.5), 80.0, 4, BEGIN_US, BEGIN_US + 6 * SECOND_US)
    bench.take([tenths(7, 0)])
    assert bench.saturation() == (None, None, 0, BEGIN_US + 7 * SECOND_US, BEGIN_US + 8 * SECOND_US)
    bench.take([tenths(8, 0, -5), tenths(9, 1000, 1)])  # of another rate
    assert bench.saturation() == (pytest.approx(50.05), 0.1, 2, BEGIN_US + 8 * SECOND_US, BEGIN_US + 10 * SECOND_US)


def test_of_no_samples_there_is_no_saturation() -> None:
    assert saturation(np.empty(0)) == Saturation(None, None, 0)


def test_monitors_send_a_saturation_a_second_beside_each_chunk_of_the_wave() -> None:
    seconds = itertools.islice(source.chunks(5, BEGIN_US, Shape(patients=3, rate_hz=20, saturation=True)), 300)
    sent = [item for items in seconds for item in items]
    starts = {
        signal: {(item.patient, item.chunk.start_us) for item in sent if item.signal == signal}
        for signal in (PULSE, SATURATION)
    }
    # What is late is of the last seconds.
    assert len(starts[PULSE] ^ starts[SATURATION]) < 10
    percent = decode((item.chunk for item in sent if item.signal == SATURATION), CALIBRATIONS[SATURATION]).values
    assert len(percent) == len(starts[SATURATION])
    counted = percent[percent > 0]
    assert 80 <= counted.min() < counted.max() <= 100
    assert 0 < len(percent) - len(counted) < 0.1 * len(percent)


def test_other_signals_have_neither_rates_nor_a_saturation() -> None:
    bench = ProcessorBench(("patient-1", "temperature"))
    bench.take([chunk(second) for second in range(10)])
    assert bench.vitals() is None
    assert bench.saturation() is None
    assert bench.segments() == [Segment(BEGIN_US, BEGIN_US + 10 * SECOND_US)]


def test_a_chunk_that_is_sent_twice_or_too_late_changes_nothing() -> None:
    bench = ProcessorBench()
    bench.take([chunk(0), chunk(30), chunk(30)])
    before = bench.segments(), bench.vitals()
    bench.take([chunk(30)])
    bench.advance(BEGIN_US + 20 * SECOND_US)
    bench.take([chunk(5), chunk(20)])
    assert (bench.segments(), bench.vitals()) == before
    (closed,) = bench.advance(BEGIN_US + BLOB_US)
    assert [Chunk(*item) for item in closed.chunks] == [chunk(0), chunk(30)]


def test_the_latest_chunk_that_is_in_time_still_extends_the_segment_before_it() -> None:
    bench = ProcessorBench()
    bench.take([chunk(0)])
    bench.advance(BEGIN_US + SECOND_US - 1_000)
    bench.take([chunk(30)])
    bench.take([chunk(1)])
    assert bench.segments() == [
        Segment(BEGIN_US, BEGIN_US + 2 * SECOND_US),
        Segment(BEGIN_US + 30 * SECOND_US, BEGIN_US + 31 * SECOND_US),
    ]


def test_a_blob_closes_when_the_watermark_passes_its_end_and_the_next_one_stays_open() -> None:
    bench = ProcessorBench()
    bench.take([chunk(second) for second in (0, 59, 60, 61)])
    assert bench.advance(BEGIN_US + BLOB_US - 1_000) == []
    assert bench.open_chunks() == [chunk(second) for second in (0, 59, 60, 61)]
    (closed,) = bench.advance(BEGIN_US + BLOB_US)
    assert (closed.patient, closed.signal, closed.start_us, closed.end_us) == (*KEY, BEGIN_US, BEGIN_US + BLOB_US)
    assert [Chunk(*item) for item in closed.chunks] == [chunk(0), chunk(59)]
    assert bench.open_chunks() == [chunk(60), chunk(61)]
    assert len(bench.advance(BEGIN_US + 2 * BLOB_US)) == 1
    assert bench.open_chunks() == []


def test_a_row_of_the_processor_is_as_its_schema_says() -> None:
    bench = ProcessorBench()
    bench.take([chunk(0)])
    (row,) = bench.advance(BEGIN_US + BLOB_US)
    assert isinstance(row, Row)
    assert [field.split()[0] for field in OUTPUT.split(", ")] == list(row.asDict())


def test_the_last_piece_ends_where_time_or_rate_jumps() -> None:
    chunks = [chunk(0), chunk(2), chunk(3), chunk(4)]
    assert last_piece(chunks) == chunks[1:]
    assert last_piece([*chunks, empty_chunk(5)]) == [empty_chunk(5)]
    assert last_piece(chunks[:1]) == chunks[:1]


def test_the_vitals_have_the_fields_that_the_readme_names() -> None:
    assert Vitals(None, None, 0)._fields == ("heart_rate", "breathing_rate", "beats")

"""What the verification of vital_signs takes for right, and what it finds wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jobs.vital_signs import processor, recount, source, verify
from jobs.vital_signs.blobs import Blob, write_blob
from jobs.vital_signs.chunks import CHUNK_US, PULSE, SATURATION, SECOND_US, Chunk, encode
from jobs.vital_signs.config import VitalSignsConfig
from jobs.vital_signs.description import JOB
from jobs.vital_signs.files import Folder
from jobs.vital_signs.source import Sent
from jobs.vital_signs.verify import Kept, chunks_agree, of_kind, rates_agree, saturation_agrees, vitals_agree
from jobs.vital_signs.vitals import vitals as job_vitals
from keyhole.demo.recount import VerifiedJob
from tests.support.vital_signs import BEGIN_US, KEY, ProcessorBench, chunk

BLOB_US = 20 * SECOND_US
# The newest is of second 55: the watermark is at 45, and closes the blobs of 0 to 19 and of 20 to 39.
SECONDS = [0, 5, 19, 20, 55]
CLOSED, OPEN = [chunk(second) for second in SECONDS[:4]], [chunk(second) for second in SECONDS[4:]]
WATERMARK_US = BEGIN_US + 45 * SECOND_US
UNTIL_BLOB_ENDS = BEGIN_US + 40 * SECOND_US


def recorded(seconds: Iterable[int] = SECONDS) -> recount.Recorded:
    return recount.recount(source.record(Sent(*KEY, chunk(second))) for second in seconds)[KEY]


def piece(seconds: float) -> recount.Segment:
    return BEGIN_US, BEGIN_US + round(seconds * SECOND_US)


def vitals(heart_rate: float | None, breathing_rate: float | None, beats: int, seconds: float = 60) -> Any:
    begin_us, end_us = piece(seconds)
    value = SimpleNamespace(
        heart_rate=heart_rate, breathing_rate=breathing_rate, beats=beats, begin_us=begin_us, end_us=end_us
    )
    return SimpleNamespace(found=True, value=value)


class Lists:
    """A client to which `open_chunks` is, look after look, the next of these, and stays the last."""

    def __init__(self, *looks: Sequence[Chunk]) -> None:
        self._looks = list(looks)

    def scan(self, application: str, state: str, key: tuple[str, str], *, min_epoch: int) -> Any:
        assert (application, state, key, min_epoch) == ("vital-signs", "open_chunks", KEY, 7)
        return SimpleNamespace(values=self._looks.pop(0) if len(self._looks) > 1 else self._looks[0])


def subject(files: Path, settings: dict[str, str] | None = None) -> VerifiedJob:
    settings = {"BLOB_SECONDS": "20"} if settings is None else settings
    return VerifiedJob("kafka:9092", "chunks", 7, Path("checkpoint"), Path("logs"), str(files), settings=settings)


def write(folder: Path, chunks: Sequence[Chunk], blob_us: int = BLOB_US) -> None:
    for start_us in {item.start_us - item.start_us % blob_us for item in chunks}:
        of = tuple(item for item in chunks if item.start_us - item.start_us % blob_us == start_us)
        write_blob(Folder(folder), Blob(*KEY, start_us, start_us + blob_us, of))


def test_the_names_are_those_of_the_job_and_so_is_the_length_of_a_blob() -> None:
    states = {verify.SEGMENTS, verify.OPEN_CHUNKS, verify.VITALS, verify.OXYGEN_SATURATION}
    assert (JOB.application, states) == (verify.APPLICATION, processor.EXPOSED.keys())
    given = {"KEYHOLE_VITAL_SIGNS_BLOB_SECONDS": "20", "KEYHOLE_CHUNKS_RATE": "9"}
    assert JOB.given(given) == {verify.BLOB_SECONDS: "20"}
    defaults = {name: field.default for name, field in VitalSignsConfig.__dataclass_fields__.items()}
    assert defaults[verify.BLOB_SECONDS.lower()] == int(verify.BLOB_SECONDS_DEFAULT)


def test_the_watermark_is_ten_seconds_behind_the_newest_chunk() -> None:
    assert recount.watermark_us({KEY: recorded()}) == WATERMARK_US
    assert recorded().closed(BLOB_US, WATERMARK_US) == {item.start_us for item in CLOSED}
    assert recorded().closed(BLOB_US, UNTIL_BLOB_ENDS) == {item.start_us for item in CLOSED[:3]}


@pytest.mark.parametrize(
    ("filed", "still_open", "until_us", "agrees"),
    [
        (CLOSED, OPEN, WATERMARK_US, True),
        (CLOSED, OPEN, UNTIL_BLOB_ENDS, True),
        (CLOSED[:3], [CLOSED[3], *OPEN], UNTIL_BLOB_ENDS, True),
        (CLOSED[:3], [CLOSED[3], *OPEN], WATERMARK_US, False),
        (CLOSED, [*CLOSED, *OPEN], WATERMARK_US, False),
        ([], [*CLOSED, *OPEN], WATERMARK_US, False),
        ([*CLOSED, *OPEN], [], WATERMARK_US, False),
        (CLOSED, [*OPEN, *OPEN], WATERMARK_US, False),
        ([*CLOSED, CLOSED[0]], OPEN, WATERMARK_US, False),
        (CLOSED[1:], OPEN, WATERMARK_US, False),
        (CLOSED, [], WATERMARK_US, False),
        ([Chunk(BEGIN_US, b"another"), *CLOSED[1:]], OPEN, WATERMARK_US, False),
        (CLOSED, [*OPEN, chunk(56)], WATERMARK_US, False),
    ],
    ids=[
        "each once",
        "the watermark at a blob's end, which is closed",
        "the watermark at a blob's end, which is open",
        "a blob not closed",
        "never left the list",
        "no files",
        "closed too early",
        "twice in the list",
        "twice in files",
        "missing in files",
        "missing in the list",
        "other samples",
        "never sent",
    ],
)
def test_every_chunk_is_kept_once_and_where_it_belongs(
    filed: list[Chunk], still_open: list[Chunk], until_us: int, agrees: bool
) -> None:
    found = Kept([tuple(item) for item in still_open], [tuple(item) for item in filed])
    assert found.agrees(recorded(), BLOB_US, until_us) is agrees


def test_chunks_whose_blob_is_just_being_closed_are_looked_at_again(tmp_path: Path) -> None:
    write(tmp_path, CLOSED)
    client: Any = Lists([*CLOSED, *OPEN], [*CLOSED, *OPEN], OPEN)
    assert [*chunks_agree(subject(tmp_path), client, {KEY: recorded()})] == [True]


def test_chunks_that_stay_in_the_list_although_they_are_in_files_are_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_CLOSING_SECONDS", 0)
    write(tmp_path, CLOSED)
    client: Any = Lists([*CLOSED, *OPEN])
    assert [*chunks_agree(subject(tmp_path), client, {KEY: recorded()})] == [False]


@pytest.mark.parametrize("how", ["none", "of another length", "under another name"])
def test_files_where_no_reader_looks_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(verify, "_CLOSING_SECONDS", 0)
    if how != "none":
        write(tmp_path, CLOSED, BLOB_US if how == "under another name" else 60 * SECOND_US)
    if how == "under another name":
        for path in [*tmp_path.rglob("*.parquet")]:
            path.rename(path.with_stem(f"{int(path.stem) + CHUNK_US}"))
    client: Any = Lists(OPEN)
    assert [*chunks_agree(subject(tmp_path), client, {KEY: recorded()})] == [False]


def test_blobs_are_of_a_minute_unless_the_job_was_told_otherwise_and_before_one_is_closed_no_file_is_demanded(
    tmp_path: Path,
) -> None:
    client: Any = Lists([*CLOSED, *OPEN])
    assert [*chunks_agree(subject(tmp_path, {}), client, {KEY: recorded()})] == [True]


@pytest.mark.parametrize(
    ("answer", "seconds", "agrees"),
    [
        (vitals(75.0, 12.0, 75), 60, [True, True]),
        (vitals(75.0, None, 75), 60, [True, True]),
        (vitals(None, None, 0), 60, [True, True]),
        (vitals(75.0, 12.0, 75), 59, [False, True]),
        (vitals(75.0, 12.0, 75, 29), 29, [True, False]),
        (vitals(75.0, None, 5, 4), 4, [True, False]),
        (vitals(None, 12.0, 75), 60, [True, False]),
        (vitals(75.0, 5.0, 75), 60, [True, False]),
        (vitals(75.0, 25.0, 75), 60, [True, False]),
        (vitals(75.0, 12.0, 3), 60, [True, False]),
        (vitals(75.0, 12.0, 85), 60, [True, False]),
        (vitals(200.0, 12.0, 200), 60, [True, False]),
        (SimpleNamespace(found=False, value=None), 60, [False, False]),
    ],
)
def test_rates_are_of_the_last_piece_and_such_as_a_body_has(answer: Any, seconds: int, agrees: list[bool]) -> None:
    assert [*vitals_agree(answer, piece(seconds))] == agrees


@pytest.mark.parametrize("recording", source.recordings(), ids=lambda recording: recording.name)
def test_what_the_job_tells_of_the_recordings_is_taken_for_right(recording: source.Recording) -> None:
    """Also of pieces with noise in the middle, where beats are missing."""
    wave = source.resampled(recording, 50)
    for seconds, first in itertools.product((5, 12, 30, 46, 60), range(0, len(wave), 7)):
        of = job_vitals(np.take(wave, range(first, first + seconds), axis=0, mode="wrap").ravel() * (5 / 1024), 50)
        answer = vitals(of.heart_rate, of.breathing_rate, of.beats, seconds)
        assert [*vitals_agree(answer, piece(seconds))] == [True, True]


@pytest.mark.parametrize(
    ("signals", "seconds", "answer", "agrees"),
    [
        (4, 30, vitals(75.0, 12.0, 75), [True, True]),
        (4, 30, vitals(75.0, None, 75), [True, False]),
        (4, 30, vitals(None, None, 0), [False, False]),
        (4, 30, SimpleNamespace(found=False, value=None), [False, False]),
        (3, 30, vitals(None, None, 0), []),
        (4, 29, vitals(None, None, 0), []),
    ],
)
def test_rates_are_demanded_of_a_run_that_sent_enough_to_have_them(
    signals: int, seconds: int, answer: Any, agrees: list[bool]
) -> None:
    names = [(f"patient-{number}", "pleth") for number in range(signals)]
    answers = {names[0]: answer} | {name: vitals(None, None, 0) for name in names[1:]}
    assert [*rates_agree(answers, dict.fromkeys(names, recorded(range(seconds))))] == agrees


@pytest.mark.parametrize("seed", range(20))
def test_the_recount_s_saturation_is_that_of_the_job_and_any_other_is_wrong(seed: int) -> None:
    draw = random.Random(seed)
    key = ("patient-1", SATURATION)
    levels = [0] if seed == 0 else [-1, 0, 1, 800, 933, 1000, 1001]
    chunks = [
        encode(BEGIN_US + second * SECOND_US, np.array(draw.choices(levels, k=draw.choice([1, 1, 1, 2])), np.int32))
        for second in range(100)
        if draw.random() > 0.03
    ]
    bench = ProcessorBench(key)
    for first in range(0, len(chunks), 7):
        bench.take(chunks[first : first + 7])
    of = recount.recount(source.record(Sent(*key, item)) for item in chunks)[key]
    names = ("mean", "lowest", "samples", "begin_us", "end_us")
    kept: dict[str, Any] = dict(zip(names, bench.saturation() or (), strict=True))

    def answer_of(**other: Any) -> Any:
        return SimpleNamespace(found=True, value=SimpleNamespace(**kept | other))

    assert saturation_agrees(answer_of(), of)
    for name, value in kept.items():
        wrong = 1 if value is None else value + (0.1 if isinstance(value, float) else 1)
        assert not saturation_agrees(answer_of(**{name: wrong}), of)
        assert value is None or not saturation_agrees(answer_of(**{name: None}), of)
    nothing: Any = SimpleNamespace(found=False, value=None)
    assert not saturation_agrees(nothing, of)


def test_each_kind_of_signal_is_asked_for_what_is_told_of_it() -> None:
    kinds = ("pleth", "spo2", "ecg")
    found = recount.recount(source.record(Sent("p", signal, chunk(0))) for signal in kinds)
    assert {signal for _, signal in found} == set(kinds)
    assert [*of_kind(found, recount.PULSE)] == [("p", PULSE)]
    assert [*of_kind(found, recount.SATURATION)] == [("p", SATURATION)]

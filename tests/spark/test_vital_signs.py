"""The job's pipeline on real Spark: what it takes for a chunk, and its processor in a stream."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.vital_signs import source
from jobs.vital_signs.__main__ import write_files
from jobs.vital_signs.archive import Archive
from jobs.vital_signs.blobs import blob_start
from jobs.vital_signs.chunks import PULSE, SECOND_US
from jobs.vital_signs.pipeline import chunks, exposing, monitored
from jobs.vital_signs.recount import chunk_of
from jobs.vital_signs.source import Sent, Shape
from keyhole.spark.changes import split
from keyhole.spark.running import ROCKSDB
from tests.support.micro_batches import session_settings
from tests.support.odd_records import NO_OBJECTS, odd_records
from tests.support.streams import RunQuery, Stream, file_stream, run_to_end
from tests.support.vital_signs import BEGIN_US, BLOB_US, chunk


def samples(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


def record(**fields: object) -> bytes:
    return json.dumps({"patient": "p", "signal": "pleth", "start": BEGIN_US, "samples": samples(24)} | fields).encode()


GOOD: list[bytes | None] = [
    record(),
    record(patient="a" * 64, signal="X_y-1", start=0),
    record(start=4_102_444_799_999_999, samples=samples(6_000), unknown=1),
]
BAD: list[bytes | None] = [
    *NO_OBJECTS,
    record(patient=None),
    record(patient=1),
    record(patient=True),
    record(patient="true"),
    record(patient="a b"),
    record(patient="../p"),
    record(patient="p\n"),
    record(patient="a" * 65),
    record(signal=""),
    record(signal=["pleth"]),
    record(start=-1),
    record(start="now"),
    record(start=1.5),
    record(start=4_102_444_800_000_000),
    record(samples=None),
    record(samples=""),
    record(samples="?"),
    record(samples=samples(23)),
    record(samples=samples(6_012)),
    record(samples=1234567890123456),
    record(samples=samples(24)[:16] + "\n" + samples(24)[16:]),
    record(samples=samples(12)[:-1]),
    record(samples=base64.urlsafe_b64encode(b"\xff" * 24).decode()),
    record() + b"xyz",
    record() * 2,
    record().replace(b'"', b"'"),
    record().decode().encode("utf-16"),
]


def test_what_is_a_chunk_is_taken_with_its_bytes_and_nothing_else_is(spark: SparkSession) -> None:
    sent = Sent("patient-1", "pleth", chunk(3))
    values = [*GOOD, *BAD, source.record(sent)]
    found = chunks(spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)).collect()
    assert len(found) == len(GOOD) + 1
    assert found[-1].asDict() == {
        "patient": "patient-1",
        "signal": "pleth",
        "start_us": chunk(3).start_us,
        "samples": bytearray(chunk(3).samples),
        "time": found[-1].time,
    }
    assert [row.time.astimezone().timestamp() for row in found] == [row.start_us / SECOND_US for row in found]


def test_of_records_with_any_fault_spark_takes_what_the_recount_takes_as_it_takes_it(spark: SparkSession) -> None:
    good = {"patient": "p", "signal": "pleth", "start": BEGIN_US, "samples": samples(24)}
    # Sixteen bits are the last of two bytes, or of three with some of them lost.
    odd = [
        *GOOD,
        *BAD,
        *odd_records(good),
        record(samples=samples(24)[:-4] + "AAB="),
        record(samples="AAAAAAAAAAAAAAAB"),
    ]
    found = chunks(spark.createDataFrame([(value,) for value in odd], "value binary").coalesce(1)).collect()
    expected = [chunk for chunk in map(chunk_of, odd) if chunk is not None]
    assert [((row.patient, row.signal), row.start_us, bytes(row.samples)) for row in found] == expected
    assert 10 < len(expected) < len(odd) / 2


SECONDS = list(itertools.islice(source.chunks(4, BEGIN_US, Shape(patients=3, rate_hz=10, drops=0.02)), 150))
SENT = [item for items in SECONDS for item in items]
# The last three move the watermark on, and close all blobs but the last one.
LAST = [Sent("patient-9", PULSE, chunk(second)) for second in (300, 301, 302)]
BATCHES = [
    *([item for items in SECONDS[at : at + 50] for item in items] for at in (0, 50, 100)),
    *([of] for of in LAST),
]


def rows_of(batches: Sequence[Sequence[Sent]]) -> list[list[dict[str, str]]]:
    return [[{"value": source.record(item).decode()} for item in batch] for batch in batches]


def blobs_of(sent: Iterable[Sent], blob_us: int) -> set[tuple[str, int]]:
    return {(item.patient, blob_start(item.chunk.start_us, blob_us)) for item in sent}


class Written:
    """A sink: the files of the blobs that are closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs: list[tuple[str, int]] = []

    def __call__(self, batch: DataFrame, _: int) -> None:
        rows = split(batch).rows.toArrow()
        self.blobs += [(row["patient"], row["start_us"]) for row in rows.to_pylist()]
        write_files(str(self.folder), iter(rows.to_batches()))

    def assert_has_all_once(self) -> None:
        archive = Archive(self.folder, lambda *_: [])
        for patient in range(3):
            times, _ = archive.read(f"patient-{patient}", BEGIN_US, BEGIN_US + 200 * SECOND_US)
            starts = sorted(item.chunk.start_us for item in SENT if item.patient == f"patient-{patient}")
            assert times[::10].tolist() == starts
            assert len(times) == 10 * len(starts)


@pytest.mark.usefixtures("rocksdb")
def test_a_stream_of_chunks_ends_up_in_files_each_once(stream: Stream, run_query: RunQuery, tmp_path: Path) -> None:
    written = Written(tmp_path / "blobs")
    data = stream("value string", rows_of(BATCHES))
    run_query(monitored(chunks(data), exposing(BLOB_US)), "update", written)

    expected = blobs_of(SENT, BLOB_US)
    assert sorted(written.blobs) == sorted(expected)
    assert len(expected) >= 8
    written.assert_has_all_once()


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint and the files of a query whose first minute is in files. What is after it is open, and a timer is
    set to the second one.
    """
    directory = tmp_path_factory.mktemp("begun")
    data = file_stream(spark, directory / "source", "value string", rows_of(BATCHES[:2]))
    with session_settings(spark, ROCKSDB):
        written = Written(directory / "blobs")
        run_to_end(monitored(chunks(data), exposing(BLOB_US)), "update", written, directory / "checkpoint")
    return directory


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize("then_seconds", [25, 90], ids=["shorter", "longer"])
def test_a_checkpoint_goes_on_with_blobs_of_another_length_and_no_chunk_is_lost_or_twice(
    spark: SparkSession, begun: Path, run_query: RunQuery, tmp_path: Path, then_seconds: int
) -> None:
    for made in ("checkpoint", "blobs"):
        shutil.copytree(begun / made, tmp_path / made)
    written = Written(tmp_path / "blobs")
    # Of the source, which the checkpoint knows by its path, the first two files are as they were.
    data = file_stream(spark, begun / "source", "value string", rows_of(BATCHES))
    run_query(monitored(chunks(data), exposing(then_seconds * SECOND_US)), "update", written)

    lengths = {path.parent.name for path in written.folder.glob("*/*/*/*.parquet")}
    assert lengths == {"60s", f"{then_seconds}s"}
    written.assert_has_all_once()

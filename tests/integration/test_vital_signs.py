"""The job's pipeline on real Spark: what it takes for a chunk, and its processor in a stream."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.vital_signs import source
from jobs.vital_signs.__main__ import write_files
from jobs.vital_signs.blobs import Archive, blob_start
from jobs.vital_signs.chunks import SECOND_US
from jobs.vital_signs.pipeline import chunks, exposing, monitored
from jobs.vital_signs.source import Sent, Shape
from keyhole.spark.changes import split
from tests.integration.conftest import RunQuery, Stream
from tests.support.vital_signs import BEGIN_US, chunk

pytestmark = pytest.mark.integration

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The only state store that takes transformWithState."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    assert before is not None
    spark.conf.set(PROVIDER, before)


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
    None,
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b"[]",
    b"{}",
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


@pytest.mark.usefixtures("rocksdb")
def test_a_stream_of_chunks_ends_up_in_files_each_once(stream: Stream, run_query: RunQuery, tmp_path: Path) -> None:
    shape = Shape(patients=3, rate_hz=10, drops=0.02)
    seconds = list(itertools.islice(source.chunks(4, BEGIN_US, shape), 150))
    sent = [item for items in seconds for item in items]
    last = [Sent("patient-9", source.SIGNAL, chunk(second)) for second in (300, 301, 302)]  # moves the watermark on
    batches = [[item for items in seconds[first : first + 50] for item in items] for first in range(0, 150, 50)]
    batches += [[item] for item in last]
    blobs: list[dict[str, Any]] = []

    def write(batch: DataFrame, _: int) -> None:
        rows = split(batch).rows.toArrow()
        blobs.extend(rows.to_pylist())
        write_files(tmp_path / "blobs", iter(rows.to_batches()))

    data = stream("value string", [[{"value": source.record(item).decode()} for item in batch] for batch in batches])
    run_query(monitored(chunks(data), exposing()), "update", write)

    expected = {(item.patient, blob_start(item.chunk.start_us)) for item in sent}
    assert sorted((row["patient"], row["blob_us"]) for row in blobs) == sorted(expected)
    assert len(expected) >= 8
    archive = Archive(tmp_path / "blobs", lambda *_: [])
    for patient in range(3):
        times, _ = archive.read(f"patient-{patient}", BEGIN_US, BEGIN_US + 200 * SECOND_US)
        starts = sorted(item.chunk.start_us for item in sent if item.patient == f"patient-{patient}")
        assert times[::10].tolist() == starts
        assert len(times) == 10 * len(starts)

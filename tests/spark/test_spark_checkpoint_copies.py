"""A copy of a running query's checkpoint, cut at an earlier batch: Spark goes on from it as it did the first time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from keyhole.clock import SystemClock
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.manifest import SavedCheckpoint
from keyhole.savepoint.spark_checkpoint import copy_checkpoint
from tests.support.micro_batches import session_settings
from tests.support.streams import Stream

SCHEMA = "k string, v bigint, t timestamp"
BATCHES = [
    [{"k": f"key-{n % 5}", "v": n, "t": f"2026-01-01T00:{batch:02}:{n:02}Z"} for n in range(batch, batch + 10)]
    for batch in range(5)
]
CUT = 2

_STORE = "spark.sql.streaming.stateStore."
_PROVIDER = "org.apache.spark.sql.execution.streaming.state."
HDFS = {_STORE + "providerClass": _PROVIDER + "HDFSBackedStateStoreProvider"}
ROCKSDB = {_STORE + "providerClass": _PROVIDER + "RocksDBStateStoreProvider"}
CHANGELOG = ROCKSDB | {_STORE + "rocksdb.changelogCheckpointing.enabled": "true"}
IDS = ROCKSDB | {_STORE + "checkpointFormatVersion": "2"}
IDS_AND_CHANGELOG = CHANGELOG | IDS

Outputs = dict[int, list[Row]]
"""By batch, its rows."""


def sums(of: DataFrame) -> DataFrame:
    return of.groupBy("k").agg(f.sum("v").alias("v"), f.count("*").alias("n"))


def joined(of: DataFrame) -> DataFrame:
    left, right = (of.withWatermark("t", "1 minute").alias(side) for side in ("a", "b"))
    return left.join(right, f.expr("a.k = b.k and a.v = b.v and a.t <= b.t")).select("a.k", "a.v", "b.t")


def outputs(data: DataFrame, mode: str, checkpoint: Path) -> Outputs:
    """Runs it until the source has no more."""
    seen: Outputs = {}

    def note(rows: DataFrame, batch: int) -> None:
        seen[batch] = rows.collect()

    query = data.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint)).foreachBatch(note).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return seen


def effect(of: Outputs, mode: str) -> list[Row]:
    """What a reader has in the end: in update mode the last row of each key."""
    rows = [row for _, rows in sorted(of.items()) for row in rows]
    assert rows
    return sorted({row["k"]: row for row in rows}.values() if mode == "update" else rows)


def copied(source: Path, target: Path, batch: int) -> SavedCheckpoint:
    identity = json.loads((source / "metadata").read_text())["id"]
    entry = (source / "offsets" / str(batch)).read_text()
    return copy_checkpoint(
        Folder(str(source)),
        Folder(str(target)),
        "copy",
        query="main",
        spark_query_id=identity,
        batch=batch,
        entry=entry,
        clock=SystemClock(),
        wait_seconds=1,
    )


@pytest.mark.parametrize(
    ("settings", "plan", "mode"),
    [
        pytest.param(HDFS, sums, "update", id="hdfs"),
        pytest.param(ROCKSDB, sums, "update", id="rocksdb"),
        pytest.param(CHANGELOG, sums, "update", id="rocksdb-changelog"),
        pytest.param(IDS, sums, "update", id="rocksdb-ids"),
        pytest.param(IDS_AND_CHANGELOG, sums, "update", id="rocksdb-ids-changelog"),
        pytest.param(HDFS, joined, "append", id="join"),
    ],
)
def test_a_query_goes_on_from_a_copy_that_was_cut_at_an_earlier_batch(
    spark: SparkSession,
    stream: Stream,
    tmp_path: Path,
    settings: Mapping[str, str],
    plan: Callable[[DataFrame], DataFrame],
    mode: str,
) -> None:
    with session_settings(spark, {**settings, "spark.sql.shuffle.partitions": "2"}):
        first = outputs(plan(stream(SCHEMA, BATCHES)), mode, tmp_path / "checkpoint")
        saved = copied(tmp_path / "checkpoint", tmp_path / "saved", CUT)
        assert not any(f"/{CUT + 2}" in file.path for file in saved.files if "/state/" in file.path)
        again = outputs(plan(stream(SCHEMA, BATCHES)), mode, tmp_path / "saved" / "copy")
    assert min(again) == CUT + 1
    later = {batch: rows for batch, rows in first.items() if batch > CUT}
    # The file source has noted all files already, and gives them in one batch.
    assert effect(again, mode) == effect(later, mode)

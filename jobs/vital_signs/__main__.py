"""`python -m jobs.vital_signs`: configured by KEYHOLE_JOB_* and KEYHOLE_VITAL_SIGNS_*."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from jobs.vital_signs.blobs import Blob, write_blob
from jobs.vital_signs.chunks import Chunk
from jobs.vital_signs.pipeline import (
    APPLICATION,
    KEY_GROUPS,
    QUERY,
    chunks,
    exposing,
    monitored,
)
from keyhole.config import VitalSignsConfig
from keyhole.spark import queryable
from keyhole.spark.changes import own_rows
from keyhole.spark.dead_letters import DeadLetters
from keyhole.spark.running import ROCKSDB, configure, records, run_job, session
from keyhole.spark.sink import Sink


def commit(sink: Sink, folder: Path, batch: DataFrame, batch_id: int) -> None:
    """Writes the closed blobs' files; then the epoch, whose readers don't find their chunks in the state any more."""
    batch = batch.persist()  # else the files and the states would run its plan each
    try:
        own_rows(batch).foreachPartition(functools.partial(write_files, folder))
        sink(batch, batch_id)
    finally:
        batch.unpersist()


def write_files(folder: Path, rows: Iterator[Row]) -> None:
    """In a task: the file of each closed blob. A blob that is written again gives the same file."""
    for row in rows:
        of = tuple(Chunk(chunk.start_us, bytes(chunk.samples)) for chunk in row.chunks)
        write_blob(folder, Blob(row.patient, row.signal, row.blob_us, of))


def start(environ: Mapping[str, str]) -> StreamingQuery:
    """Starts Spark and the query."""
    job, config = configure(APPLICATION, VitalSignsConfig, environ)
    spark = session(APPLICATION, config, ROCKSDB)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.topic)
    taken = chunks(records(spark, job.bootstrap_servers, config), dead_letters.accept)
    processor = exposing()
    sink = queryable.exposed(processor, key_groups=KEY_GROUPS, on_commit=dead_letters.tell, config=job)
    return (
        monitored(taken, processor)
        .writeStream.queryName(QUERY)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(functools.partial(commit, sink, config.files))
        .start()
    )


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

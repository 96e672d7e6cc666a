"""`python -m jobs.vital_signs`: configured by KEYHOLE_JOB_* and KEYHOLE_VITAL_SIGNS_*."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.streaming.query import StreamingQuery

from jobs.vital_signs.blobs import Blob, write_blob
from jobs.vital_signs.chunks import SECOND_US, Chunk
from jobs.vital_signs.config import VitalSignsConfig
from jobs.vital_signs.description import JOB
from jobs.vital_signs.files import files_at
from jobs.vital_signs.pipeline import (
    APPLICATION,
    KEY_GROUPS,
    QUERY,
    chunks,
    exposing,
    monitored,
)
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.dead_letters import DeadLetters
from keyhole.spark.processor import QueryableProcessor
from keyhole.spark.running import ROCKSDB, configure, records, run_job, session
from keyhole.spark.sink import OnCommit, Sink


def states(processor: QueryableProcessor, job: JobConfig, place: str, on_commit: OnCommit | None = None) -> Sink:
    """The four states; and the closed blobs' files, before readers don't find their chunks in the states any more."""
    write = functools.partial(write_files, place)
    return queryable.exposed(processor, write=write, key_groups=KEY_GROUPS, on_commit=on_commit, config=job)


def write_files(place: str, batches: Iterator[pa.RecordBatch]) -> None:
    """In a task: the file of each closed blob. A blob that is written again gives the same file."""
    files = files_at(place)
    for batch in batches:
        for row in batch.to_pylist():
            of = tuple(Chunk(chunk["start_us"], chunk["samples"]) for chunk in row["chunks"])
            write_blob(files, Blob(row["patient"], row["signal"], row["start_us"], row["end_us"], of))


def start(environ: Mapping[str, str]) -> StreamingQuery:
    """Starts Spark and the query."""
    job, config = configure(APPLICATION, VitalSignsConfig, environ, JOB.kinds)
    files_at(config.files).check_there()
    spark = session(APPLICATION, config, ROCKSDB)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.topic, config=job)
    taken = chunks(records(spark, job.bootstrap_servers, config), dead_letters.accept)
    processor = exposing(config.blob_seconds * SECOND_US)
    sink = states(processor, job, config.files, dead_letters.tell)
    return (
        monitored(taken, processor)
        .writeStream.queryName(QUERY)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(sink)
        .start()
    )


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

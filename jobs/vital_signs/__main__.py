"""`python -m jobs.vital_signs`: configured by KEYHOLE_JOB_* and KEYHOLE_VITAL_SIGNS_*."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from jobs.vital_signs.blobs import Blob, write_blob
from jobs.vital_signs.chunks import Chunk
from jobs.vital_signs.pipeline import APPLICATION, KEY, KEY_GROUPS, QUERY, SHUFFLE_PARTITIONS, chunks, monitored
from jobs.vital_signs.processor import OPEN_CHUNKS, SEGMENTS, VITALS
from jobs.vital_signs.told import COLUMNS, OUTPUT, ToldVitalSigns
from keyhole.config import JobConfig, VitalSignsConfig
from keyhole.spark import queryable
from keyhole.spark.dead_letters import DeadLetters
from keyhole.spark.running import ROCKSDB, configure, records, run_job, session
from keyhole.spark.sink import Sink


def states(config: JobConfig, on_commit: Callable[[int], object] | None = None) -> Sink:
    """The three states, fed with the processor's change rows."""
    segments = queryable.map(SEGMENTS, key=KEY, map_key="start_us", op="op", key_groups=KEY_GROUPS, config=config)
    still_open = queryable.list(
        OPEN_CHUNKS, key=KEY, unbounded=True, op="op", key_groups=KEY_GROUPS, config=config
    )  # bounded by the watermark: a blob is closed 10 s after its minute
    vitals = queryable.value(VITALS, key=KEY, op="op", key_groups=KEY_GROUPS, config=config)
    parts = {SEGMENTS: segments, OPEN_CHUNKS: still_open, VITALS: vitals}
    sinks = (sink.of(functools.partial(_changes, state)).in_order() for state, sink in parts.items())
    return queryable.together(*sinks, on_commit=on_commit)


def _changes(state: str, batch: DataFrame) -> DataFrame:
    return batch.where(batch.state == state).select(*KEY, "op", *COLUMNS[state])


def commit(sink: Sink, folder: Path, batch: DataFrame, batch_id: int) -> None:
    """Writes the closed blobs' files; then the epoch, whose readers don't find their chunks in the state any more."""
    batch = batch.persist()  # else the files and the states would run its plan each
    try:
        batch.where("state is null").foreachPartition(functools.partial(_write, folder))
        sink(batch, batch_id)
    finally:
        batch.unpersist()


def _write(folder: Path, rows: Iterator[Row]) -> None:
    for row in rows:
        of = tuple(Chunk(chunk.start_us, bytes(chunk.samples)) for chunk in row.chunks)
        write_blob(folder, Blob(row.patient, row.signal, row.blob_us, of))


def start(environ: Mapping[str, str]) -> StreamingQuery:
    """Starts Spark and the query."""
    job, config = configure(APPLICATION, VitalSignsConfig, environ)
    spark = session(APPLICATION, config, SHUFFLE_PARTITIONS, ROCKSDB)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.topic)
    taken = chunks(records(spark, job.bootstrap_servers, config), dead_letters.accept)
    sink = states(job, dead_letters.tell)
    return (
        monitored(taken, ToldVitalSigns(), output=OUTPUT)
        .writeStream.queryName(QUERY)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(functools.partial(commit, sink, config.files))
        .start()
    )


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

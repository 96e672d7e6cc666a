"""Micro-batches over files, and how long each takes: the same rows in the same batches, whatever the sink."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

# The first batches warm up Spark, Python's workers and the stores.
WARM_BATCHES = 2
# As many as cores, as the jobs have them.
PARTITIONS = 2
# Kafka's columns, as far as pipelines look at them. All records came when the made-up days of the sources were over.
RECORDS = "value binary, partition int, offset long, timestamp timestamp"
_CAME_US = 1_795_305_600_000_000

ForeachBatch: TypeAlias = Callable[[DataFrame, int], None]


def write_records(folder: Path, batches: Iterable[Sequence[bytes]], files_per_batch: int = 1) -> None:
    """Kafka's records as files, each of which Spark reads in a task of its own; the columns of RECORDS."""
    folder.mkdir()
    for number, batch in enumerate(batches):
        for part in range(files_per_batch):
            values = batch[part::files_per_batch]
            first = number * len(batch)
            rows = {
                "value": pa.array(values, pa.binary()),
                "partition": pa.array([part] * len(values), pa.int32()),
                "offset": pa.array(range(first, first + len(values)), pa.int64()),
                "timestamp": pa.array([_CAME_US] * len(values), pa.timestamp("us", "UTC")),
            }
            write_file(folder, number * files_per_batch + part, pa.table(rows))


def write_file(folder: Path, number: int, rows: pa.Table) -> None:
    """Spark takes files in the order of their times."""
    file = folder / f"{number:05}.parquet"
    pq.write_table(rows, file)
    os.utime(file, (1_600_000_000 + number,) * 2)


def stream(spark: SparkSession, folder: Path, schema: str = RECORDS, files_per_batch: int = 1) -> DataFrame:
    """The files, so many in each batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(str(folder))


def plain(batch: DataFrame, batch_id: int) -> None:
    """What Spark does alone, through foreachBatch as well."""
    batch.write.format("noop").mode("overwrite").save()


def timed(
    data: DataFrame,
    sink: ForeachBatch,
    *,
    batches: int,
    name: str,
    checkpoint: Path,
    mode: str = "append",
    each: Callable[[], object] | None = None,
) -> list[float]:
    """Runs the query over all files; the seconds of each batch after the first ones.

    From the end of the batch before to its own, so Spark's own bookkeeping is in it.

    Args:
        batches: How many have rows; what Spark runs after them, to close windows, is not counted.
        name: The query's. Where a state is fed it must stay over runs: it is that query's.
        each: Called after each batch, from the last one that warms up on.
    """
    ended: list[float] = []

    def watched(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        ended.append(time.perf_counter())
        if each is not None and WARM_BATCHES <= len(ended) <= batches:
            each()

    query = (
        data.writeStream.outputMode(mode)
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(watched)
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    counted = ended[WARM_BATCHES - 1 : batches]
    return [after - before for before, after in itertools.pairwise(counted)]


def spread(values: Sequence[float], digits: int = 2) -> list[float]:
    """Least, median, most."""
    return [round(of, digits) for of in (min(values), statistics.median(values), max(values))]

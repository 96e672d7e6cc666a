"""Runs a batch of nothing, so that the first one of a job finds the JVM's classes loaded and Python workers started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from keyhole.temporary import temporary_directory

_log = logging.getLogger(__name__)

_ROWS = 8
_LOOK_SECONDS = 1
# The session's own may write to object stores alone.
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def warm_up(session: SparkSession, given_up: Callable[[], bool] = lambda: False) -> None:
    """Blocks for some seconds; without executors until they are there. Where it fails, the log says so: the first batch
    finds out what is wrong, if it is.

    Args:
        given_up: Asked a few times a second; the batch is stopped then.
    """
    own = session.newSession()
    own.conf.set(_CHECKPOINTS, _FILES)
    try:
        with temporary_directory(prefix="keyhole-warming-") as folder:
            rows = own.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).load()
            writer = rows.writeStream.foreachBatch(pass_through).trigger(availableNow=True)
            query = writer.option("checkpointLocation", (folder / "checkpoint").as_uri()).start()
            # A wait in the JVM would keep a signal from whoever set `given_up` by it.
            while not query.awaitTermination(_LOOK_SECONDS):
                if given_up():
                    query.stop()
                    return
    except (PySparkException, Py4JError, OSError):
        _log.warning("Spark could not be warmed", exc_info=True)


def pass_through(batch: DataFrame, batch_id: int) -> None:
    """For `foreachBatch`: a shuffle, and a Python worker that gives back what it takes."""
    batch.repartition(2).mapInArrow(_same, batch.schema).collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches

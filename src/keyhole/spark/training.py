"""`python -m keyhole.spark.training ARCHIVE DIRECTORY`: runs what jobs run, so that the JVM writes the classes that it
needs for it to an archive. See keyhole.class_archive; keyhole.local.class_archives calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import LongType, StructType

from keyhole.class_archive import writing
from keyhole.spark.driver.warming import pass_through
from keyhole.spark.running import ROCKSDB
from keyhole.spark.session import java_options, local_settings, start_session

_EVENT = "key string, time timestamp, number long"
_EXIT_SECONDS = 120


def main(arguments: list[str]) -> int:
    """Returns the process's exit code."""
    archive, directory = map(Path, arguments)
    settings = local_settings([], directory, partitions=2) | {
        "spark.driver.extraJavaOptions": java_options(directory, writing(archive)),
        "spark.log.level": "ERROR",
        **ROCKSDB,
    }
    spark = start_session("training", settings)
    events = _events(spark, directory)
    windows = events.withWatermark("time", "1 hour").groupBy("key", sql.window("time", "1 hour"))
    _run(windows.agg(sql.count("*").alias("count"), sql.avg("number").alias("mean")), directory / "aggregate")
    counted = events.groupBy("key").transformWithState(Counting(), StructType().add("count", "long"), "Update", "None")
    _run(counted, directory / "processor")
    _end(spark)
    return 0


def _events(spark: SparkSession, directory: Path) -> DataFrame:
    source = directory / "source"
    source.mkdir()
    (source / "events.json").write_text('{"key": "a", "time": "2026-01-01T00:00:00Z", "number": 1}\n')
    read = spark.readStream.schema("value string").text(str(source))
    return read.select(sql.from_json("value", _EVENT).alias("event")).select("event.*")


def _run(data: DataFrame, checkpoint: Path) -> None:
    writer = data.writeStream.outputMode("update").foreachBatch(pass_through).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


class Counting(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", StructType().add("count", LongType()))

    def handleInputRows(self, key: object, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803 - Spark's names
        before = self._count.get()
        count = (before[0] if before is not None else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(count=count)

    def close(self) -> None:
        """Part of Spark's interface; there is nothing to give up."""


def _end(spark: SparkSession) -> None:
    """Returns once the JVM has ended, with its archive written."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    # By the end of this pipe it knows that it isn't needed any more.
    gateway.proc.stdin.close()
    gateway.proc.wait(_EXIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

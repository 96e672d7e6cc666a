"""A driver in a process of its own, so that it can be killed: counts, maxima and sums per key, from Kafka.

`python -m tests.support.counting_job`; KEYHOLE_JOB_* as any job, and COUNTING_JOB, JSON: topic, bootstrap_servers,
checkpoint, directory, jars, spark, per_trigger, mode ("update" | "reducing" | "merging"), standbys.

Update: Spark keeps the state, and its results replace those before. Reducing: Spark keeps none, the rows are merged in
the state servers; and each batch is written elsewhere too: `published/<epoch>` in the directory, the number of its
rows, moved there once the epoch is complete. Merging: as reducing; and in the same epochs the same values once more,
made by a class in the tasks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyhole import logs
from keyhole.spark import queryable
from keyhole.spark.session import local_settings, start_session
from keyhole.spark.sink import Sink
from keyhole.spark.standing_by import await_lead
from keyhole.testing.kill_points import KillPoints

STATE, MADE_IN_TASKS = "counts", "summaries"


def events(spark: SparkSession, topic: str, bootstrap_servers: str, per_trigger: int) -> DataFrame:
    """Columns k: string, v: bigint, of the topic's JSON records."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_trigger)
        .load()
        .select(f.from_json(f.col("value").cast("string"), "k string, v bigint").alias("event"))
        .select("event.*")
    )


def counts(of: DataFrame) -> DataFrame:
    """One row per key: how many events, the highest value, and the sum."""
    return of.groupBy("k").agg(f.count("*").alias("events"), f.max("v").alias("highest"), f.sum("v").alias("total"))


def rows(of: DataFrame) -> DataFrame:
    """One row per event, under the names of the fields that it is merged into."""
    return of.select("k", f.col("v").alias("events"), f.col("v").alias("highest"), f.col("v").alias("total"))


class Summary:
    """Number, maximum and sum, as what `Pipeline.answers` and the recounts ask for."""

    commutative = True

    def create(self) -> list[int]:
        return [0, -1, 0]

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        events, highest, total = accumulator
        return [events + 1, max(highest, row.v), total + row.v]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0], max(one[1], other[1]), one[2] + other[2]]

    def result(self, accumulator: list[int]) -> list[int]:
        return accumulator


class Outbox:
    """A sink that is exactly once by `on_commit`: what a batch wrote is published under its epoch, and only then."""

    def __init__(self, directory: Path) -> None:
        self._published = directory / "published"
        self._published.mkdir(exist_ok=True)
        self._written = directory / "written"

    def write(self, batch: DataFrame) -> None:
        """In place of what another try has written."""
        self._written.write_text(str(batch.count()))

    def publish(self, epoch: int) -> None:
        """Again where it was published: the same batch gave it."""
        self._written.rename(self._published / str(epoch))


def sums(standbys: int) -> Sink:
    """The events, merged in the state servers."""
    reducers = {"events": "count", "highest": "max", "total": "sum"}
    return queryable.reducing(STATE, key="k", reducers=reducers, key_groups=8, standbys=standbys).of(rows)


def summaries() -> Sink:
    """The same, merged in Spark's tasks with what the owners held before."""
    result = "events bigint, highest bigint, total bigint"
    return queryable.aggregating(MADE_IN_TASKS, key="k", aggregator=Summary(), result=result, key_groups=8)


def main() -> None:
    """Runs until it is killed, or its query fails."""
    options = json.loads(os.environ["COUNTING_JOB"])
    logs.configure("INFO")
    directory = Path(options["directory"])
    jars = [Path(jar) for jar in options["jars"]]
    settings = local_settings(jars, directory / "spark", checkpoint=options["checkpoint"])
    spark = start_session("counting", settings | {"spark.log.level": "ERROR"} | options["spark"])
    await_lead(spark)
    observer = KillPoints.from_environ(os.environ)
    source = events(spark, options["topic"], options["bootstrap_servers"], options["per_trigger"])
    if options["mode"] in ("reducing", "merging"):
        outbox, merging = Outbox(directory), options["mode"] == "merging"
        states = [sums(options["standbys"]), *([summaries()] if merging else [])]
        # Strict: the query ends where another round of an epoch gives other accumulators.
        feed = queryable.together(*states, strict=merging, observer=observer, on_commit=outbox.publish)
        writing = source.writeStream.outputMode("append")

        def sink(batch: DataFrame, batch_id: int) -> None:
            outbox.write(batch)
            feed(batch, batch_id)

    else:
        sink = queryable.value(STATE, key="k", key_groups=8, observer=observer)  # type: ignore[assignment]  # also one
        writing = counts(source).writeStream.outputMode(options["mode"])
    query = writing.queryName("counting").option("checkpointLocation", options["checkpoint"]).foreachBatch(sink).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()

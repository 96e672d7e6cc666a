"""A job whose sums begin with a history, and go on with a stream.

As a process: tests.support.killable_job.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from keyhole.config import JobConfig
from keyhole.protocol.failpoints import StepObserver
from keyhole.spark import queryable
from tests.support.killable_job import run_job

STATE = "spent"


def feed(
    spark: SparkSession,
    history: str,
    stream: str,
    checkpoint: str,
    config: JobConfig | None = None,
    observer: StepObserver | None = None,
) -> None:
    """The history (a folder of Parquet), unless the state has it, and all that there is of the stream (JSON lines)."""
    spent = queryable.reducing(
        STATE,
        key="customer",
        reducers={"amount": "sum", "payment": "count"},
        key_groups=8,
        query="payments",
        strict=True,
        config=config,
        observer=observer,
    )
    spent.bootstrap(spark.read.parquet(history))
    payments = spark.readStream.schema("customer string, payment long, amount long").json(stream)
    writing = payments.writeStream.queryName("payments").option("checkpointLocation", checkpoint)
    writing.trigger(availableNow=True).foreachBatch(spent).start().awaitTermination()


if __name__ == "__main__":
    run_job(feed)

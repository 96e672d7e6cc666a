"""A job whose sums begin with a history, and go on with a stream.

`python -m tests.support.bootstrapping_job`: in a process of its own, so that it can be killed. KEYHOLE_JOB_* as for any
job, KILL_* as keyhole.testing has them, and BOOTSTRAPPING_JOB, JSON: history (a folder of Parquet), stream (a folder of
JSON lines; all of it is taken), checkpoint, directory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pyspark.sql import SparkSession

from keyhole import logs
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.session import local_session, local_settings
from keyhole.steps import StepObserver
from keyhole.testing.kill_points import KillPoints

STATE = "spent"


def feed(
    spark: SparkSession,
    history: str,
    stream: str,
    checkpoint: str,
    config: JobConfig | None = None,
    observer: StepObserver | None = None,
) -> None:
    """The history, unless the state has it, and all that there is of the stream."""
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


def main() -> None:
    """Runs until it is killed, or has taken all."""
    options = json.loads(os.environ["BOOTSTRAPPING_JOB"])
    logs.configure("INFO")
    settings = local_settings([], Path(options["directory"]) / "spark")
    spark = local_session("bootstrapping", settings | {"spark.log.level": "ERROR"})
    observer = KillPoints.from_environ(os.environ)
    feed(spark, options["history"], options["stream"], options["checkpoint"], observer=observer)
    spark.stop()


if __name__ == "__main__":
    main()

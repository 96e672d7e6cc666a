"""A job whose rules change while it runs: a limit for alerts, and bonuses that each customer who is there gets once.

`python -m tests.support.broadcasting_job`: in a process of its own, so that it can be killed. KEYHOLE_JOB_* as any job,
KILL_* as keyhole.testing has them, and BROADCASTING_JOB, JSON: payments (a folder of JSON lines, one batch per file,
until all are taken), checkpoint, directory, proxy.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyhole import logs
from keyhole.config import JobConfig, job_config
from keyhole.spark import queryable
from keyhole.spark.session import local_session, local_settings
from keyhole.steps import StepObserver
from keyhole.testing.kill_points import KillPoints

RULES = "rules"
RULE_SCHEMA = "rule string, kind string, amount long"


def feed(
    spark: SparkSession,
    payments: str,
    checkpoint: str,
    proxy: str,
    config: JobConfig | None = None,
    observer: StepObserver | None = None,
) -> None:
    """Takes all payments that there are: three states, of which each batch sees all customers."""
    config = config or job_config()
    rules = queryable.BroadcastReader(f"{config.application}/{RULES}", proxy=proxy)

    def alerts(customers: DataFrame) -> DataFrame:
        limit = rules.read(customers).filter("kind = 'limit'").select(f.col("amount").alias("limit"))
        return customers.crossJoin(f.broadcast(limit)).filter("spent > limit")

    def bonuses(customers: DataFrame) -> DataFrame:
        new = rules.updates(customers).filter("kind = 'bonus' AND op = 'put'").select("amount")
        return customers.select("customer").crossJoin(f.broadcast(new))

    sink = queryable.together(
        queryable.value("spent", key="customer", key_groups=8, config=config),
        queryable.list("alerts", key="customer", unbounded=True, key_groups=8, config=config).of(
            alerts, increments=True
        ),
        queryable.reducing("bonus", key="customer", reducers={"amount": "sum"}, key_groups=8, config=config).of(
            bonuses, increments=True
        ),
        query="payments",
        strict=True,
        observer=observer,
    )
    rows = spark.readStream.schema("customer string, amount long").option("maxFilesPerTrigger", 1).json(payments)
    spent = rows.groupBy("customer").agg(f.sum("amount").alias("spent"))
    writing = spent.writeStream.outputMode("complete").option("checkpointLocation", checkpoint)
    writing.trigger(availableNow=True).foreachBatch(sink).start().awaitTermination()


def main() -> None:
    """Runs until it is killed, or has taken all."""
    options = json.loads(os.environ["BROADCASTING_JOB"])
    logs.configure("INFO")
    settings = local_settings([], Path(options["directory"]) / "spark")
    spark = local_session("broadcasting", settings | {"spark.log.level": "ERROR"})
    observer = KillPoints.from_environ(os.environ)
    feed(spark, options["payments"], options["checkpoint"], options["proxy"], observer=observer)
    spark.stop()


if __name__ == "__main__":
    main()

"""A job whose rules change while it runs: a limit for alerts, and bonuses that each customer who is there gets once.

As a process: tests.support.killable_job.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyhole.config import JobConfig, job_config
from keyhole.protocol.failpoints import StepObserver
from keyhole.spark import queryable
from tests.support.killable_job import run_job

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
    """Takes all payments that there are (a folder of JSON lines, one batch per file): three states, of which each batch
    sees all customers.
    """
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


if __name__ == "__main__":
    run_job(feed)

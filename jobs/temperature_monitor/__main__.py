"""`python -m jobs.temperature_monitor`: configured by KEYHOLE_JOB_* and KEYHOLE_TEMPERATURE_MONITOR_*."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.temperature_monitor.config import TemperatureMonitorConfig
from jobs.temperature_monitor.description import JOB
from jobs.temperature_monitor.pipeline import (
    ALERT_COLUMNS,
    ALERTS,
    ALERTS_KEPT,
    APPLICATION,
    KEY,
    KEY_GROUPS,
    LOWEST_THRESHOLD,
    NO_THRESHOLD,
    STATE,
    THRESHOLD_SCHEMA,
    THRESHOLDS,
    alerts,
    exposing,
    latest,
    readings,
    tracked,
    updates,
)
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.changes import own_rows
from keyhole.spark.dead_letters import DeadLetters
from keyhole.spark.processor import QueryableProcessor
from keyhole.spark.running import ROCKSDB, configure, records, run_job, session
from keyhole.spark.sink import Sink

# Each batch of a few updates takes a third of the processor time of one of readings, which wait for it meanwhile.
_LOOK_FOR_UPDATES = "5 seconds"


def states(
    processor: QueryableProcessor,
    job: JobConfig,
    on_commit: Callable[[int], object] | None = None,
    default_threshold: float = NO_THRESHOLD,
) -> Sink:
    """What is kept of each sensor, and its alerts, by the thresholds that the batch reads, or by the default one."""
    thresholds = queryable.BroadcastReader(
        f"{job.application}/{THRESHOLDS}",
        proxy=job.proxy,
        timeout=job.epoch_deadline_seconds,
        or_empty=THRESHOLD_SCHEMA,
        config=job,
    )

    def alerts_of(batch: DataFrame) -> DataFrame:
        return alerts(own_rows(batch), thresholds.read(batch), default_threshold)

    return queryable.together(
        queryable.exposed(processor, key_groups=KEY_GROUPS, config=job),
        alert_log(job).of(alerts_of),
        on_commit=on_commit,
    )


def alert_log(job: JobConfig) -> Sink:
    """The newest alerts of each sensor."""
    return queryable.list(
        ALERTS,
        key=KEY,
        value=ALERT_COLUMNS,
        order_by="reading",
        max_length=ALERTS_KEPT,
        key_groups=KEY_GROUPS,
        config=job,
    )


def start_sensors(spark: SparkSession, job: JobConfig, config: TemperatureMonitorConfig) -> StreamingQuery:
    """Starts the query of the readings: what is kept of each sensor, and its alerts, in one epoch."""
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.topic, config=job)
    taken = readings(records(spark, job.bootstrap_servers, config), dead_letters.accept)
    processor = exposing()
    sink = states(processor, job, dead_letters.tell, config.default_threshold)
    return (
        tracked(taken, processor)
        .writeStream.queryName(STATE)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(sink)
        .start()
    )


def start_thresholds(spark: SparkSession, job: JobConfig, config: TemperatureMonitorConfig) -> StreamingQuery:
    """Starts the query of the updates of thresholds."""
    of_updates = dataclasses.replace(config, topic=config.thresholds_topic)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.thresholds_topic, config=job)
    sink = queryable.broadcast(
        THRESHOLDS,
        key=KEY,
        delete_when=f"ratio < {LOWEST_THRESHOLD}",
        on_commit=dead_letters.tell,
        config=job,
    )
    return (
        updates(records(spark, job.bootstrap_servers, of_updates), dead_letters.accept)
        .writeStream.queryName(THRESHOLDS)
        .outputMode("append")
        .trigger(processingTime=_LOOK_FOR_UPDATES)
        .option("checkpointLocation", f"{config.checkpoint}-thresholds")
        .foreachBatch(sink.of(latest))
        .start()
    )


def start(environ: Mapping[str, str]) -> list[StreamingQuery]:
    """Starts Spark and both queries."""
    job, config = configure(APPLICATION, TemperatureMonitorConfig, environ, JOB.kinds)
    spark = session(APPLICATION, config, ROCKSDB)
    return [start_thresholds(spark, job, config), start_sensors(spark, job, config)]


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

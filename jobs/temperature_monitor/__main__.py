"""`python -m jobs.temperature_monitor`: configured by KEYHOLE_JOB_* and KEYHOLE_TEMPERATURE_MONITOR_*."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.temperature_monitor.pipeline import (
    APPLICATION,
    KEY,
    KEY_GROUPS,
    SHUFFLE_PARTITIONS,
    STATE,
    max_temperature,
    readings,
)
from keyhole import logs
from keyhole.config import JobConfig, TemperatureMonitorConfig, load
from keyhole.errors import KeyholeError
from keyhole.spark import queryable
from keyhole.spark.session import local_session, local_settings

_LOOK_SECONDS = 0.2


def records(spark: SparkSession, bootstrap_servers: str, config: TemperatureMonitorConfig) -> DataFrame:
    """The topic's records, from its beginning."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", config.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", config.max_offsets_per_trigger)
        .load()
    )


def start(environ: Mapping[str, str]) -> StreamingQuery:
    """Starts Spark and the query."""
    job = load(JobConfig, environ, application=environ.get("KEYHOLE_JOB_APPLICATION", APPLICATION))
    config = load(TemperatureMonitorConfig, environ)
    logs.configure(config.log_level)
    jars = [Path(jar) for jar in config.jars]
    spark = local_session(APPLICATION, local_settings(jars, config.directory, partitions=SHUFFLE_PARTITIONS))
    return (
        max_temperature(readings(records(spark, job.bootstrap_servers, config)))
        .writeStream.queryName(STATE)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(queryable.value(STATE, key=KEY, key_groups=KEY_GROUPS, config=job))
        .start()
    )


def main(environ: Mapping[str, str]) -> int:
    """Runs until the query fails or SIGTERM comes. Returns the process's exit code."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        query = start(environ)
    except KeyholeError as error:
        print(f"temperature-monitor: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    # The handler itself can't stop the query: it may interrupt this thread in the middle of a call to the JVM.
    while query.isActive and not stopped.wait(_LOOK_SECONDS):
        pass
    if not stopped.is_set():
        query.awaitTermination()  # raises what ended it
    query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))

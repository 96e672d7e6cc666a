"""`python -m jobs.temperature_monitor`: configured by KEYHOLE_JOB_* and KEYHOLE_TEMPERATURE_MONITOR_*."""

from __future__ import annotations

import sys
from collections.abc import Mapping

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
from keyhole.config import TemperatureMonitorConfig
from keyhole.spark import queryable
from keyhole.spark.running import configure, records, run_job, session


def start(environ: Mapping[str, str]) -> StreamingQuery:
    """Starts Spark and the query."""
    job, config = configure(APPLICATION, TemperatureMonitorConfig, environ)
    spark = session(APPLICATION, config, SHUFFLE_PARTITIONS)
    return (
        max_temperature(readings(records(spark, job.bootstrap_servers, config)))
        .writeStream.queryName(STATE)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(queryable.value(STATE, key=KEY, key_groups=KEY_GROUPS, config=job))
        .start()
    )


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

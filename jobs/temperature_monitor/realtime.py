"""`python -m jobs.temperature_monitor.realtime`: what is kept of each sensor, fed in Spark's real-time mode.

One query without a state of Spark's: each reading is readable milliseconds after it came into Kafka, and counts once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from jobs.temperature_monitor.config import TemperatureMonitorConfig
from jobs.temperature_monitor.description import JOB
from jobs.temperature_monitor.pipeline import APPLICATION, KEY, KEY_GROUPS, STATE, readings
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.queryable import RealTimeQuery
from keyhole.spark.running import configure, real_time_records, run_job, session
from keyhole.spark.sink import Sink

REDUCERS = {"last": "last", "min": "min", "max": "max", "total": "sum", "readings": "count", "time_ms": "max"}

_OP, _NO_READING = "op", "no reading"
# Each is read by a task that lasts as long as the batch.
_CORES = JOB.partitions


def kept(records: DataFrame) -> DataFrame:
    """A row of each record, with its place in Kafka and what it brings to the state.

    A record that is no reading has an operation that there is not: the state's owner keeps it among the dead letters.
    """

    def mark(parsed: DataFrame, problem: Column) -> DataFrame:
        return parsed.withColumn(_OP, f.when(problem.isNotNull(), _NO_READING))

    celsius = [f"temperature AS {name}" for name in ("last", "min", "max", "total", "readings")]
    return readings(records, mark).selectExpr("partition", "offset", KEY, _OP, *celsius, "time_ms")


def sensors(job: JobConfig) -> Sink:
    """What is kept of each sensor: `total` in place of the mean, as a mean can't be merged."""
    return queryable.reducing(STATE, key=KEY, reducers=REDUCERS, op=_OP, key_groups=KEY_GROUPS, config=job)


def start(environ: Mapping[str, str]) -> RealTimeQuery:
    """Starts Spark and the query."""
    job, config = configure(APPLICATION, TemperatureMonitorConfig, environ, JOB.kinds)
    spark = session(APPLICATION, config, cores=_CORES)
    rows = kept(real_time_records(spark, job.bootstrap_servers, config))
    batch = f"{config.realtime_batch_seconds} seconds"
    return queryable.realtime(rows, sensors(job), checkpoint=config.checkpoint, batch=batch)


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

"""`python -m jobs.golden_signals`: configured by KEYHOLE_JOB_* and KEYHOLE_GOLDEN_SIGNALS_*."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from pyspark.sql.streaming.query import StreamingQuery

from jobs.golden_signals.config import GoldenSignalsConfig
from jobs.golden_signals.description import JOB
from jobs.golden_signals.pipeline import (
    APPLICATION,
    KEPT_FOR,
    KEY,
    KEY_GROUPS,
    STATE,
    VALUE,
    measurements,
)
from jobs.golden_signals.signals import RESULT, GoldenSignals
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.dead_letters import DeadLetters
from keyhole.spark.running import configure, records, run_job, session
from keyhole.spark.sink import Sink


def state(config: JobConfig, on_commit: Callable[[int], object]) -> Sink:
    """The state, fed with measurements."""
    return queryable.aggregating(
        STATE,
        key=KEY,
        aggregator=GoldenSignals(),
        result=RESULT,
        value=VALUE,
        key_groups=KEY_GROUPS,
        ttl=KEPT_FOR,
        on_commit=on_commit,
        config=config,
    )


def start(environ: Mapping[str, str]) -> StreamingQuery:
    """Starts Spark and the query."""
    job, config = configure(APPLICATION, GoldenSignalsConfig, environ, JOB.kinds)
    spark = session(APPLICATION, config)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.topic, config=job)
    return (
        measurements(records(spark, job.bootstrap_servers, config), dead_letters.accept)
        .writeStream.queryName(STATE)
        .outputMode("append")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(state(job, dead_letters.tell))
        .start()
    )


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

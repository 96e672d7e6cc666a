"""`python -m jobs.fraud_detection`: configured by KEYHOLE_JOB_* and KEYHOLE_FRAUD_DETECTION_*."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.fraud_detection import pipeline
from jobs.fraud_detection.config import FraudDetectionConfig
from jobs.fraud_detection.description import JOB
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.changes import own_rows
from keyhole.spark.dead_letters import Accept, DeadLetters
from keyhole.spark.queryable import BroadcastReader, QueryableProcessor
from keyhole.spark.running import ROCKSDB, configure, records, run_job, session
from keyhole.spark.sink import Sink

# Rules come seldom, and sums may be a second old; without it their queries would ask Kafka all the time.
_LOOK = "1 second"


def table(
    spark: SparkSession,
    job: JobConfig,
    config: FraudDetectionConfig,
    state: str,
    key: str,
    topic: str,
    rows: Callable[[DataFrame, Accept], DataFrame],
) -> StreamingQuery:
    """Starts the query that broadcasts the records of a topic: of each key the last one."""
    of_topic = dataclasses.replace(config, topic=topic)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, topic, config=job)
    sink = queryable.broadcast(state, key=key, order_by=pipeline.PUBLISHED, on_commit=dead_letters.tell, config=job)
    return _beside(rows(records(spark, job.bootstrap_servers, of_topic), dead_letters.accept), state, config, sink)


def spent(spark: SparkSession, job: JobConfig, config: FraudDetectionConfig) -> StreamingQuery:
    """Starts the query of what each account has spent, with the history, if there is one, before its first batch.

    Raises:
        KeyholeError: As Sink.bootstrap.
    """
    sink = queryable.reducing(
        pipeline.SPENT,
        key=pipeline.KEY,
        reducers=pipeline.SPENT_REDUCERS,
        key_groups=pipeline.KEY_GROUPS,
        query=pipeline.SPENT,
        config=job,
    )
    if config.history:
        sink.bootstrap(pipeline.spent(spark.read.parquet(config.history)))  # nothing, when the job is started again
    # The pairs' query keeps the dead letters of the same topic.
    taken = pipeline.payments(records(spark, job.bootstrap_servers, config))
    return _beside(pipeline.spent(taken), pipeline.SPENT, config, sink)


def _beside(rows: DataFrame, state: str, config: FraudDetectionConfig, sink: Sink) -> StreamingQuery:
    """Starts the query, beside the pairs', that feeds a state of the same name."""
    return (
        rows.writeStream.queryName(state)
        .outputMode("append")
        .option("checkpointLocation", f"{config.checkpoint}-{state}")
        .trigger(processingTime=_LOOK)
        .foreachBatch(sink)
        .start()
    )


def states(processor: QueryableProcessor, job: JobConfig, on_commit: Callable[[int], object] | None = None) -> Sink:
    """The three states of the pairs' query, fed with the processor's rows and with the rules that the batch reads."""
    rules = _reader(job, pipeline.RULES, pipeline.RULES_SCHEMA)
    aggregations = _reader(job, pipeline.AGGREGATIONS, pipeline.AGGREGATIONS_SCHEMA)
    alerts = queryable.map(
        pipeline.ALERTS, key=pipeline.KEY, map_key=pipeline.ALERTS_MAP_KEY, key_groups=pipeline.KEY_GROUPS, config=job
    )
    totals = queryable.reducing(
        pipeline.TOTALS,
        key=pipeline.TOTALS_KEY,
        map_key=pipeline.TOTALS_MAP_KEY,
        reducers=pipeline.TOTALS_REDUCERS,
        key_groups=pipeline.KEY_GROUPS,
        config=job,
    )
    return queryable.together(
        queryable.exposed(processor, key_groups=pipeline.KEY_GROUPS, config=job),
        alerts.of(lambda batch: pipeline.alerts(own_rows(batch), rules.read(batch))),
        totals.of(lambda batch: pipeline.contributions(pipeline.arrived(own_rows(batch)), aggregations.read(batch))),
        on_commit=on_commit,
    )


def _reader(job: JobConfig, state: str, schema: str) -> BroadcastReader:
    return BroadcastReader(
        f"{job.application}/{state}",
        proxy=job.proxy,
        timeout=job.epoch_deadline_seconds,
        or_empty=schema,
        config=job,
    )


def start(environ: Mapping[str, str]) -> Sequence[StreamingQuery]:
    """Starts Spark and the queries."""
    job, config = configure(pipeline.APPLICATION, FraudDetectionConfig, environ, JOB.kinds)
    spark = session(pipeline.APPLICATION, config, ROCKSDB)
    tables = [
        table(spark, job, config, pipeline.RULES, pipeline.RULES_KEY, config.rules_topic, pipeline.rules),
        table(
            spark,
            job,
            config,
            pipeline.AGGREGATIONS,
            pipeline.AGGREGATIONS_KEY,
            config.aggregations_topic,
            pipeline.aggregations,
        ),
    ]
    for query in tables:
        query.processAllAvailable()  # what was published before is there for the first payments
    sums = spent(spark, job, config)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.topic, config=job)
    processor = pipeline.exposing()
    taken = pipeline.payments(records(spark, job.bootstrap_servers, config), dead_letters.accept)
    pairs = (
        pipeline.paired(taken, processor)
        .writeStream.queryName(pipeline.QUERY)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(states(processor, job, dead_letters.tell))
        .start()
    )
    return [pairs, sums, *tables]


if __name__ == "__main__":
    sys.exit(run_job(pipeline.APPLICATION, start))

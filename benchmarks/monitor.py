"""How old the readings of the demo's job are when they are first seen, against the same job written to `noop`: the
whole of jobs/temperature_monitor, its thresholds' query too, from its own source at its own rate, the two in turn.

    uv run python -m benchmarks.monitor [--seconds 40] [--warm 40] [--repeats 2] [--sensors 1000] [--rate 1000]
                                        [--sides keyhole noop] [--set NAME=VALUE ...]

`noop` has the whole job, and writes its rows nowhere; `noop-drops` leaves the dead letters out, too.

One line of JSON per turn, and a summary. With Keyhole a reading is seen when the proxy answers with it; with `noop`
when the batch has ended that holds it. `cpu` is processor time per second of the run, by process: of two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.batches import plain
from benchmarks.cluster import Cluster, cluster
from benchmarks.freshness import spread
from benchmarks.processes import Processes
from jobs.temperature_monitor import __main__ as job
from jobs.temperature_monitor import pipeline, processor, source
from jobs.temperature_monitor.config import TemperatureMonitorConfig
from keyhole import Client
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.config import JobConfig
from keyhole.errors import KeyholeError
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.processes import Child
from keyhole.spark.dead_letters import Accept, DeadLetters, drop
from keyhole.spark.running import ROCKSDB, records
from keyhole.spark.session import local_settings, start_session

LOOK_SECONDS = 0.02
PROBE_MS = 100

Ages = list[float]
"""Milliseconds, one per reading of the probe."""


def main() -> None:
    """Prints one line of JSON per turn, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--warm", type=float, default=40.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--sensors", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--sides", nargs="+", default=["keyhole", "noop"])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="a setting of Spark's")
    options = parser.parse_args()
    medians: dict[str, list[float]] = {side: [] for side in options.sides}
    jars = fetch(JarSet.SPARK_KAFKA, default_cache_dir(os.environ))
    more = dict(of.split("=", 1) for of in options.set)
    with cluster() as running, tempfile.TemporaryDirectory(prefix="keyhole-monitor-") as directory:
        settings = {
            **local_settings(jars, Path(directory), partitions=2),
            **ROCKSDB,
            "spark.log.level": "ERROR",
            **more,
        }
        spark = start_session("monitor", settings)
        for turn in range(options.repeats):
            for side in options.sides:
                line = measure(side, spark, running, Path(directory), f"{side}-{turn}", options)
                print(json.dumps({"side": side, **line}), flush=True)
                medians[side].append(line["p50_ms"])
        spark.stop()
    print(json.dumps({"benchmark": "monitor", "p50_ms": medians}))


def measure(
    side: str, spark: SparkSession, running: Cluster, directory: Path, name: str, options: argparse.Namespace
) -> dict[str, Any]:
    """One turn: a source, and both queries, of their own."""
    topics = {f"readings-{name}": source.PARTITIONS, f"thresholds-{name}": 1}
    make_topics(running.bootstrap_servers, topics, 60)
    config = TemperatureMonitorConfig(
        topic=f"readings-{name}",
        thresholds_topic=f"thresholds-{name}",
        checkpoint=f"{directory}/{name}",
        directory=directory,
    )
    jobs = JobConfig(f"{pipeline.APPLICATION}-{name}", running.servers, running.bootstrap_servers, proxy=running.proxy)
    with sending(running, config, options, directory / f"{name}.log"):
        queries = started(side, spark, jobs, config)
        try:
            time.sleep(options.warm)
            processes = Processes(running.pids)
            before, began, batches = processes.usage(), time.monotonic(), last_batch(queries)
            look = seen_by_readers if side == "keyhole" else seen_by_batches
            ages = look(running, jobs, config, queries, options.seconds)
            seconds, after = time.monotonic() - began, processes.usage()
            done = last_batch(queries) - batches
            thresholds = [
                report["durationMs"]["triggerExecution"]
                for of in queries[0].recentProgress
                if (report := json.loads(of.json))["numInputRows"]
            ][-10:]
            progress = [json.loads(of.json) for of in queries[-1].recentProgress[-done:]]
        finally:
            for query in queries:
                query.stop()
    phases = {
        phase: round(statistics.median(of["durationMs"].get(phase, 0) for of in progress))
        for phase in progress[-1]["durationMs"]
    }
    return {
        "samples": len(ages),
        **spread(ages),
        "batches": done,
        "rows": round(statistics.median(of["numInputRows"] for of in progress)),
        "batch_ms": phases,
        "thresholds_ms": thresholds,
        "cpu": {of: round(spent / seconds, 2) for of, spent in after.since(before).items()},
        "cpu_per_batch": round(after.since(before)["spark"] / done, 2),
    }


@contextmanager
def sending(
    running: Cluster, config: TemperatureMonitorConfig, options: argparse.Namespace, log: Path
) -> Iterator[None]:
    """The job's source, in a process of its own."""
    environ = {
        **os.environ,
        "KEYHOLE_READINGS_BOOTSTRAP_SERVERS": running.bootstrap_servers,
        "KEYHOLE_READINGS_TOPIC": config.topic,
        "KEYHOLE_READINGS_THRESHOLDS_TOPIC": config.thresholds_topic,
        "KEYHOLE_READINGS_SENSORS": str(options.sensors),
        "KEYHOLE_READINGS_RATE": str(options.rate),
    }
    child = Child("source", [sys.executable, "-m", "jobs.temperature_monitor.source"], log, environ)
    try:
        yield
    finally:
        child.kill()


def started(side: str, spark: SparkSession, jobs: JobConfig, config: TemperatureMonitorConfig) -> list[StreamingQuery]:
    """The thresholds' query and that of the readings."""
    if side == "keyhole":
        return [job.start_thresholds(spark, jobs, config), job.start_sensors(spark, jobs, config)]
    of_updates = dataclasses.replace(config, topic=config.thresholds_topic)

    def accept(topic: str) -> Accept:
        return drop if side == "noop-drops" else DeadLetters(spark, jobs.bootstrap_servers, topic).accept

    changes = pipeline.updates(records(spark, jobs.bootstrap_servers, of_updates), accept(of_updates.topic))
    thresholds = spark.createDataFrame([(sensor, 1.02) for sensor in source.WATCHED], pipeline.THRESHOLD_SCHEMA)

    def alerts(batch: DataFrame, batch_id: int) -> None:
        plain(pipeline.alerts(batch, thresholds), batch_id)

    readings = pipeline.readings(records(spark, jobs.bootstrap_servers, config), accept(config.topic))
    tracked = (
        readings.withWatermark("time", pipeline.DELAY)
        .groupBy(pipeline.KEY)
        .transformWithState(processor.Sensors(), processor.OUTPUT, "Update", "eventTime")
    )
    return [
        changes.writeStream.queryName("noop-thresholds")
        .trigger(processingTime="1 second")
        .option("checkpointLocation", f"{config.checkpoint}-thresholds")
        .foreachBatch(lambda batch, batch_id: plain(pipeline.latest(batch), batch_id))
        .start(),
        tracked.writeStream.queryName("noop-sensors")
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(alerts)
        .start(),
    ]


def last_batch(queries: Sequence[StreamingQuery]) -> int:
    """Of the readings."""
    progress = queries[-1].lastProgress
    return -1 if progress is None else int(progress["batchId"])


Look = Callable[[Cluster, JobConfig, TemperatureMonitorConfig, Sequence[StreamingQuery], float], Ages]


def seen_by_readers(
    running: Cluster,
    jobs: JobConfig,
    _: TemperatureMonitorConfig,
    queries: Sequence[StreamingQuery],
    seconds: float,
) -> Ages:
    """By answers for the probe. What the first one shows was sent before anybody looked."""

    def alive() -> None:
        assert all(query.isActive for query in queries), [query.exception() for query in queries]

    with Client(running.proxy) as client:
        answers = new_readings(client, jobs.application, seconds, alive)
        next(answers, None)
        return [now_ms - sent_ms for now_ms, sent in answers for sent_ms in sent]


def new_readings(
    client: Client, application: str, seconds: float, each_time: Callable[[], None] = lambda: None
) -> Iterator[tuple[float, Sequence[int]]]:
    """Asks for the probe, again and again: when an answer came that shows new readings, and when these were sent, the
    newest first: all since the answer before, and of the first answer one. Milliseconds since 1970.
    """
    newest: int | None = None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        each_time()
        try:
            answer = client.get(application, pipeline.STATE, source.PROBE)
        except KeyholeError:
            time.sleep(0.1)
            continue
        now_ms = time.time() * 1000
        if answer.found and (newest is None or answer.value.time_ms > newest):
            last = answer.value.time_ms
            yield now_ms, range(last, last - 1 if newest is None else newest, -PROBE_MS)
            newest = last
        time.sleep(LOOK_SECONDS)


def seen_by_batches(
    running: Cluster,
    _: JobConfig,
    config: TemperatureMonitorConfig,
    queries: Sequence[StreamingQuery],
    seconds: float,
) -> Ages:
    """When each batch ended, and the readings of the probe in it, which has a partition for itself."""
    ends: dict[int, tuple[int, float]] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        progress = queries[-1].lastProgress
        assert progress is not None
        (source_progress,) = progress["sources"]
        # The moment at which it is told: the batch has ended.
        ends.setdefault(
            progress["batchId"],
            (
                json.loads(str(source_progress.endOffset).replace("'", '"'))[config.topic][str(source.PROBE_PARTITION)],
                time.time() * 1000,
            ),
        )
        time.sleep(LOOK_SECONDS)
    sent = sent_ms(running.bootstrap_servers, config.topic, source.PROBE_PARTITION)
    batches = sorted(ends.values())
    return [
        ended - sent[offset] for (begin, _), (end, ended) in itertools.pairwise(batches) for offset in range(begin, end)
    ]


def sent_ms(bootstrap_servers: str, topic: str, partition: int) -> list[int]:
    """Kafka's timestamps of all records of a partition, by offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
    sent: list[int] = []
    while len(sent) < end:
        message = consumer.poll(10)
        assert message is not None, "Kafka does not answer"
        if not message.error():
            sent.append(message.timestamp()[1])
    consumer.close()
    return sent


if __name__ == "__main__":
    main()

"""How old the freshest answer is: from an event's Kafka timestamp to the first answer that shows it, against the same
aggregation written to Spark's `noop` sink (to the end of the batch that holds the event). Same source, same triggers,
the two in turn.

    uv run python -m benchmarks.freshness [--seconds 20] [--repeats 3] [--sensors 1000] [--rate 1000]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.cluster import Cluster, cluster
from keyhole import Client
from keyhole.config import JobConfig
from keyhole.errors import KeyholeError
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.spark import queryable
from keyhole.spark.session import local_settings, start_session

APPLICATION, STATE = "benchmark", "freshness"
WARM_SECONDS = 20.0
PROBE_SECONDS = 0.1
PROBE = "probe"


@dataclass
class Probes:
    """Events of a sensor of their own whose value only grows: (value, Kafka timestamp in ms), as they are sent."""

    sent: list[tuple[int, int]] = field(default_factory=list)


class Source(threading.Thread):
    """Sends readings of all sensors at a steady rate, and a probe every tenth of a second."""

    def __init__(self, bootstrap_servers: str, topic: str, sensors: int, rate: int) -> None:
        super().__init__(name="source", daemon=True)
        self.probes = Probes()
        self.stopped = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1})
        self._topic, self._sensors, self._rate = topic, sensors, rate

    def run(self) -> None:
        sent, value, began = 0, 0, time.monotonic()
        next_probe = began
        while not self.stopped.wait(0.01):
            now = time.monotonic()
            while sent < (now - began) * self._rate:
                self._send(f"sensor-{sent % self._sensors}", sent % 97)
                sent += 1
            if now >= next_probe:
                value += 1
                stamp = time.time_ns() // 1_000_000
                self._send(PROBE, value, stamp)
                self.probes.sent.append((value, stamp))
                next_probe += PROBE_SECONDS
            self._producer.poll(0)
        self._producer.flush(10)

    def _send(self, sensor: str, value: int, stamp: int = 0) -> None:
        reading = json.dumps({"sensor": sensor, "value": value})
        self._producer.produce(self._topic, reading, timestamp=stamp or time.time_ns() // 1_000_000)


def main() -> None:
    """Prints one line of JSON per run, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sensors", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--key-groups", type=int, default=64)
    options = parser.parse_args()
    results: dict[str, list[float]] = {"keyhole": [], "noop": []}
    jars = fetch(JarSet.SPARK_KAFKA, default_cache_dir(os.environ))
    with cluster() as running, tempfile.TemporaryDirectory(prefix="keyhole-freshness-") as directory:
        spark = start_session("freshness", local_settings(jars, Path(directory)) | {"spark.log.level": "ERROR"})
        for repeat in range(options.repeats):
            for name, run in (("keyhole", with_keyhole), ("noop", with_noop)):
                topic = f"readings-{name}-{repeat}"
                ages = measure(run, spark, running, topic, Path(directory) / topic, options)
                line = {"sink": name, "samples": len(ages), **spread(ages)}
                print(json.dumps(line), flush=True)
                results[name].append(statistics.median(ages))
        spark.stop()
    ratio = statistics.median(results["keyhole"]) / statistics.median(results["noop"])
    print(
        json.dumps(
            {
                "benchmark": "freshness",
                "key_groups": options.key_groups,
                "keyhole_p50_ms": [round(value) for value in results["keyhole"]],
                "noop_p50_ms": [round(value) for value in results["noop"]],
                "ratio_to_noop": round(ratio, 2),
            }
        )
    )


Run = Callable[[DataFrame, Cluster, Path, Probes, argparse.Namespace], list[float]]


def measure(
    run: Run, spark: SparkSession, running: Cluster, topic: str, directory: Path, options: argparse.Namespace
) -> list[float]:
    """Ages in milliseconds, one per probe."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    source = Source(running.bootstrap_servers, topic, options.sensors, options.rate)
    source.start()
    try:
        return run(maxima(spark, running, topic), running, directory, source.probes, options)
    finally:
        source.stopped.set()
        source.join()


def maxima(spark: SparkSession, running: Cluster, topic: str) -> DataFrame:
    """The highest value per sensor."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", running.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    readings = records.select(f.from_json(f.col("value").cast("string"), "sensor string, value bigint").alias("r"))
    return readings.groupBy("r.sensor").agg(f.max("r.value").alias("highest"), f.count("*").alias("readings"))


def with_keyhole(
    data: DataFrame, running: Cluster, directory: Path, probes: Probes, options: argparse.Namespace
) -> list[float]:
    """Polls the probe through the proxy, and notes when each value is first seen."""
    config = JobConfig(APPLICATION, running.servers, running.bootstrap_servers)
    sink = queryable.value(
        f"{STATE}-{options.key_groups}",
        key="sensor",
        key_groups=options.key_groups,
        config=config,
        on_new_checkpoint="reset",
    )
    query = (
        data.writeStream.outputMode("update")
        .queryName("freshness")
        .option("checkpointLocation", str(directory))
        .foreachBatch(sink)
        .start()
    )
    seen: list[tuple[int, float]] = []
    try:
        with Client(running.proxy) as client:
            until = wait_warm(query) + options.seconds
            while time.monotonic() < until:
                try:
                    answer = client.get(APPLICATION, f"{STATE}-{options.key_groups}", PROBE)
                except KeyholeError:
                    time.sleep(0.1)
                    continue
                if answer.found and (not seen or answer.value.highest > seen[-1][0]):
                    seen.append((answer.value.highest, time.time() * 1000))
                time.sleep(0.001)
    finally:
        query.stop()
    return ages(probes, seen)


def with_noop(
    data: DataFrame, running: Cluster, directory: Path, probes: Probes, options: argparse.Namespace
) -> list[float]:
    """Takes the end of each batch, and the probes that it holds: those sent before its offsets were read."""
    ends: list[tuple[int, float]] = []
    query = (
        data.writeStream.outputMode("update")
        .queryName("noop")
        .option("checkpointLocation", str(directory))
        .format("noop")
        .start()
    )
    try:
        until = wait_warm(query) + options.seconds
        batch = -1
        while time.monotonic() < until:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] != batch and progress["numInputRows"] > 0:
                batch = progress["batchId"]
                ends.append(batch_end(progress, probes))
            time.sleep(0.002)
    finally:
        query.stop()
    return ages(probes, ends)


def batch_end(progress: Any, probes: Probes) -> tuple[int, float]:
    """The last probe of a batch, and when the batch ended, in ms since 1970."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000
    duration = progress["durationMs"]
    read = began + duration.get("latestOffset", 0)
    last = max((value for value, stamp in probes.sent if stamp <= read), default=0)
    return last, began + duration["triggerExecution"]


def wait_warm(query: StreamingQuery) -> float:
    """Lets the first batches pass; returns the monotonic time."""
    time.sleep(WARM_SECONDS)
    assert query.isActive, query.exception()
    return time.monotonic()


def ages(probes: Probes, seen: list[tuple[int, float]]) -> list[float]:
    """Of every probe sent while we looked: the time from its stamp to the first sight of its value or a later one."""
    result = []
    for value, stamp in probes.sent:
        if value <= seen[0][0]:
            continue
        first = next((moment for shown, moment in seen if shown >= value), None)
        if first is not None:
            result.append(first - stamp)
    return result


def spread(values: list[float]) -> dict[str, int]:
    """Median and 99th percentile, in ms."""
    ordered = sorted(values)
    return {"p50_ms": round(statistics.median(ordered)), "p99_ms": round(ordered[int(len(ordered) * 0.99)])}


if __name__ == "__main__":
    main()

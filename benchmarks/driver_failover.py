"""How long there are no new epochs when the driver of a job is killed, with a driver that stands by, and without.

    uv run python -m benchmarks.driver_failover [--runs 5] [--sides standby restart]

A job sums events of a topic; twenty come each second, each with a number one higher than the last. The gap of a run is
the time from SIGKILL of the driver until an answer shows an event that was sent after it. `standby`: another driver
waits in the same KEYHOLE_JOB_DRIVER_GROUP. `restart`: the same command is started again at once, which is the least
that a cluster needs, whose pod has yet to be made. One line of JSON per run, and a summary.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.batches import spread
from benchmarks.cluster import Cluster, cluster
from keyhole import Client, logs
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.errors import KeyholeError
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.processes import Child
from keyhole.spark import queryable
from keyhole.spark.session import local_settings, start_session
from keyhole.spark.standing_by import await_lead

APPLICATION, STATE, KEY = "driver-failover", "counts", "probe"
EVENT_SECONDS, LOOK_SECONDS = 0.05, 0.02
PATIENCE_SECONDS = 300.0
SETTLED_SECONDS = 10.0
"""A driver that has stood by for so long has its Spark warm, and is known to the group."""


def main() -> None:
    """Prints one line of JSON per run, and one for all of them: least, median and most, in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sides", nargs="+", default=["standby", "restart"])
    parser.add_argument("--job", nargs=2, metavar=("DIRECTORY", "TOPIC"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(Path(options.job[0]), options.job[1])
        return
    gaps: dict[str, list[float]] = {side: [] for side in options.sides}
    for run in range(options.runs):
        for side in options.sides:
            with cluster() as running:
                line = {"side": side, "run": run, **measure(running, standby=side == "standby")}
            print(json.dumps(line), flush=True)
            gaps[side].append(line["gap_s"])
    print(json.dumps({"benchmark": "driver_failover", **{side: spread(of) for side, of in gaps.items()}}))


class Events(threading.Thread):
    """Sends the numbers 1, 2, 3, ... as the one key's value."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        super().__init__(name="events", daemon=True)
        self.sent = 0
        self._stopped = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1, "log_level": 0})
        self._topic = topic

    def run(self) -> None:
        while not self._stopped.wait(EVENT_SECONDS):
            self._producer.produce(self._topic, str(self.sent + 1))
            self._producer.poll(0)
            self.sent += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self._producer.flush(PATIENCE_SECONDS)


@contextmanager
def events(running: Cluster, topic: str) -> Iterator[Events]:
    sending = Events(running.bootstrap_servers, topic)
    sending.start()
    try:
        yield sending
    finally:
        sending.stop()


def measure(running: Cluster, *, standby: bool) -> dict[str, float]:
    """Kills the driver of a job of its own, once: the gap, and how far behind answers were before, in seconds."""
    topic = f"events-{uuid.uuid4().hex[:8]}"
    make_topics(running.bootstrap_servers, {topic: 1}, PATIENCE_SECONDS)
    drivers: list[Child] = []

    def start() -> Child:
        name = f"driver-{len(drivers)}"
        command = [sys.executable, "-m", "benchmarks.driver_failover", "--job", str(running.directory), topic]
        environ = {
            **os.environ,
            "KEYHOLE_JOB_APPLICATION": APPLICATION,
            "KEYHOLE_JOB_SERVERS": ",".join(running.servers),
            "KEYHOLE_JOB_BOOTSTRAP_SERVERS": running.bootstrap_servers,
            **({"KEYHOLE_JOB_DRIVER_GROUP": "counting"} if standby else {}),
        }
        drivers.append(Child(name, command, running.directory / f"{name}.log", environ))
        return drivers[-1]

    try:
        with events(running, topic) as sending, Client(running.proxy, timeout=1.0) as client:
            first = start()
            shown(client, 1)
            if standby:
                second = start()
                second.wait_healthy(lambda: "standing by" in second.output(), PATIENCE_SECONDS)
            time.sleep(SETTLED_SECONDS)
            before = shown(client, sending.sent - int(5 / EVENT_SECONDS))
            steady = sending.sent - before
            killed, after = time.monotonic(), sending.sent + 1
            first.kill()
            if not standby:
                start()
            shown(client, after)
            return {"gap_s": round(time.monotonic() - killed, 2), "behind_before_s": round(steady * EVENT_SECONDS, 2)}
    finally:
        for driver in drivers:
            driver.kill()


def shown(client: Client, least: int) -> int:
    """Returns once an answer shows so many events, or more: how many."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            answer = client.get(APPLICATION, STATE, KEY)
            if answer.found and answer.value.last >= least:
                return int(answer.value.last)
        except KeyholeError:
            pass  # not yet, or its owner is being replaced
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"no answer shows event {least} within {PATIENCE_SECONDS:g} s")


def job(directory: Path, topic: str) -> None:
    """The driver, until it is killed."""
    jars = fetch(JarSet.SPARK_KAFKA, default_cache_dir(os.environ))
    settings = local_settings(jars, directory / f"spark-{os.getpid()}", partitions=2)
    logs.configure("INFO")
    spark = start_session(APPLICATION, settings | {"spark.log.level": "ERROR"})
    await_lead(spark)
    read = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["KEYHOLE_JOB_BOOTSTRAP_SERVERS"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(f"'{KEY}' as key", "cast(cast(value as string) as bigint) as last")
    )
    sink = queryable.reducing(STATE, key="key", reducers={"last": "max"}, key_groups=8)
    checkpoint = str(directory / "checkpoint")
    writer = read.writeStream.queryName("counting").outputMode("append").option("checkpointLocation", checkpoint)
    writer.foreachBatch(sink).start().awaitTermination()


if __name__ == "__main__":
    main()

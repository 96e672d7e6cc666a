"""What is measured in turn: each has a topic of its own, which is read as soon as it is started, and readers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.cluster import Cluster
from benchmarks.flink.running import Settings, flink
from benchmarks.realtime.events import SENSORS, prepare
from keyhole.config import JobConfig
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.processes import Child
from keyhole.spark import queryable
from keyhole.spark.session import local_settings, start_session

STATE = "readings"
NO_BATCH_END = "1 hour"

# A real-time query's, a micro-batch query's, and one to spare.
_CORES = 3
_FLINK_TIMEOUTS_MS = {"flink-0": 0, "flink-100": 100}

Reader = Callable[[int, int], Child]
"""Starts a reader, of the number of the last probe and the seconds that it may take."""


@dataclass
class Side:
    """One way from the topic to a reader.

    Attributes:
        pids: Of the processes that it has for itself, by their names.
        in_turn: What runs only while it is measured.
        next: The number of the next probe that its topic will have.
    """

    name: str
    topic: str
    reader: Reader
    pids: Mapping[str, int] = field(default_factory=dict)
    in_turn: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    next: int = 1


class Sides:
    """Makes sides, which end with the stack. Spark is started when the first one needs it.

    Args:
        key_groups: Of Keyhole's states.
        pause_ms: Of readers, between an answer and the next lookup.
    """

    def __init__(self, running: Cluster, stack: contextlib.ExitStack, key_groups: int, pause_ms: float) -> None:
        self._running = running
        self._stack = stack
        self._key_groups = key_groups
        self._pause_ms = pause_ms
        self._spark: SparkSession | None = None

    def make(self, name: str) -> Side:
        """Starts the side of this name in SIDES, on a source topic of its own."""
        prepare(self._running.bootstrap_servers, f"readings-{name}")
        return SIDES[name](self, name)

    def bare(self, name: str) -> Side:
        """A producer and a consumer: the floor."""
        return Side(name, f"readings-{name}", self._reader(name, "records", self._running.bootstrap_servers))

    def feed(self, name: str) -> Side:
        """`keyhole feed`, as a user starts it."""
        options = "--value", "number:bigint", "--key-groups", str(self._key_groups)
        path, topic = f"realtime-{name}/{STATE}", f"readings-{name}"
        child = self._stack.enter_context(feeding(self._running, path, topic, *options))
        return Side(name, f"readings-{name}", self.answers(name), {"feed": child.pid})

    def real_time(self, name: str) -> Side:
        """queryable.realtime, in one batch that does not end."""
        self._stack.enter_context(self.query(name, NO_BATCH_END))
        return Side(name, f"readings-{name}", self.answers(name))

    @contextlib.contextmanager
    def query(self, name: str, batch: str) -> Iterator[queryable.RealTimeQuery]:
        """A real-time query on the side's topic."""
        state = queryable.value(STATE, key="sensor", key_groups=self._key_groups, config=self._config(name))
        checkpoint = self._running.directory / f"checkpoint-{name}"
        query = queryable.realtime(self._rows(name), state, checkpoint=str(checkpoint), batch=batch)
        try:
            yield query
        finally:
            query.stop()

    def batches(self, name: str) -> Side:
        """The batch lane: micro-batches, only while it is measured, as they ask for what is new all the time."""
        self._session()
        return Side(name, f"readings-{name}", self.answers(name), in_turn=lambda: self._micro_batches(name))

    @contextlib.contextmanager
    def _micro_batches(self, name: str) -> Iterator[None]:
        sink = queryable.reducing(
            STATE,
            key="sensor",
            reducers={"number": "max"},
            key_groups=self._key_groups,
            config=self._config(name),
        )
        rows = self._rows(name).select("sensor", "number")
        location = str(self._running.directory / f"checkpoint-{name}")
        query = rows.writeStream.option("checkpointLocation", location).foreachBatch(sink).start()
        try:
            yield
        finally:
            query.stop()

    def flink(self, name: str) -> Side:
        """Flink's queryable state, whose job reads the topic by Flink's own connector."""
        topic = f"readings-{name}"
        settings = Settings(
            buffer_timeout_ms=_FLINK_TIMEOUTS_MS[name],
            bootstrap_servers=self._running.bootstrap_servers,
            topic=topic,
        )
        server = self._stack.enter_context(flink(SENSORS, settings))
        return Side(
            name, topic, lambda until, seconds: server.sightings(until, seconds, self._pause_ms), {name: server.pid}
        )

    def answers(self, name: str) -> Reader:
        """Of the state of that side, through the proxy."""
        return self._reader(name, "answers", self._running.proxy, f"realtime-{name}/{STATE}")

    def _reader(self, name: str, of: str, address: str, path: str = "") -> Reader:
        def start(until: int, seconds: int) -> Child:
            command = [sys.executable, "-m", "benchmarks.realtime.readers", of, address, path or f"readings-{name}"]
            command += ["--until", str(until), "--seconds", str(seconds), "--pause-ms", str(self._pause_ms)]
            return Child(f"the reader of {name}", command, self._running.directory / f"reader-{name}.log", os.environ)

        return start

    def _config(self, name: str) -> JobConfig:
        return JobConfig(f"realtime-{name}", self._running.servers, self._running.bootstrap_servers)

    def _rows(self, name: str) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._running.bootstrap_servers,
            "subscribe": f"readings-{name}",
            "startingOffsets": "earliest",
        }
        records = self._session().readStream.format("kafka").options(**options).load()
        reading = "from_json(string(value), 'sensor string, number bigint') AS reading"
        return records.selectExpr("partition", "offset", reading).selectExpr(
            "partition", "offset", "reading.sensor AS sensor", "reading.number AS number"
        )

    def _session(self) -> SparkSession:
        if self._spark is None:
            jars = fetch(JarSet.SPARK_KAFKA, default_cache_dir(os.environ))
            settings = local_settings(jars, self._running.directory / "spark", cores=_CORES, partitions=2)
            self._spark = start_session("realtime", settings | {"spark.log.level": "ERROR"})
            self._stack.callback(self._spark.stop)
        return self._spark


SIDES: dict[str, Callable[[Sides, str], Side]] = {
    "bare": Sides.bare,
    "feed": Sides.feed,
    "spark": Sides.real_time,
    **dict.fromkeys(_FLINK_TIMEOUTS_MS, Sides.flink),
    "batch": Sides.batches,
}


@contextlib.contextmanager
def feeding(running: Cluster, path: str, topic: str, *options: str) -> Iterator[Child]:
    """`keyhole feed` of a topic into the state application/state."""
    command = [sys.executable, "-m", "keyhole.cli.main", "feed", path, "--topic", topic, "--key", "sensor"]
    command += [*options, "--bootstrap-servers", running.bootstrap_servers]
    command += ["--servers", ",".join(running.servers)]
    log = running.directory / f"feed-{path.replace('/', '-')}.log"
    child = Child("keyhole feed", command, Path(log), os.environ)
    try:
        yield child
    finally:
        child.terminate()

"""The job golden_signals beside what is done without Keyhole: the same aggregation put in Redis. The same records, the
same batches, the same Spark; the sides in turn, in one run.

    uv run python -m benchmarks.golden_signals [--rows 40000] [--batches 4] [--services 400] [--turns 2]

- `plain`: Spark reads and parses the records, and nobody takes them (`noop`);
- `aggregated`: they are aggregated, batch by batch, and what comes out is stored nowhere;
- `keyhole`: the job's own sink: a state server, and Kafka for its changelog;
- `redis`: accumulators and results in Redis (benchmarks/redis_signals.py), which logs its writes (`everysec`).

An update is a record that was taken in. Every answer of both is compared with the other's, and with a recount of the
records in plain Python. One line of JSON per side; the last one has the ratios, and what 71 million updates a minute
would take (docs/benchmarks.md says what that assumes). Needs redis-server on PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import SparkSession

from benchmarks.batches import PARTITIONS, WARM_BATCHES, ForeachBatch, plain, spread, stream, timed, write_records
from benchmarks.cluster import Cluster, cluster
from benchmarks.processes import SPARK, Processes, Usage
from benchmarks.redis_server import redis_server
from benchmarks.redis_signals import ServiceMinute, aggregated_only, get, name, put_in_redis
from jobs.golden_signals import source
from jobs.golden_signals.__main__ import state
from jobs.golden_signals.pipeline import KEPT_FOR, STATE, measurements
from jobs.golden_signals.recount import Measured, recount
from keyhole import AsyncClient, Client
from keyhole.config import JobConfig
from keyhole.errors import MachineError
from keyhole.spark.session import local_settings, start_session

# Each side, and whose processor time and memory are its own, beside Spark's: the others idle meanwhile.
SIDES = {
    "plain": (),
    "aggregated": (),
    "keyhole": ("server-0", "kafka", "proxy"),
    "redis": ("redis",),
}
FILES_PER_BATCH = 2
# Its figures don't count: Spark's JVM compiles for a minute.
WARM_TURN = -1
BEGIN_MS = 1_795_219_200_000
UPDATES_PER_MINUTE = 71_000_000
# No machine is planned full.
BUSY = 0.7
CORES = 2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Measurements:
    """Of one side. `cpu`: seconds per process and turn."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)
    last: Usage | None = None
    bytes_per_key: float = 0.0
    read_us: dict[str, int] = field(default_factory=dict)


def main() -> int:
    """Returns 1 where an answer is wrong, or something is missing on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000, help="records per batch")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--services", type=int, default=400)
    parser.add_argument("--batch-seconds", type=float, default=10.0, help="of the log's time, in a batch")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--reads", type=int, default=3_000)
    options = parser.parse_args()
    try:
        return run(options)
    except MachineError as error:
        print(error.message, file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    """Measures each side in turns, and prints a line of JSON for each. Returns the exit code."""
    batches = WARM_BATCHES + options.batches
    with (
        tempfile.TemporaryDirectory(prefix="keyhole-golden-") as directory,
        redis_server(Path(directory) / "redis") as (port, redis_pid),
        cluster() as running,
    ):
        records = list(itertools.islice(log(options), batches))
        folder = Path(directory) / "records"
        write_records(folder, records, FILES_PER_BATCH)
        expected = recount(itertools.chain.from_iterable(records))
        settings = local_settings([], Path(directory) / "spark", cores=CORES, partitions=PARTITIONS, quick=False)
        spark = start_session("golden-signals", settings | {"spark.log.level": "ERROR"})
        bench = Bench(spark, folder, batches, running, port, Processes(running.pids | {"redis": redis_pid}), expected)
        for side in SIDES:
            bench.take(side, WARM_TURN)
        bench.of = {side: Measurements() for side in SIDES}
        for turn in range(options.turns):
            # There and back, so that none is always the one that finds Spark warmed up.
            for side in list(SIDES) if turn % 2 == 0 else reversed(SIDES):
                bench.take(side, turn)
        wrong = bench.check(options.turns - 1)
        bench.read(options.turns - 1, options.reads)
        spark.stop()
    updates = sum(map(len, records[WARM_BATCHES:]))
    lines = {side: figures(bench.of[side], (SPARK, *own), updates, len(expected)) for side, own in SIDES.items()}
    for side, line in lines.items():
        print(json.dumps({"benchmark": "golden_signals", "side": side} | line))
    per_key = sum(map(len, records)) / len(expected)
    print(json.dumps({"benchmark": "golden_signals", "keys": len(expected), "wrong": wrong} | sizing(lines, per_key)))
    return 1 if wrong else 0


def log(options: argparse.Namespace) -> Iterator[list[bytes]]:
    """The source's request log in batches, with its services many times over, and each one's load every second."""
    copies = max(1, options.services // len(source.SERVICES))
    draw = random.Random(1)
    requests = source.requests(1, BEGIN_MS, source.Shape(per_second=options.rows / options.batch_seconds))
    loaded_ms = BEGIN_MS
    while True:
        batch: list[bytes] = []
        while len(batch) < options.rows:
            request = next(requests)
            batch.append(source.record(request._replace(service=f"{request.service}-{draw.randrange(copies)}")))
            if request.time_ms >= loaded_ms + 1000:
                loaded_ms += 1000
                load = source.Load(draw.randrange(1001), draw.randrange(1001))
                services = [of._replace(name=f"{of.name}-{copy}") for of in source.SERVICES for copy in range(copies)]
                batch += source.load_records(load, loaded_ms, services)
        yield batch


@dataclass
class Bench:
    """Both stores, one Spark, and the files."""

    spark: SparkSession
    folder: Path
    batches: int
    running: Cluster
    port: int
    processes: Processes
    expected: Mapping[ServiceMinute, Measured]
    of: dict[str, Measurements] = field(default_factory=lambda: {side: Measurements() for side in SIDES})

    def take(self, side: str, turn: int) -> None:
        """One turn of a side, from an empty state."""
        looks: list[Usage] = []
        of = self.of[side]
        of.seconds += timed(
            measurements(stream(self.spark, self.folder, files_per_batch=FILES_PER_BATCH)),
            self.sink(side, turn),
            batches=self.batches,
            name=f"{STATE}-{side}",
            checkpoint=self.folder.parent / "checkpoints" / f"{side}-{turn}",
            each=lambda: looks.append(self.processes.usage()),
        )
        of.cpu.append(looks[-1].since(looks[0]))
        of.last = looks[-1]

    def sink(self, side: str, turn: int) -> ForeachBatch:
        """For foreachBatch. Each turn has an application, or a prefix, of its own."""
        if side == "keyhole":
            return state(self._config(turn), lambda epoch: None)
        if side == "redis":
            return put_in_redis(self.port, prefix(turn))
        return {"plain": plain, "aggregated": aggregated_only}[side]

    def check(self, turn: int) -> int:
        """How many keys have a wrong answer on either side, or another one on each."""
        wrong = 0
        application = self._config(turn).application
        with Client(self.running.proxy) as client, redis.Redis(port=self.port) as connection:
            keys = list(self.expected)
            answers = client.get_many(application, STATE, [typed(key) for key in keys])
            for key, answer in zip(keys, answers, strict=True):
                ours = answer.value.asdict() if answer.found else None
                theirs = get(connection, prefix(turn), key)
                wrong += ours != theirs or ours is None or bool(self.expected[key].wrong(ours))
            holdings = [held for server in client.status() for held in server.holdings]
            (held,) = [held for held in holdings if held.descriptor.application == application]
            assert held.entries == len(keys)
            self.of["keyhole"].bytes_per_key = held.bytes / held.entries
            sizes = connection.pipeline(transaction=False)
            for key in keys:
                sizes.memory_usage(name(prefix(turn), key), samples=0)
            self.of["redis"].bytes_per_key = statistics.mean(sizes.execute())
        return wrong

    def read(self, turn: int, reads: int) -> None:
        """Single lookups, one at a time: of each store with the client that is the faster for that."""
        application, draw = self._config(turn).application, random.Random(2)
        keys = draw.choices(list(self.expected), k=reads)

        async def from_keyhole() -> None:
            async with AsyncClient(self.running.proxy) as client:
                one = lambda key: client.get(application, STATE, typed(key))  # noqa: E731
                self.of["keyhole"].read_us = await latencies(one, keys)

        asyncio.run(from_keyhole())
        with redis.Redis(port=self.port) as connection:

            async def one(key: ServiceMinute) -> object:
                return get(connection, prefix(turn), key)

            self.of["redis"].read_us = asyncio.run(latencies(one, keys))

    def _config(self, turn: int) -> JobConfig:
        return JobConfig(f"golden-signals-{turn + 1}", self.running.servers, self.running.bootstrap_servers)


def prefix(turn: int) -> str:
    """Of Redis's keys."""
    return f"golden-{turn}"


def typed(key: ServiceMinute) -> tuple[str, datetime]:
    """As Keyhole takes it."""
    service, minute_ms = key
    return service, _EPOCH + timedelta(milliseconds=minute_ms)


async def latencies(get_one: Callable[[ServiceMinute], Awaitable[object]], keys: list[ServiceMinute]) -> dict[str, int]:
    """In microseconds; the first tenth is not counted."""
    taken: list[float] = []
    for key in keys:
        began = time.perf_counter()
        await get_one(key)
        taken.append(time.perf_counter() - began)
    ordered = sorted(taken[len(taken) // 10 :])
    return {"p50": round(ordered[len(ordered) // 2] * 1e6), "p99": round(ordered[int(len(ordered) * 0.99)] * 1e6)}


def figures(of: Measurements, names: Sequence[str], updates: int, keys: int) -> dict[str, Any]:
    """One side's line.

    Args:
        names: Of its processes.
        updates: In a turn, without those of the first batches.
    """
    assert of.last is not None
    total = [sum(turn[process] for process in names) * 1e6 / updates for turn in of.cpu]
    line: dict[str, Any] = {
        "batch_seconds": spread(of.seconds),
        "updates_per_second": round(updates / (len(of.seconds) / len(of.cpu)) / statistics.median(of.seconds)),
        "cpu_seconds_per_million": spread(total),
        "of_which": {process: spread([turn[process] * 1e6 / updates for turn in of.cpu])[1] for process in names},
        "updates_per_cpu_second": round(1e6 / statistics.median(total)),
        "rss_mib": {process: round(of.last.rss_bytes[process] / 2**20) for process in names},
    }
    if of.bytes_per_key:
        line |= {"keys": keys, "bytes_per_key": round(of.bytes_per_key), "read_us": of.read_us}
    return line


def sizing(lines: Mapping[str, Mapping[str, Any]], updates_per_key: float) -> dict[str, Any]:
    """What comes of the two sides' lines.

    Args:
        updates_per_key: How many records a service has in a minute.
    """
    ours, theirs, none = (lines[side] for side in ("keyhole", "redis", "aggregated"))
    cpu = {side: line["cpu_seconds_per_million"][1] for side, line in lines.items()}
    per_minute = UPDATES_PER_MINUTE / updates_per_key
    kept_minutes = KEPT_FOR.total_seconds() / 60
    needs = {
        side: {
            "cores": round(UPDATES_PER_MINUTE / 60 * cpu[side] / 1e6 / BUSY),
            "state_gib_per_hour_kept": round(per_minute * 60 * line["bytes_per_key"] / 2**30, 1),
            "state_gib_kept_for_days": round(per_minute * kept_minutes * line["bytes_per_key"] / 2**30),
            "spark_gib": round(
                UPDATES_PER_MINUTE / 60 * cpu[side] / 1e6 / BUSY / CORES * line["rss_mib"][SPARK] / 1024
            ),
        }
        for side, line in (("keyhole", ours), ("redis", theirs))
    }
    return {
        "keyhole_to_redis": {
            "updates_per_second": round(ours["updates_per_second"] / theirs["updates_per_second"], 2),
            "cpu_per_update": round(cpu["keyhole"] / cpu["redis"], 2),
            "cpu_per_update_of_storing_alone": round(
                (cpu["keyhole"] - cpu["aggregated"]) / (cpu["redis"] - cpu["aggregated"]), 2
            )
            if cpu["redis"] > cpu["aggregated"]
            else None,
            "bytes_per_key": round(ours["bytes_per_key"] / theirs["bytes_per_key"], 2),
            "read_p50": round(ours["read_us"]["p50"] / theirs["read_us"]["p50"], 1),
        },
        "keyhole_to_aggregated_batch": round(ours["batch_seconds"][1] / none["batch_seconds"][1], 2),
        "updates_per_key": round(updates_per_key),
        "for_71_million_a_minute": needs,
    }


if __name__ == "__main__":
    sys.exit(main())

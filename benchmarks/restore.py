"""Records per second that one state server restores from its changelog into its store, and the memory that it takes;
and a bare confluent-kafka consumer that only counts the same records, as what there is to reach.

    uv run python -m benchmarks.restore [--records 1000000] [--key-groups 16] [--repeats 3]

Restoring and counting run in turn, each in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.ingest import summary
from benchmarks.loading import APPLICATION, descriptor
from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import SystemClock
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from keyhole.local.kafka import LocalKafka
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor
from keyhole.stores.base import StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.restore import AtOnce, restore
from tests.support.peak_memory import PeakMemory

DEADLINE = 60.0
STATE = "restored"
VALUE_BYTES = 60
EPOCH_RECORDS = 50_000


@dataclass(frozen=True)
class Measured:
    """One run: how fast, and the most memory that its process ever took.

    Attributes:
        peak_own_mib: Without the pages of files, as the store's are: they count as long as nobody else wants the room.
    """

    records_per_second: float
    peak_rss_mib: int
    peak_own_mib: int
    own_before_mib: int


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--key-groups", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    state = descriptor(STATE, options.key_groups)
    java, jars = find_java(os.environ), fetch(JarSet.KAFKA, default_cache_dir(os.environ))
    restored, bare = [], []
    with (
        tempfile.TemporaryDirectory(prefix="keyhole-benchmark-") as directory,
        LocalKafka(Path(directory, "kafka"), jars, java) as kafka,
    ):
        fill(kafka.bootstrap_servers, state, options.records)
        for _ in range(options.repeats):
            restored.append(alone(restored_by_a_server, kafka.bootstrap_servers, state, options.records))
            bare.append(alone(counted_by_a_consumer, kafka.bootstrap_servers, state, options.records))
    print(
        json.dumps(
            {
                "benchmark": "restore",
                "records": options.records,
                "key_groups": options.key_groups,
                "restored_records_per_second": summary([run.records_per_second for run in restored]),
                "bare_consumer_records_per_second": summary([run.records_per_second for run in bare]),
                "ratio_to_bare_consumer": round(
                    statistics.median(run.records_per_second for run in restored)
                    / statistics.median(run.records_per_second for run in bare),
                    2,
                ),
                "restoring_peak_rss_mib": max(run.peak_rss_mib for run in restored),
                "restoring_peak_own_mib": max(run.peak_own_mib for run in restored),
                "own_before_mib": max(run.own_before_mib for run in restored),
                "bare_peak_rss_mib": max(run.peak_rss_mib for run in bare),
            }
        )
    )


def fill(bootstrap_servers: str, state: StateDescriptor, records: int) -> None:
    """Distinct keys in random order, in epochs."""
    changelog = KafkaChangelog(bootstrap_servers, APPLICATION)
    changelog.admin().ensure(state, DEADLINE)
    writer = changelog.writer("benchmark")
    writer.open(DEADLINE)
    for epoch, count in enumerate(epoch_sizes(records), 1):
        writer.commit(list(epoch_of(state.key_groups, epoch, count)), DEADLINE)
    writer.close()
    changelog.admin().fence("benchmark", DEADLINE)  # readers see it all then


def epoch_sizes(records: int) -> list[int]:
    whole, rest = divmod(records, EPOCH_RECORDS)
    return [EPOCH_RECORDS] * whole + [rest] * (rest > 0)


def epoch_of(key_groups: int, epoch: int, records: int) -> Iterator[PartitionChanges]:
    random_bytes = random.Random(epoch).randbytes
    now_ms = time.time_ns() // 1_000_000
    for group in range(key_groups):
        prefix = group.to_bytes(2, "big")
        count = len(range(group, records, key_groups))
        changes = [(prefix + random_bytes(8).hex().encode() + b"\x00", bytes(VALUE_BYTES)) for _ in range(count)]
        yield PartitionChanges(Partition(STATE, group), changes, Marker(EpochStamp(epoch, 1, now_ms, 0), 0, epoch))


def alone(run: Callable[[str, StateDescriptor, int], Measured], *arguments: object) -> Measured:
    """In a process that ends with it, so that the next one's memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(run, *arguments).result()  # type: ignore[arg-type]


def restored_by_a_server(bootstrap_servers: str, state: StateDescriptor, records: int) -> Measured:
    """As a state server does that starts with an empty disk."""
    sys.setswitchinterval(0.0001)  # both as the server's
    gc.set_threshold(50_000, 20, 100)
    changelog = KafkaChangelog(bootstrap_servers, APPLICATION)
    with tempfile.TemporaryDirectory(prefix="keyhole-benchmark-") as directory:
        engine = LmdbEngine(StoreLimits(Path(directory)))
        store = engine.open(APPLICATION, STATE, "benchmark")
        hosted = StateReplica.open(state, store, Table("server", state, store, Lease(SystemClock(), 3.0)))

        def run() -> None:
            restore(
                {STATE: hosted},
                {STATE: range(state.key_groups)},
                changelog,
                SystemClock(),
                away_limit_ms=10**12,
                deadline_seconds=DEADLINE,
                stop=threading.Event(),
                at_once=AtOnce(),
            )

        measured = measure(run, records)
        assert store.size().entries == records
        engine.close()
    return measured


def counted_by_a_consumer(bootstrap_servers: str, state: StateDescriptor, records: int) -> Measured:
    """Committed records, in batches, with nothing done to them."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bare", "auto.offset.reset": "earliest"})

    def run() -> None:
        consumer.assign([TopicPartition(state.topic, group, 0) for group in range(state.key_groups)])
        all_records, read = records + len(epoch_sizes(records)) * state.key_groups, 0
        while read < all_records:
            read += len(consumer.consume(10_000, 0.02))

    measured = measure(run, records)
    consumer.close()
    return measured


def measure(run: Callable[[], None], records: int) -> Measured:
    """Speed and memory. Linux only."""
    with PeakMemory(os.getpid()) as memory:
        began = time.perf_counter()
        run()
        seconds = time.perf_counter() - began
    peak_rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return Measured(records / seconds, peak_rss_mib, max(memory.before, memory.bytes) >> 20, memory.before >> 20)


if __name__ == "__main__":
    main()

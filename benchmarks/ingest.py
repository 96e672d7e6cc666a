"""Rows per second that one state server stages and commits, Kafka included; and a bare Kafka transaction of the same
records in the same run, as what there is to reach.

    uv run python -m benchmarks.ingest [--rows 50000] [--epochs 12]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster import cluster
from benchmarks.loading import Loader, descriptor, rows


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000, help="rows per epoch")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--key-groups", type=int, default=8)
    options = parser.parse_args()
    state = descriptor("ingest", options.key_groups)
    sensors = [f"sensor-{number}" for number in range(options.rows)]
    batches = [rows(state, sensors, epoch) for epoch in range(1, 4)]
    with cluster() as running:
        with Loader(running.bootstrap_servers, running.servers, state) as loader:
            loader.epoch(batches[0])  # the run's start and the first write of every key
            keyhole = measure(loader.epoch, batches, options.epochs)
        bare = measure(bare_producer(running.bootstrap_servers, options.key_groups), batches, options.epochs)
    per_second = [options.rows / seconds for seconds in keyhole]
    bare_per_second = [options.rows / seconds for seconds in bare]
    print(
        json.dumps(
            {
                "benchmark": "ingest",
                "rows_per_epoch": options.rows,
                "key_groups": options.key_groups,
                "epochs": options.epochs,
                "rows_per_second": summary(per_second),
                "bare_kafka_rows_per_second": summary(bare_per_second),
                "ratio_to_bare_kafka": round(statistics.median(per_second) / statistics.median(bare_per_second), 2),
            }
        )
    )


def measure(run: Callable[[pa.RecordBatch], None], batches: Sequence[pa.RecordBatch], epochs: int) -> list[float]:
    """Seconds per epoch."""
    seconds = []
    for epoch in range(epochs):
        began = time.perf_counter()
        run(batches[epoch % len(batches)])
        seconds.append(time.perf_counter() - began)
    return seconds


def summary(values: Sequence[float]) -> dict[str, int]:
    """Minimum, median, maximum."""
    return {"min": round(min(values)), "median": round(statistics.median(values)), "max": round(max(values))}


def bare_producer(bootstrap_servers: str, partitions: int) -> Callable[[pa.RecordBatch], None]:
    """What an epoch costs without Keyhole: a transaction of the same records, from the same Arrow batch."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # its futures end with it
    admin.create_topics([NewTopic("bare", partitions, 1)])["bare"].result()
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": "bare", "linger.ms": 5, "compression.type": "lz4"}
    )
    producer.init_transactions()

    def transaction(batch: pa.RecordBatch) -> None:
        keys, values = (column.to_pylist() for column in batch.columns)
        producer.begin_transaction()
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    producer.produce("bare", value, key, partition=key[1])
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.commit_transaction()

    return transaction


if __name__ == "__main__":
    main()

"""Processor time of the one-node Kafka, with the optimising compiler and without: its start, and transactions.

uv run python -m benchmarks.broker [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import uuid
from pathlib import Path

from benchmarks.loading import APPLICATION, descriptor
from benchmarks.processes import Processes
from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import Java, find_java
from keyhole.local.kafka import LocalKafka
from keyhole.model.epoch import EpochStamp

KEY_GROUPS, ROWS, TRANSACTIONS, COLUMNS = 16, 30, 120, 8
DEADLINE_SECONDS = 120.0
LEFT_OUT = "-XX:TieredStopAtLevel=1"


def main() -> None:
    """Prints a line of JSON per turn and compiler."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    java, jars = find_java(os.environ), fetch(JarSet.KAFKA, default_cache_dir(os.environ))
    for turn in range(turns):
        for optimised in (False, True) if turn % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory() as directory:
                chosen = optimising(java, Path(directory)) if optimised else java
                print(json.dumps({"optimised": optimised, **measure(Path(directory), jars, chosen)}), flush=True)


def optimising(java: Java, directory: Path) -> Java:
    """The same Java, which is not told to leave the compiler out."""
    script = directory / "java"
    script.write_text(
        f'#!/bin/bash\nfor each; do [ "$each" = {LEFT_OUT} ] || left+=("$each"); done\n'
        f'exec {java.executable} "${{left[@]}}"\n'
    )
    script.chmod(0o755)
    return Java(script, java.version)


def measure(directory: Path, jars: list[Path], java: Java) -> dict[str, object]:
    """Processor seconds of a start, and milliseconds per transaction, of each of the COLUMNS times TRANSACTIONS."""
    with LocalKafka(directory / "kafka", jars, java) as broker:
        assert broker.pid is not None
        processes = Processes({"kafka": broker.pid})
        start = processes.usage()
        changelog = KafkaChangelog(broker.bootstrap_servers, APPLICATION)
        changelog.admin().ensure(descriptor("a", KEY_GROUPS), DEADLINE_SECONDS)
        writer = changelog.writer(f"grant-{uuid.uuid4().hex}")
        writer.open(DEADLINE_SECONDS)
        columns, epoch = [], 0
        for _ in range(COLUMNS):
            before = processes.usage()
            for _ in range(TRANSACTIONS):
                epoch += 1
                writer.commit([changes(group, epoch) for group in range(KEY_GROUPS)], DEADLINE_SECONDS)
            columns.append(round(processes.usage().since(before)["kafka"] * 1000 / TRANSACTIONS, 1))
        writer.close()
    return {"start_s": round(start.cpu_seconds["kafka"], 2), "transaction_ms": columns}


def changes(group: int, epoch: int) -> PartitionChanges:
    """ROWS keys of a key group, each with a row of 40 bytes."""
    rows = [(group.to_bytes(2, "big") + b"%d\x00" % number, b"%040d" % epoch) for number in range(ROWS)]
    return PartitionChanges(Partition("a", group), rows, Marker(EpochStamp(epoch, 1, 1_000 + epoch, 0), 0, 0))


if __name__ == "__main__":
    main()

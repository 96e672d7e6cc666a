"""Counts a source topic again, with a plain consumer and a dict, and compares what readers are told.

Imports nothing of Keyhole but the client, so that a mistake of Keyhole's can't hide here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from keyhole import Client

Recount = dict[str, tuple[float, int]]
"""By sensor: highest temperature, number of readings."""


@dataclass(frozen=True)
class Verdict:
    """What the comparison found. `events`: records counted."""

    epoch: int
    keys: int
    agreed: int
    events: int

    @property
    def mismatches(self) -> int:
        return self.keys - self.agreed


def committed_offsets(checkpoint: Path, batch: int) -> dict[int, int]:
    """Where a batch ends in each partition of the (only) source topic: Spark's own record of it."""
    *_, offsets = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    (partitions,) = json.loads(offsets).values()
    return {int(partition): end for partition, end in partitions.items()}


def recount(bootstrap_servers: str, topic: str, ends: Mapping[int, int]) -> tuple[Recount, int]:
    """All readings before the ends, by a formula of its own: the job's README says the same."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "verify", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    waiting = {partition for partition, end in ends.items() if end > 0}
    counted: Recount = {}
    events = 0
    try:
        while waiting:
            for message in consumer.consume(10_000, 1.0):
                partition, offset = message.partition(), message.offset()
                if message.error() is not None or partition not in waiting or offset is None:
                    continue
                if offset < ends[partition]:
                    events += 1
                    _count(counted, message.value())
                if offset + 1 >= ends[partition]:
                    waiting.discard(partition)
    finally:
        consumer.close()
    return counted, events


def _count(counted: Recount, value: Any) -> None:
    try:
        reading = json.loads(value)
        sensor, temperature = reading["sensor"], float(reading["temperature"])
    except (ValueError, TypeError, KeyError):
        return
    highest, number = counted.get(sensor, (-math.inf, 0))
    counted[sensor] = max(highest, temperature), number + 1


def verify(
    proxy: str,
    application: str,
    state: str,
    bootstrap_servers: str,
    topic: str,
    checkpoint: Path,
    say: Callable[[str], None],
) -> Verdict:
    """Compares every key. The source must have stopped, and the job have caught up: the epoch must stand still.

    The first epoch of a fresh checkpoint is 1, of Spark's batch 0.
    """
    with Client(proxy, timeout=10) as client:
        epoch = client.get(application, state, "any").epoch
        counted, events = recount(bootstrap_servers, topic, committed_offsets(checkpoint, epoch - 1))
        say(f"counted {events:,} events of {len(counted):,} keys up to epoch {epoch}; comparing")
        answers = client.get_many(application, state, list(counted))
    agreed = sum(
        answer.found and answer.epoch == epoch and (answer.value.temperature, answer.value.readings) == expected
        for answer, expected in zip(answers, counted.values(), strict=True)
    )
    return Verdict(epoch, len(counted), agreed, events)

"""Counts a source topic again, with a plain consumer and a dict, and compares what readers are told.

Imports nothing of Keyhole but the client, so that a mistake of Keyhole's can't hide here.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Message, TopicPartition

from keyhole import Client

Reading = tuple[str, float]
"""Sensor, degrees Celsius."""

Recount = dict[str, tuple[float, int]]
"""By sensor: highest temperature, number of readings."""

_MAX_SENSOR_BYTES = 128
_ASK_SECONDS = 10
_STANDSTILL_SECONDS = 20.0
_BATCH = 10_000


@dataclass(frozen=True)
class Verdict:
    """What the comparison found.

    Attributes:
        keys: That were counted.
        agreed: Of these, how many were answered with exactly what was counted.
        surplus: How many keys more the state holds than were counted.
        events: Records counted.
    """

    epoch: int
    keys: int
    agreed: int
    surplus: int
    events: int

    @property
    def mismatches(self) -> int:
        """Keys that differ, are missing, or should not be there."""
        return self.keys - self.agreed + self.surplus

    @property
    def passed(self) -> bool:
        """Nothing counted proves nothing."""
        return self.keys > 0 and self.mismatches == 0


def reading_of(value: bytes | str | None) -> Reading | None:
    """The reading in a record, by the job's README; None where it is none."""
    try:
        record = json.loads(value or b"")
        sensor, temperature = record["sensor"], record["temperature"]
        size = len(sensor.encode())
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        return None
    if not math.isfinite(temperature) or not 1 <= size <= _MAX_SENSOR_BYTES:
        return None
    return sensor, float(temperature)


def topic_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """By partition, the offset after its last record."""
    consumer = _consumer(bootstrap_servers)
    try:
        partitions = consumer.list_topics(topic, _ASK_SECONDS).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), _ASK_SECONDS)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def records_before(bootstrap_servers: str, topic: str, ends: Mapping[int, int]) -> Iterator[Message]:
    """All records before the ends, of the partitions that are named there; none twice.

    Raises:
        TimeoutError: Kafka gives no more of them.
    """
    waiting = {partition for partition, end in ends.items() if end > 0}
    consumer = _consumer(bootstrap_servers)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted(waiting)])
        until = time.monotonic() + _STANDSTILL_SECONDS
        while waiting:
            messages = [message for message in consumer.consume(_BATCH, 1.0) if message.error() is None]
            if messages:
                until = time.monotonic() + _STANDSTILL_SECONDS
            elif time.monotonic() > until:
                raise TimeoutError(f"Kafka has given no record of topic {topic} for {_STANDSTILL_SECONDS:.0f} s")
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset < ends[partition]:
                    yield message
                if offset + 1 >= ends[partition]:
                    waiting.discard(partition)
    finally:
        consumer.close()


def committed_offsets(checkpoint: Path, batch: int) -> dict[int, int]:
    """Where a batch ends in each partition of the (only) source topic: Spark's own record of it."""
    *_, offsets = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    (partitions,) = json.loads(offsets).values()
    return {int(partition): end for partition, end in partitions.items()}


def recount(bootstrap_servers: str, topic: str, ends: Mapping[int, int]) -> tuple[Recount, int]:
    """The state's formula once more, over all records before the ends; and how many records there were."""
    counted: Recount = {}
    events = 0
    for message in records_before(bootstrap_servers, topic, ends):
        events += 1
        reading = reading_of(message.value())
        if reading is not None:
            sensor, temperature = reading
            highest, number = counted.get(sensor, (-math.inf, 0))
            counted[sensor] = max(highest, temperature), number + 1
    return counted, events


def compare(client: Client, application: str, state: str, epoch: int, counted: Recount, events: int) -> Verdict:
    """Asks for every key, at exactly this epoch: no newer one may come meanwhile."""
    answers = client.get_many(application, state, list(counted), min_epoch=epoch)
    agreed = sum(
        answer.found and answer.epoch == epoch and (answer.value.temperature, answer.value.readings) == expected
        for answer, expected in zip(answers, counted.values(), strict=True)
    )
    surplus = max(0, entries(client, application, state) - sum(answer.found for answer in answers))
    return Verdict(epoch, len(counted), agreed, surplus, events)


def entries(client: Client, application: str, state: str) -> int:
    """How many keys the servers hold."""
    return sum(
        holding.entries
        for server in client.status()
        for holding in server.holdings
        if (holding.descriptor.application, holding.descriptor.state) == (application, state)
    )


def _consumer(bootstrap_servers: str) -> Consumer:
    # Not a member of any group: nothing is committed, and nobody waits for it.
    return Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "recount", "enable.auto.commit": False})

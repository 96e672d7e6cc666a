"""Consumers of committed records: their settings, and what they bring, by partition.

A call per record is what reading costs in Python, so records are kept in batches from here to the store: measured, half
the time of handling each by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from keyhole.changelog.kafka.clients import Settings, common_settings
from keyhole.changelog.records import Records

TopicPart = tuple[str, int]
"""Topic and partition number."""


class RecordRun(NamedTuple):
    """Records of one partition that came together, and what came after them: its end, an error, or neither.

    Attributes:
        end: The offset of the next record to come: there are no more.
        error: For those who wait; the consumer tries again by itself.
    """

    part: TopicPart
    records: Sequence[Message]
    end: int | None = None
    error: KafkaError | None = None


def runs(messages: Sequence[Message]) -> Iterator[RecordRun]:
    """What `consume` has brought, by partition; in order within each."""
    if not any(map(Message.error, messages)) and len(set(map(Message.partition, messages))) == 1:
        # What a restore mostly gets. No message is looked at by itself.
        topics = set(map(Message.topic, messages))
        if len(topics) == 1:
            yield RecordRun((topics.pop(), messages[0].partition()), messages)  # type: ignore[arg-type]  # as below
            return
    by_part: defaultdict[TopicPart, list[Message]] = defaultdict(list)
    for message in messages:
        by_part[message.topic(), message.partition()].append(message)  # type: ignore[index]  # both are known
    for part, of_part in by_part.items():
        start = 0
        # Never compared with None by ==: an error of librdkafka's answers that by raising something somewhere later.
        for at, error in [(at, error) for at, error in enumerate(map(Message.error, of_part)) if error is not None]:
            ended = error.code() == KafkaError._PARTITION_EOF
            yield RecordRun(part, of_part[start:at], of_part[at].offset() if ended else None, None if ended else error)
            start = at + 1
        if start < len(of_part):
            yield RecordRun(part, of_part[start:])


def as_records(messages: Sequence[Message]) -> Records:
    """Messages of one partition as an EpochAssembler takes them, values as bytes."""
    keys, values = list(map(Message.key, messages)), list(map(Message.value, messages))
    return Records(keys, values, lambda index: offset_of(messages[index]))


def offset_of(message: Message) -> int:
    """The message's offset in its partition."""
    offset = message.offset()
    assert offset is not None
    return offset


def consumer_settings(bootstrap_servers: str) -> Settings:
    """The settings of a consumer of committed records that belongs to no group."""
    return {
        **common_settings(bootstrap_servers),
        # librdkafka wants one; nothing is ever stored under it.
        "group.id": "keyhole",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        # A position that compaction or retention has passed continues at the log's start.
        "auto.offset.reset": "earliest",
        # Says that the end is reached where the last offsets are no records.
        "enable.partition.eof": True,
        # The broker answers "nothing more" after this long (500 by default), and every restore waits for that.
        "fetch.wait.max.ms": 10,
        # With a full queue, look again after this long (1000 by default).
        "fetch.queue.backoff.ms": 10,
        # What is fetched ahead: each message takes some 400 bytes more than its length, so few are many bytes.
        "queued.min.messages": 10_000,
        "queued.max.messages.kbytes": 16 << 10,
        # Per partition and request, as compressed: what it unpacks to is held until its last record was taken.
        "fetch.message.max.bytes": 1 << 20,
    }


def following_settings(bootstrap_servers: str) -> Settings:
    """The settings of a consumer that stays at the end, and waits there for more."""
    return {
        **consumer_settings(bootstrap_servers),
        # New records come at once. Only "nothing more" takes this long; asking more often would keep brokers busy, and
        # followers too.
        "fetch.wait.max.ms": 100,
    }

"""The topic of a feeder's dead letters, in the form that jobs' have (keyhole.spark.dead_letters)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError

from keyhole.changelog.kafka.clients import ONE_REQUEST
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.feed.feeder import Done
from keyhole.feed.kafka.sending import TopicSender
from keyhole.feed.rows import SourceRecord

_MAKE_SECONDS = 30.0
_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        **ONE_REQUEST,
        "message.timeout.ms": 0,
        "message.max.bytes": 100_000_000,  # the broker's own limit comes first
        # The broker refuses whole batches: what is too large must be alone in its own.
        "batch.size": 16_384,
    }
)


class KafkaDeadLetterTopic:
    """DeadLetterTopic (keyhole.feed.feeder). One thread; close it.

    Makes the topic `<source topic>.dead-letter`, of one partition, where there is none. Headers say where a record was
    (`topic`, `partition`, `offset`), and its `reason`. Key and value are as they were; of a record that is too large
    for the topic they are left out, and the header `omitted` says so.
    """

    def __init__(self, bootstrap_servers: str, source: str) -> None:
        topic = f"{source}.dead-letter"
        make_topics(bootstrap_servers, {topic: 1}, _MAKE_SECONDS)
        self._source = source
        self._sender = TopicSender(bootstrap_servers, topic, _SETTINGS)

    def send(self, record: SourceRecord, reason: str, done: Done) -> None:
        headers = {
            "topic": self._source,
            "partition": str(record.partition),
            "offset": str(record.offset),
            "reason": reason,
        }

        def without_content(error: KafkaError) -> bool:
            if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                return False
            omitted = headers | {"omitted": "key and value are too large"}
            self._sender.send(None, lambda _: done(), headers=omitted)
            return True

        self._sender.send(record.value, lambda _: done(), key=record.key, headers=headers, refused=without_content)

    def poll(self, seconds: float) -> None:
        self._sender.poll(seconds)

    def close(self) -> None:
        """Gives up what is under way."""
        self._sender.close()

"""A topic of dead letters on Kafka, in the form that jobs' have (keyhole.spark.dead_letters)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError

from keyhole.changelog.kafka.clients import ONE_REQUEST, Deadline
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.changelog.kafka.sending import TopicSender
from keyhole.changelog.settings import dead_letter_topic

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


class KafkaLetters:
    """Dead letters of one topic. One thread; close it.

    Makes the topic `<source topic>.dead-letter`, of one partition, where there is none. Headers say where a record was
    (`topic`, `partition`, `offset`), and its `reason`. Key and value are as they were; of a record that is too large
    for the topic they are left out, and the header `omitted` says so.

    Raises:
        KafkaUnreachable, InvalidConfiguration: The topic can't be made.
    """

    def __init__(self, bootstrap_servers: str, source: str) -> None:
        topic = dead_letter_topic(source)
        make_topics(bootstrap_servers, {topic: 1}, _MAKE_SECONDS)
        self._source = source
        self._sender = TopicSender(bootstrap_servers, topic, _SETTINGS)

    def put(
        self,
        partition: int,
        offset: int,
        record: tuple[bytes | None, bytes | None],
        reason: str,
        done: Callable[[], None],
        deadline: Deadline | None = None,
    ) -> None:
        """On its way, with the reason; `done` is called within `poll` once it is there.

        Args:
            record: Its key and its value.
            deadline: See TopicSender.send.
        """
        key, value = record
        headers = {"topic": self._source, "partition": str(partition), "offset": str(offset), "reason": reason}

        def without_content(error: KafkaError) -> bool:
            if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                return False
            omitted = headers | {"omitted": "key and value are too large"}
            self._sender.send(None, lambda _: done(), headers=omitted, deadline=deadline)
            return True

        self._sender.send(value, lambda _: done(), key=key, headers=headers, refused=without_content, deadline=deadline)

    def poll(self, seconds: float) -> None:
        """Calls what is done; waits for that at most so long. Raises KeyholeError: one was not taken."""
        self._sender.poll(seconds)

    def close(self) -> None:
        """Gives up what is under way."""
        self._sender.close()

"""Asks Kafka where partitions begin and end, many in one question.

By a consumer, not by an admin client: where a request of that (`list_offsets`) times out and the client is closed,
librdkafka frees memory twice, which ends the process. So it is in confluent-kafka 2.16: a loop of such requests with up
to 30 ms ended so within a minute, the same loop with a consumer never.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ClusterMetadata

from keyhole.changelog.kafka.consumer import TopicPart, consumer_settings

UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""The codes of errors that say that there is no such topic, or partition."""


class AskedOffsets(NamedTuple):
    """Offsets by partition, and why others have none."""

    found: dict[TopicPart, int]
    errors: dict[TopicPart, KafkaError]


class OffsetsClient:
    """One client. One thread at a time; blocks. Close it.

    Args:
        committed: The end is that of committed records: transactions that are open, and what comes after their first
            record, lie behind it.
    """

    def __init__(self, bootstrap_servers: str, *, committed: bool) -> None:
        isolation = "read_committed" if committed else "read_uncommitted"
        self._consumer = Consumer({**consumer_settings(bootstrap_servers), "isolation.level": isolation})

    def ends(self, parts: Iterable[TopicPart], timeout_seconds: float) -> AskedOffsets:
        """The offset after the last record of each.

        Raises:
            KafkaException: No answer in time, or Kafka refuses the client.
        """
        return self._asked(parts, OFFSET_END, timeout_seconds)

    def starts(self, parts: Iterable[TopicPart], timeout_seconds: float) -> AskedOffsets:
        """The first offset of each that is still there. Raises as `ends`."""
        return self._asked(parts, OFFSET_BEGINNING, timeout_seconds)

    def topics(self, timeout_seconds: float) -> ClusterMetadata:
        """What topics there are. Raises as `ends`."""
        topics: ClusterMetadata = self._consumer.list_topics(timeout=timeout_seconds)
        return topics

    def close(self) -> None:
        """Ends it; in the thread that has used it."""
        self._consumer.close()

    def _asked(self, parts: Iterable[TopicPart], at: int, timeout_seconds: float) -> AskedOffsets:
        # A place in the log stands for a time here, as in Kafka's protocol.
        wanted = [TopicPartition(topic, number, at) for topic, number in parts]
        if not wanted:
            return AskedOffsets({}, {})
        try:
            answered = self._consumer.offsets_for_times(wanted, timeout=timeout_seconds)
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() in UNKNOWN:  # of all of them
                return AskedOffsets({}, {(part.topic, part.partition): error for part in wanted})
            raise
        asked = AskedOffsets({}, {})
        for part in answered:
            place = part.topic, part.partition
            if part.error is not None:
                asked.errors[place] = part.error
            elif part.offset < 0:
                asked.errors[place] = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            else:
                asked.found[place] = part.offset
        return asked

"""A topic of any producer's, read partition by partition without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import TopicDescription

from keyhole.changelog.kafka.absences import IsGone, gone_at_once, unheard_of
from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of, is_unanswered, unreachable
from keyhole.changelog.kafka.consumer import following_settings, offset_of
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.errors import ChangelogRecreated
from keyhole.feed.positions import SourceDescription, deleted_unread
from keyhole.feed.rows import SourceRecord

_ASK_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_MOST_RECORDS = 5_000


class KafkaSource:
    """SourceTopic (keyhole.feed.fed_topics) on a consumer that belongs to no group. One thread; close it.

    Records of transactions are read once they are committed.

    Args:
        is_gone: Asked where a look does not find it; until then Kafka counts as unreachable.
    """

    def __init__(self, bootstrap_servers: str, topic: str, is_gone: IsGone = gone_at_once) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._is_gone = is_gone
        self._topics = Topics(bootstrap_servers)
        self._consumer = Consumer(
            {
                **following_settings(bootstrap_servers),
                # An offset that is gone is an error: no record is passed over.
                "auto.offset.reset": "error",
                "enable.partition.eof": False,
                "check.crcs": True,
            }
        )
        self._read: dict[int, int] = {}

    def describe(self) -> SourceDescription:
        found = self._described()
        asked = {self._topic: range(len(found.partitions))}
        # A client of its own: one that knows the topic asks in vain for partitions that were added since.
        with closing(TopicOffsets(self._bootstrap_servers)) as offsets:
            starts = offsets.starts(asked, _ASK_SECONDS)
        if len(starts) < len(found.partitions):
            raise unreachable(self._bootstrap_servers, f"tell where topic {self._topic} begins", "partitions lack")
        by_partition = {partition: start for (_, partition), start in starts.items()}
        return SourceDescription(self._topic, str(found.topic_id), by_partition)

    def look(self) -> tuple[str, int]:
        found = self._described()
        return str(found.topic_id), len(found.partitions)

    def _described(self) -> TopicDescription:
        found = self._topics.describe(self._topic, Deadline(_ASK_SECONDS))
        if found is None:
            if not self._is_gone(self._topic):
                raise unheard_of(self._bootstrap_servers, self._topic)
            raise ChangelogRecreated(f"topic {self._topic} does not exist (any more)", topic=self._topic)
        return found

    def read_from(self, positions: Mapping[int, int]) -> None:
        self._know(positions)
        self._consumer.incremental_assign(
            [TopicPartition(self._topic, partition, offset) for partition, offset in positions.items()]
        )
        self._read |= positions

    def _know(self, partitions: Collection[int]) -> None:
        """Waits until the consumer has heard of them; by itself it hears of new partitions after minutes."""
        deadline = Deadline(_ASK_SECONDS)
        while not deadline.passed:
            try:
                known = self._consumer.list_topics(self._topic, timeout=deadline.left).topics[self._topic].partitions
            except KafkaException as exception:
                raise as_ours(error_of(exception), self._bootstrap_servers, f"read topic {self._topic}") from exception
            if all(partition in known for partition in partitions):
                return
            time.sleep(_LOOK_SECONDS)

    def poll(self, seconds: float) -> Sequence[SourceRecord]:
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        # `consume` alone would wait until it has so many records.
        messages = [first, *self._consumer.consume(_MOST_RECORDS, 0)]
        for message in messages:
            if (error := message.error()) is not None:
                self._check(error, message)
        records = [source_record(message) for message in messages if message.error() is None]
        # Of each partition its last one counts: they come in their order.
        self._read |= {record.partition: record.offset + 1 for record in records}
        return records

    def behind(self) -> int | None:
        """How many offsets follow what was read, as far as the last answers of Kafka say; None: it has not said yet.

        Nothing is asked. Offsets without a record count too: a topic that is written by transactions is never at 0.
        """
        behind = 0
        for partition, position in self._read.items():
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
            if end < 0:
                return None
            behind += max(0, end - position)
        return behind

    def _check(self, error: KafkaError, message: Message) -> None:
        """Raises what ends a feeder; all else the consumer gets over by itself."""
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            partition, offset = message.partition(), message.offset()
            raise deleted_unread(self._topic, -1 if partition is None else partition, -1 if offset is None else offset)
        gone = error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
        if not (gone or is_unanswered(error) or error.retriable()):
            raise as_ours(error, self._bootstrap_servers, f"read topic {self._topic}")

    def close(self) -> None:
        """Ends its clients, in this thread."""
        self._consumer.close()
        self._topics.close()


def source_record(message: Message) -> SourceRecord:
    """A record as Kafka's client has it, which is no error."""
    partition, key, value = message.partition(), message.key(), message.value()
    assert partition is not None
    return SourceRecord(partition, offset_of(message), _bytes(key), _bytes(value))


def _bytes(part: str | bytes | None) -> bytes | None:
    assert not isinstance(part, str)  # no deserializer was given
    return part

"""The topic of a feeder's dead letters, in the form that jobs' have (keyhole.spark.dead_letters)."""

from __future__ import annotations

from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.dead_letter_topics import KafkaLetters
from keyhole.feed.fed_topics import Done
from keyhole.feed.rows import SourceRecord

_ROOM_SECONDS = 30.0


class KafkaDeadLetterTopic(KafkaLetters):
    """DeadLetterTopic (keyhole.feed.fed_topics). One thread; close it. See KafkaLetters."""

    def send(self, record: SourceRecord, reason: str, done: Done) -> None:
        """On its way, with the reason: see DeadLetterTopic."""
        self.put(record.partition, record.offset, (record.key, record.value), reason, done, Deadline(_ROOM_SECONDS))

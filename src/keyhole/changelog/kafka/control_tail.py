"""Follows the control topic of an application."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from keyhole.changelog.kafka.consumer import following_settings
from keyhole.changelog.kafka.slices import Slices
from keyhole.changelog.kafka.topic_watch import TopicWatch
from keyhole.changelog.settings import CONTROL, topic_name

_PARTITION = 0
_FETCHED_RECORDS = 10_000


class KafkaControlTail:
    """ControlTail on a consumer that belongs to no group.

    Changes are handed out where what has been read ends with a transaction: so what was appended together is seen
    together. Only the first time that may not be known, while a writer is in the middle of one.
    """

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._settings = following_settings(bootstrap_servers)
        self._topic = topic_name(application, CONTROL)
        self._watch = TopicWatch(bootstrap_servers)
        self._slices = Slices()
        # What was handed out in all, and what has been read since.
        self._told: dict[str, bytes] = {}
        self._read: dict[str, bytes | None] = {}
        self._begin()

    def poll(self, seconds: float) -> Mapping[str, bytes | None] | None:
        return self._slices.poll(self._take, None, seconds)

    def close(self) -> None:
        with self._slices.closing():
            self._consumer.close()
            self._watch.close()

    def _begin(self) -> None:
        self._consumer = Consumer(self._settings)
        self._consumer.assign([TopicPartition(self._topic, _PARTITION, 0)])
        self._read.clear()
        self._next_offset = 0
        # Of the log, as far as it is known.
        self._end = 0
        self._whole = False

    def _take(self, seconds: float) -> dict[str, bytes | None] | None:
        if self._watch.lost([self._topic]):
            self._begin_anew()
            return None
        first = self._consumer.poll(seconds)
        messages = [] if first is None else [first, *self._consumer.consume(_FETCHED_RECORDS, 0)]
        ended = False
        for message in messages:
            error, offset = message.error(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                continue
            assert offset is not None
            if offset < self._next_offset:
                self._begin_anew()
                return None
            ended = error is not None
            self._next_offset = offset if ended else offset + 1
            if not ended:
                self._remember(message)
        # A writer that died in a transaction hides what came after until Kafka has given it up. Whoever has only just
        # begun to follow gets what there is.
        if (ended and not self._whole) or (self._read and self._between_transactions()):
            return self._handed_out()
        return {} if self._whole else None

    def _between_transactions(self) -> bool:
        """Whether what has been read ends with a transaction's last record. False: that isn't known.

        Kafka reports the end only after waiting in vain for more, and that end is where the first transaction begins
        that is still open, which may stand among the records of another one. But of a transaction that has been read in
        part, a record is still to come, and the marker that commits it: two offsets below the log's end. Each of
        Kafka's answers has that end, so it is looked up here, not asked for.
        """
        _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, _PARTITION), cached=True)
        # A new leader may be behind at first.
        self._end = max(self._end, end)
        return self._end - 1 <= self._next_offset

    def _begin_anew(self) -> None:
        """The topic is gone, or another one: it is read from its start, and what it lacks is handed out as deleted
        then.
        """
        self._consumer.close()
        self._begin()

    def _remember(self, message: Message) -> None:
        name, value = message.key(), message.value()
        assert isinstance(name, bytes)
        assert value is None or isinstance(value, bytes)
        self._read[name.decode()] = value

    def _handed_out(self) -> dict[str, bytes | None]:
        """What was read and is new."""
        missing = {} if self._whole else dict.fromkeys(self._told)
        self._whole = True
        changes = {name: value for name, value in ({**missing, **self._read}).items() if self._told.get(name) != value}
        self._read.clear()
        for name, value in changes.items():
            if value is None:
                del self._told[name]
            else:
                self._told[name] = value
        return changes

"""Follows changelogs beyond their end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from keyhole.changelog.base import Partition, Reached, RestoredEpochs
from keyhole.changelog.clients import Deadline
from keyhole.changelog.reader import TopicPart, following_settings
from keyhole.changelog.records import EpochAssembler
from keyhole.changelog.settings import topic_name
from keyhole.changelog.topic_watch import TopicWatch
from keyhole.errors import ChangelogRecreated
from keyhole.types import Position

# A piece is handed out at each poll where there is a marker; these bound it where much has come since the last one.
_PIECE_RECORDS, _PIECE_BYTES = 20_000, 16 << 20
_FETCHED_RECORDS = 10_000
# How long a closing thread may have to wait for the one that polls.
_SLICE_SECONDS = 0.1


class KafkaTail:
    """ChangelogTail on one consumer that belongs to no group. After it has raised, it can only be closed."""

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._application = application
        self._watch = TopicWatch(bootstrap_servers)
        self._consumer = Consumer(following_settings(bootstrap_servers))
        self._followed: dict[TopicPart, _Followed] = {}
        self._lock = threading.Lock()
        self._closed = False

    def follow(self, positions: Mapping[Partition, Position]) -> None:
        wanted = {(topic_name(self._application, part.state), part.key_group): part for part in positions}
        with self._lock:
            if self._closed:
                return
            kept = {
                place: self._followed[place]
                for place, part in wanted.items()
                if place in self._followed and self._followed[place].position == positions[part]
            }
            for followed in kept.values():
                followed.ordered_anew = True
            new = {place: _Followed(part, positions[part]) for place, part in wanted.items() if place not in kept}
            dropped = [TopicPartition(*place) for place in self._followed if place not in kept]
            if dropped:
                self._consumer.incremental_unassign(dropped)
            if new:
                self._consumer.incremental_assign(
                    [TopicPartition(*place, followed.next_offset) for place, followed in new.items()]
                )
            self._followed = kept | new

    def poll(self, seconds: float) -> Sequence[RestoredEpochs | Reached]:
        deadline = Deadline(seconds)
        while not self._closed:
            with self._lock:
                items = [] if self._closed else self._take(min(_SLICE_SECONDS, deadline.left))
            if items or deadline.passed:
                return items
        return ()

    def close(self) -> None:
        self._closed = True
        with self._lock:
            self._consumer.close()

    def _take(self, seconds: float) -> list[RestoredEpochs | Reached]:
        lost = self._watch.lost(topic for topic, _ in self._followed)
        if lost:
            raise ChangelogRecreated(
                f"the changelog is gone, or was made anew: {', '.join(lost)}. Restore it from a copy, or drop "
                "the state",
                topics=", ".join(lost),
            )
        items: list[RestoredEpochs | Reached] = []
        for again in self._followed.values():
            items += again.told_again()
        first = self._consumer.poll(0 if items else seconds)
        if first is None:
            return items
        touched: dict[TopicPart, _Followed] = {}
        for message in [first, *self._consumer.consume(_FETCHED_RECORDS, 0)]:
            topic, number, offset, error = message.topic(), message.partition(), message.offset(), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                continue  # it tries again by itself
            assert topic is not None
            assert number is not None
            assert offset is not None
            followed = self._followed.get((topic, number))
            if followed is None:
                continue  # fetched before it was dropped
            if offset < followed.next_offset:
                raise _shorter(topic, number, offset, followed.next_offset)
            if error is not None:
                items += followed.end(offset)
            else:
                touched[topic, number] = followed
                items += followed.add(message, offset)
        for read in touched.values():
            items += read.cut()
        return items


class _Followed:
    """One partition: what was read of it, and what was handed out.

    Attributes:
        position: Of the last piece that was handed out.
        next_offset: No record before it is to come.
        ordered_anew: It was followed already when it was asked for again, and has not told since that it is at its end.
    """

    def __init__(self, partition: Partition, position: Position) -> None:
        self._partition = partition
        self._assembler = EpochAssembler(partition, position, _PIECE_RECORDS, _PIECE_BYTES)
        self._at_end = False
        self.position = position
        self.next_offset = position.offset
        self.ordered_anew = False

    def add(self, message: Message, offset: int) -> list[RestoredEpochs]:
        self.next_offset, self._at_end = offset + 1, False
        key, value = message.key(), message.value()
        assert key is None or isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        return self._handed_out(self._assembler.add(key, value, offset))

    def cut(self) -> list[RestoredEpochs]:
        return self._handed_out(self._assembler.cut())

    def end(self, offset: int) -> list[RestoredEpochs | Reached]:
        self.next_offset, self._at_end, self.ordered_anew = offset, True, False
        return [*self.cut(), Reached(self._partition, offset)]

    def told_again(self) -> list[Reached]:
        """Kafka tells an end once only; whoever asks for the partition again is to hear of it too."""
        if not (self.ordered_anew and self._at_end):
            return []
        self.ordered_anew = False
        return [Reached(self._partition, self.next_offset)]

    def _handed_out(self, piece: RestoredEpochs | None) -> list[RestoredEpochs]:
        if piece is None:
            return []
        self.position = piece.position
        return [piece]


def _shorter(topic: str, partition: int, offset: int, expected: int) -> ChangelogRecreated:
    return ChangelogRecreated(
        f"partition {partition} of topic {topic} goes on at offset {offset}, where {expected} was to come: the topic "
        "was made anew, or has lost its end. What was read of it is rebuilt from its start",
        topic=topic,
        partition=partition,
    )

"""Committed records out of topics: where they end, all up to there, and as epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from keyhole.changelog.base import Partition, RestoredEpochs
from keyhole.changelog.clients import Deadline, Settings, as_ours, common_settings, error_of, unreachable
from keyhole.changelog.records import EpochAssembler
from keyhole.changelog.settings import topic_name
from keyhole.errors import ChangelogRecreated
from keyhole.types import Position

# Over all partitions: what a restore holds in memory, whole epochs aside.
_BUFFERED_RECORDS, _BUFFERED_BYTES = 200_000, 128 << 20
_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 1 << 20, 16 << 20
_MIN_PIECE_RECORDS, _MAX_PIECE_RECORDS = 1_000, 20_000
_FETCHED_RECORDS = 10_000
_CONSUME_SECONDS = 0.02
_RETRY_SECONDS = 0.1
# A topic that was made a moment ago may not be known to every broker yet.
_NEW_TOPIC_SECONDS = 2.0
_REQUEST_SECONDS = 3.0

_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

TopicPart = tuple[str, int]
"""Topic and partition number."""


class KafkaReader:
    """ChangelogReader on a consumer that belongs to no group. One thread at a time."""

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._application = application
        self._log = CommittedLog(bootstrap_servers)

    def ends(self, states: Mapping[str, Sequence[int]], deadline_seconds: float) -> Mapping[Partition, int]:
        asked = {
            (topic_name(self._application, state), group): Partition(state, group)
            for state, groups in states.items()
            for group in groups
        }
        return {asked[part]: end for part, end in self._log.ends(list(asked), deadline_seconds).items()}

    def read(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        behind = {part: end for part, end in ends.items() if positions[part].offset < end}
        piece_records = _share(_BUFFERED_RECORDS, len(behind), _MIN_PIECE_RECORDS, _MAX_PIECE_RECORDS)
        piece_bytes = _share(_BUFFERED_BYTES, len(behind), _MIN_PIECE_BYTES, _MAX_PIECE_BYTES)
        names = {part: (topic_name(self._application, part.state), part.key_group) for part in behind}
        assemblers = {names[part]: EpochAssembler(part, positions[part], piece_records, piece_bytes) for part in behind}
        bounds = {names[part]: (positions[part].offset, end) for part, end in behind.items()}
        for part, message in self._log.read(bounds, deadline_seconds):
            assembler = assemblers[part]
            if message is None:
                yield from assembler.end(bounds[part][1])
            else:
                offset = message.offset()
                assert offset is not None
                piece = assembler.add(_bytes(message.key()), _bytes(message.value()), offset)
                if piece is not None:
                    yield piece

    def close(self) -> None:
        """Nothing stays open between calls."""


class CommittedLog:
    """Reads topics as plain records, committed ones only. One thread at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def ends(self, parts: Sequence[TopicPart], deadline_seconds: float) -> dict[TopicPart, int]:
        """The offset after the last committed record of each.

        Raises:
            ChangelogRecreated: A topic is gone, or has fewer partitions.
            KafkaUnreachable: Not before the deadline.
        """
        if not parts:
            return {}
        deadline = Deadline(deadline_seconds)
        while True:
            # A new client each time: one that remembers the leader of before a broker's restart asks it in vain until
            # the request times out, and then takes "no offset" for an answer.
            admin = AdminClient(common_settings(self._bootstrap_servers))
            try:
                found = self._ends(admin, parts, deadline)
                if all(end >= 0 for end in found.values()):
                    return found
                error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            except KafkaException as exception:
                error = error_of(exception)
            if deadline.age > _NEW_TOPIC_SECONDS:
                self._refuse_missing(admin, parts, deadline)
            if deadline.passed:
                raise as_ours(error, self._bootstrap_servers, "tell where the changelog ends")
            time.sleep(min(_RETRY_SECONDS, deadline.left))

    def read(
        self, bounds: Mapping[TopicPart, tuple[int, int]], deadline_seconds: float
    ) -> Iterator[tuple[TopicPart, Message | None]]:
        """All committed records with start <= offset < end, in order within a partition, then None for its end.

        Records that were aborted, and those that Kafka writes itself, take up offsets too: the end may be reached
        without a record at it.

        Raises:
            ChangelogRecreated: A topic is gone.
            KafkaUnreachable: Nothing came for `deadline_seconds`.
        """
        ends = {part: end for part, (start, end) in bounds.items() if start < end}
        if not ends:
            return
        consumer = Consumer(consumer_settings(self._bootstrap_servers))
        try:
            consumer.assign([TopicPartition(topic, number, bounds[topic, number][0]) for topic, number in ends])
            deadline = Deadline(deadline_seconds)
            while ends:
                messages = consumer.consume(_FETCHED_RECORDS, _CONSUME_SECONDS)
                if messages:
                    yield from self._sorted_out(messages, ends)
                    # What the caller does with them doesn't count.
                    deadline = Deadline(deadline_seconds)
                elif deadline.passed:
                    raise unreachable(
                        self._bootstrap_servers, "be read from", f"nothing came for {deadline_seconds:g} s"
                    )
        finally:
            consumer.close()

    def _sorted_out(
        self, messages: Sequence[Message], ends: dict[TopicPart, int]
    ) -> Iterator[tuple[TopicPart, Message | None]]:
        for message in messages:
            topic, number, offset = message.topic(), message.partition(), message.offset()
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.code() in _GONE:
                    raise self._gone(error.str())
                continue  # it tries again by itself; no progress ends it
            assert topic is not None
            assert number is not None
            assert offset is not None
            part = (topic, number)
            end = ends.get(part)
            if end is None:
                continue  # beyond its end
            if error is None and offset < end:
                yield part, message
            # At the end of the partition, `offset` is that of the next record to come.
            if (offset if error is not None else offset + 1) >= end:
                del ends[part]
                yield part, None

    def _ends(self, admin: AdminClient, parts: Sequence[TopicPart], deadline: Deadline) -> dict[TopicPart, int]:
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        futures = admin.list_offsets(
            {TopicPartition(topic, number): end for topic, number in parts},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=min(_REQUEST_SECONDS, deadline.left),
        )
        return {(part.topic, part.partition): future.result().offset for part, future in futures.items()}

    def _refuse_missing(self, admin: AdminClient, parts: Sequence[TopicPart], deadline: Deadline) -> None:
        try:
            topics = admin.list_topics(timeout=min(_REQUEST_SECONDS, deadline.left)).topics
        except KafkaException:
            return  # then nothing is known
        gone = sorted(
            {topic for topic, number in parts if topic not in topics or number not in topics[topic].partitions}
        )
        if gone:
            raise self._gone(", ".join(gone))

    def _gone(self, what: str) -> ChangelogRecreated:
        return ChangelogRecreated(
            f"the changelog is gone, or has fewer partitions than it had: {what}. Restore it from a copy, or drop the "
            "state",
            topics=what,
        )


def _share(total: int, partitions: int, least: int, most: int) -> int:
    return min(most, max(least, total // max(1, partitions)))


def _bytes(data: str | bytes | None) -> bytes | None:
    assert data is None or isinstance(data, bytes)
    return data


def following_settings(bootstrap_servers: str) -> Settings:
    """For a consumer that stays."""
    return {
        **consumer_settings(bootstrap_servers),
        # New records come at once. Only "nothing more" takes this long; asking more often would keep brokers busy.
        "fetch.wait.max.ms": 25,
    }


def consumer_settings(bootstrap_servers: str) -> Settings:
    """For a consumer of committed records that belongs to no group."""
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
        "queued.max.messages.kbytes": 64 << 10,
        "fetch.message.max.bytes": 4 << 20,
    }

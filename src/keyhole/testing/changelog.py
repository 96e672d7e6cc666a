"""A Kafka in memory, and the changelog on it: the same semantics as the real one, held to the same contract suite."""

from __future__ import annotations

import enum
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from keyhole.changelog.base import Partition, PartitionChanges, RestoredEpochs
from keyhole.changelog.records import MARKER_KEY, EpochAssembler, encode_marker
from keyhole.changelog.settings import CONTROL, MAX_ROW_BYTES, topic_name, transactional_id
from keyhole.errors import (
    ChangelogRecreated,
    Fenced,
    InvalidConfiguration,
    KafkaUnreachable,
    OutcomeUnknown,
    TopicMismatch,
    ValueMismatch,
)
from keyhole.types import Position, StateDescriptor

PIECE_RECORDS = 1000
"""As the real reader's pieces where there are many partitions."""

_Record = tuple[bytes, bytes | None]


class NextCommit(enum.Enum):
    """What becomes of the next transaction whose commit is asked for."""

    SUCCEEDS = enum.auto()
    IS_COMMITTED_BUT_NOT_ANSWERED = enum.auto()
    IS_LOST_AND_NOT_ANSWERED = enum.auto()


@dataclass
class _Topic:
    """Partitions as offset -> record; None: an offset that is no record (the end of a transaction)."""

    id: str
    partitions: list[dict[int, _Record | None]]
    ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = [0] * len(self.partitions)


class MemoryKafka:
    """What all MemoryChangelogs of a test share. Any thread.

    Attributes:
        down: While true, every call raises KafkaUnreachable.
        next_commit: See NextCommit; goes back to SUCCEEDS by itself.
        before_commit: Called before each transaction takes effect, on the thread that commits.
    """

    def __init__(self) -> None:
        self.down = False
        self.next_commit = NextCommit.SUCCEEDS
        self.before_commit: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._epochs: dict[str, int] = {}

    def delete_topic(self, name: str) -> None:
        """Removes a topic and all that is in it."""
        with self._lock:
            del self._topics[name]

    def compact(self, name: str) -> None:
        """Removes every record that a later one of the same key replaces; offsets stay."""
        with self._lock:
            for partition in self._topics[name].partitions:
                last = {record[0]: offset for offset, record in partition.items() if record is not None}
                for offset, record in list(partition.items()):
                    if record is None or last[record[0]] != offset:
                        del partition[offset]

    def reach(self) -> None:
        """Raises KafkaUnreachable while `down`."""
        if self.down:
            raise KafkaUnreachable("the Kafka in memory was told to be down")

    def ensure(self, name: str, partitions: int) -> str:
        """Makes the topic, or checks its number of partitions; returns its id."""
        self.reach()
        with self._lock:
            found = self._topics.setdefault(name, _Topic(uuid.uuid4().hex, [{} for _ in range(partitions)]))
            if len(found.partitions) != partitions:
                raise TopicMismatch(
                    f"topic {name} is not as Keyhole needs it: it has {len(found.partitions)} partitions, the state "
                    f"has {partitions} key groups",
                    topic=name,
                )
            return found.id

    def topic_id(self, name: str) -> str | None:
        """None: there is no such topic."""
        self.reach()
        with self._lock:
            found = self._topics.get(name)
            return found.id if found is not None else None

    def end(self, name: str, partition: int) -> int:
        """The offset after the last one taken."""
        self.reach()
        with self._lock:
            if name not in self._topics:
                raise ChangelogRecreated(f"topic {name} is gone", topic=name)
            return self._topics[name].ends[partition]

    def records(self, name: str, partition: int, start: int, end: int) -> list[tuple[int, bytes, bytes | None]]:
        """(offset, key, value) of the records between."""
        self.reach()
        with self._lock:
            present = self._topics[name].partitions[partition]
            return [(at, *record) for at, record in present.items() if record is not None and start <= at < end]

    def bump(self, transactional_id: str) -> int:
        """Takes the id; every earlier holder is fenced."""
        self.reach()
        with self._lock:
            epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
            return epoch

    def commit(
        self, transactional_id: str, epoch: int, batches: Sequence[tuple[str, int, Sequence[_Record]]]
    ) -> list[int]:
        """One transaction; returns the offset of the last record of each batch."""
        self.reach()
        if any(len(key) + len(value or b"") > MAX_ROW_BYTES for *_, records in batches for key, value in records):
            raise ValueMismatch(f"a row is larger than a changelog takes ({MAX_ROW_BYTES >> 20} MiB with its key)")
        self.before_commit()
        with self._lock:
            if self._epochs[transactional_id] != epoch:
                raise Fenced(f"{transactional_id} was taken over", transactional_id=transactional_id)
            fate, self.next_commit = self.next_commit, NextCommit.SUCCEEDS
            if fate is NextCommit.IS_LOST_AND_NOT_ANSWERED:
                raise OutcomeUnknown("the Kafka in memory was told not to answer")
            offsets = [self._append(self._topics[name], number, records) for name, number, records in batches]
            if fate is NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED:
                raise OutcomeUnknown("the Kafka in memory was told not to answer")
            return offsets

    def _append(self, topic: _Topic, partition: int, records: Sequence[_Record]) -> int:
        for record in [*records, None]:  # the end of the transaction takes an offset too
            topic.partitions[partition][topic.ends[partition]] = record
            topic.ends[partition] += 1
        return topic.ends[partition] - 2


class MemoryChangelog:
    """Changelog (see keyhole.changelog.base) of one application on a MemoryKafka."""

    def __init__(self, kafka: MemoryKafka, application: str) -> None:
        self._kafka = kafka
        self._application = application

    def writer(self, grant: str) -> MemoryWriter:
        return MemoryWriter(self._kafka, self._application, grant)

    def reader(self) -> MemoryReader:
        return MemoryReader(self._kafka, self._application)

    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self._kafka, self._application)

    def control(self, query: str) -> MemoryControlLog:
        return MemoryControlLog(self._kafka, self._application, query)


class MemoryWriter:
    """ChangelogWriter."""

    def __init__(self, kafka: MemoryKafka, application: str, grant: str) -> None:
        self._kafka = kafka
        self._application = application
        self._grant = grant
        self._epoch = -1

    def open(self, deadline_seconds: float) -> None:
        self._epoch = self._kafka.bump(self._grant)

    def commit(self, epoch: Sequence[PartitionChanges], deadline_seconds: float) -> Mapping[Partition, int]:
        batches = [
            (
                topic_name(self._application, changed.partition.state),
                changed.partition.key_group,
                [*changed.changes, (MARKER_KEY, encode_marker(changed.marker))],
            )
            for changed in epoch
        ]
        offsets = self._kafka.commit(self._grant, self._epoch, batches)
        return {changed.partition: offset for changed, offset in zip(epoch, offsets, strict=True)}

    def close(self) -> None:
        """Nothing to give up."""


class MemoryReader:
    """ChangelogReader."""

    def __init__(self, kafka: MemoryKafka, application: str) -> None:
        self._kafka = kafka
        self._application = application

    def ends(self, states: Mapping[str, Sequence[int]], deadline_seconds: float) -> Mapping[Partition, int]:
        return {
            Partition(state, group): self._kafka.end(topic_name(self._application, state), group)
            for state, groups in states.items()
            for group in groups
        }

    def read(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        for partition, end in ends.items():
            position = positions[partition]
            assembler = EpochAssembler(partition, position, PIECE_RECORDS)
            topic = topic_name(self._application, partition.state)
            for offset, key, value in self._kafka.records(topic, partition.key_group, position.offset, end):
                piece = assembler.add(key, value, offset)
                if piece is not None:
                    yield piece
            yield from assembler.end(end)

    def close(self) -> None:
        """Nothing to close."""


class MemoryAdmin:
    """ChangelogAdmin."""

    def __init__(self, kafka: MemoryKafka, application: str) -> None:
        self._kafka = kafka
        self._application = application

    def ensure(self, descriptor: StateDescriptor, deadline_seconds: float) -> str:
        if descriptor.state == CONTROL:
            raise InvalidConfiguration(f"no state may be called {CONTROL!r}: the control topic has this name")
        topic = topic_name(self._application, descriptor.state)
        if descriptor.topic_id and self._kafka.topic_id(topic) != descriptor.topic_id:
            raise ChangelogRecreated(f"topic {topic} is gone, or was made anew", topic=topic)
        return self._kafka.ensure(topic, descriptor.key_groups)

    def fence(self, grant: str, deadline_seconds: float) -> None:
        self._kafka.bump(grant)


class MemoryControlLog:
    """ControlLog."""

    def __init__(self, kafka: MemoryKafka, application: str, query: str) -> None:
        self._kafka = kafka
        self._topic = topic_name(application, CONTROL)
        self._id = transactional_id(application, query)
        self._epoch = -1

    def open(self, deadline_seconds: float) -> None:
        self._kafka.ensure(self._topic, 1)
        self._epoch = self._kafka.bump(self._id)

    def read(self, deadline_seconds: float) -> Mapping[str, bytes]:
        end = self._kafka.end(self._topic, 0)
        latest = {key.decode(): value for _, key, value in self._kafka.records(self._topic, 0, 0, end)}
        return {name: value for name, value in latest.items() if value is not None}

    def append(self, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        encoded = [(name.encode(), value) for name, value in records.items()]
        self._kafka.commit(self._id, self._epoch, [(self._topic, 0, encoded)] if encoded else [])

    def close(self) -> None:
        """Nothing to close."""

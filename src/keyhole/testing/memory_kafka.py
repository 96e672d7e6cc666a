"""A Kafka in memory: topics with transactions, fencing, compaction, outages and groups of replicas."""

from __future__ import annotations

import enum
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from keyhole.changelog.base import TopicRight
from keyhole.changelog.records import PieceLimits, Records
from keyhole.changelog.settings import MAX_RECORD_BYTES, refused_ids, refused_name, refused_right, too_large
from keyhole.errors import ChangelogRecreated, Fenced, KafkaUnreachable, OutcomeUnknown, TopicMismatch
from keyhole.testing.replica_shares import ReplicaShares

PIECE_RECORDS = 1000
"""Less than the real reader's, so that a test needs few to get several pieces."""

PIECE_LIMITS = PieceLimits(records=PIECE_RECORDS)

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
        denied: What its rules keep from everybody, by topic.
        log_time_ms: What records that are appended without a transaction get as their time.
    """

    def __init__(self) -> None:
        self.down = False
        self.next_commit = NextCommit.SUCCEEDS
        self.before_commit: Callable[[], None] = lambda: None
        self.denied: set[tuple[str, TopicRight]] = set()
        self.denied_ids: set[str] = set()
        self.log_time_ms = 1
        self._lock = threading.Condition()
        self._topics: dict[str, _Topic] = {}
        self._epochs: dict[str, int] = {}
        self._groups: dict[str, ReplicaShares] = {}

    def delete_topic(self, name: str) -> None:
        """Removes a topic and all that is in it."""
        self.check_right(name, TopicRight.DELETE)
        with self._lock:
            del self._topics[name]
            self._lock.notify_all()

    def compact(self, name: str, *, forget_deletions: bool = False) -> None:
        """Removes every record that a later one of the same key replaces; offsets stay.

        Args:
            forget_deletions: Also removes the deletions, as Kafka does after `delete.retention.ms`.
        """
        with self._lock:
            for partition in self._topics[name].partitions:
                last = {record[0]: offset for offset, record in partition.items() if record is not None}
                for offset, record in list(partition.items()):
                    if record is None or last[record[0]] != offset or (forget_deletions and record[1] is None):
                        del partition[offset]

    def truncate(self, name: str, partition: int, end: int) -> None:
        """Loses a partition's offsets from `end` on, as a broker that comes back without its last writes does."""
        with self._lock:
            topic = self._topics[name]
            for offset in [offset for offset in topic.partitions[partition] if offset >= end]:
                del topic.partitions[partition][offset]
            topic.ends[partition] = min(topic.ends[partition], end)
            self._lock.notify_all()

    def abort(self, name: str, partition: int, records: int) -> None:
        """Takes the offsets of an aborted transaction, and of its end: no reader sees them."""
        with self._lock:
            self._topics[name].ends[partition] += records + 1
            self._lock.notify_all()

    def reach(self) -> None:
        """Stands for a call to a broker. Raises KafkaUnreachable while `down`."""
        if self.down:
            raise KafkaUnreachable("the Kafka in memory is set to be down")

    def check_right(self, name: str, right: TopicRight) -> None:
        """Raises InvalidConfiguration where the operation on the topic is `denied`."""
        if (name, right) in self.denied:
            raise refused_right(name, right)

    def check_ids(self, prefix: str) -> None:
        """Raises InvalidConfiguration where ids that begin so are among the `denied_ids`."""
        if prefix in self.denied_ids:
            raise refused_ids(prefix)

    def check_name(self, name: str) -> None:
        """Passes where Kafka would make a topic of this name. Raises InvalidConfiguration where another's is the same
        to it.
        """
        self.reach()
        with self._lock:
            for other in self._topics:
                if other != name and other.replace(".", "_") == name.replace(".", "_"):
                    raise refused_name(name, f"Topic '{name}' collides with existing topic: {other}")

    def ensure(self, name: str, partitions: int) -> str:
        """Makes the topic, or checks its number of partitions; returns its id."""
        self.check_name(name)
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
        """The topic's id; None: the topic doesn't exist."""
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

    def columns(self, name: str, partition: int, start: int, end: int) -> Records:
        """As `records`, for an EpochAssembler."""
        found = self.records(name, partition, start, end)
        return Records([key for _, key, _ in found], [value for *_, value in found], lambda index: found[index][0])

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
        for name, _, records in batches:
            size = max((len(key) + len(value or b"") for key, value in records), default=0)
            if size > MAX_RECORD_BYTES:
                raise too_large(name, size)
        for name, *_ in batches:
            self.check_right(name, TopicRight.WRITE)
        self.before_commit()
        with self._lock:
            if self._epochs[transactional_id] != epoch:
                raise Fenced(f"{transactional_id} was taken over", transactional_id=transactional_id)
            fate, self.next_commit = self.next_commit, NextCommit.SUCCEEDS
            if fate is NextCommit.IS_LOST_AND_NOT_ANSWERED:
                raise OutcomeUnknown("the Kafka in memory is set not to answer")
            offsets = [self._append(self._topics[name], number, records) for name, number, records in batches]
            self._lock.notify_all()
            if fate is NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED:
                raise OutcomeUnknown("the Kafka in memory is set not to answer")
            return offsets

    def append(self, name: str, partition: int, value: bytes | None) -> int:
        """Appends a record without a transaction, under the time as its key. Returns its offset."""
        self.reach()
        self.check_right(name, TopicRight.WRITE)
        with self._lock:
            if name not in self._topics:
                raise ChangelogRecreated(f"topic {name} is gone", topic=name)
            topic = self._topics[name]
            offset = topic.ends[partition]
            topic.partitions[partition][offset] = self.log_time_ms.to_bytes(8, "big"), value
            topic.ends[partition] += 1
            self._lock.notify_all()
            return offset

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Returns when `ready` says so, at most `seconds` later. It is asked now, and whenever something changed."""
        with self._lock:
            self._lock.wait_for(ready, seconds)

    def change(self, step: Callable[[], None]) -> None:
        """Does what others may be waiting for."""
        with self._lock:
            step()
            self._lock.notify_all()

    def ends(self, parts: Iterable[tuple[str, int]]) -> list[int]:
        """As `end` for each; -1: the topic doesn't exist. Nothing is raised."""
        with self._lock:
            return [self._topics[name].ends[number] if name in self._topics else -1 for name, number in parts]

    def replica_group(self, name: str) -> ReplicaShares:
        """The members of a group of replicas, and what each has."""
        with self._lock:
            return self._groups.setdefault(name, ReplicaShares())

    def _append(self, topic: _Topic, partition: int, records: Sequence[_Record]) -> int:
        for record in [*records, None]:  # the end of the transaction takes an offset too
            topic.partitions[partition][topic.ends[partition]] = record
            topic.ends[partition] += 1
        return topic.ends[partition] - 2

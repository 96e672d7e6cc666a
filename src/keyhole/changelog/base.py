"""What a changelog is: the durable copy of a state, a compacted topic with one partition per key group.

An epoch's changes of all partitions that it touches are one transaction; its last record in each partition is the
marker. The store is a cache of it. The layout of records is written down in docs/changelog.md.

Threads: every object here blocks, and is used by one thread at a time. Deadlines are in seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from keyhole.changelog.control_topic import ControlLog, ControlTail
from keyhole.model.epoch import EpochStamp, Position
from keyhole.model.state import StateDescriptor
from keyhole.protocol.seen import FeedPosition
from keyhole.protocol.updates import LoggedUpdate


class Partition(NamedTuple):
    """A changelog partition: a state and a key group."""

    state: str
    key_group: int


def by_state(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Their key groups, as ChangelogReader.ends takes them."""
    groups: dict[str, list[int]] = {}
    for state, key_group in partitions:
        groups.setdefault(state, []).append(key_group)
    return groups


@dataclass(frozen=True, slots=True)
class Marker:
    """The last record of an epoch in a partition, and what it says.

    Attributes:
        stamp: Of the epoch.
        checksum: Over the epoch's staged rows of this key group (see model.epoch.Position).
        offsets_hash: Hash of the batch's source offsets.
        layout: Of the partition's values (keyhole.encoding.envelope.layout_of).
        feed: How far the key group has applied its updates, in the real-time lane; None: it has none.
    """

    stamp: EpochStamp
    checksum: int
    offsets_hash: int
    layout: int = 1
    feed: FeedPosition | None = None


@dataclass(frozen=True, slots=True)
class PartitionChanges:
    """What one epoch changes in one partition.

    Attributes:
        changes: (storage key, row or None for a deletion) pairs, each key once. May be more than memory holds, and read
            from disk whenever it is iterated over: then it can raise StageLost.
    """

    partition: Partition
    changes: Iterable[tuple[bytes, bytes | None]]
    marker: Marker


class ChangelogWriter(Protocol):
    """Writes under one grant.

    Any error but KafkaUnreachable, TooLarge and StageLost ends its life: ask for a new grant.
    """

    def open(self, deadline_seconds: float) -> None:
        """Fences whoever held the grant's id, and waits until their transaction is decided. Called once.

        Raises:
            KafkaUnreachable: Nothing happened; may be called again.
            Fenced: The id was taken over.
        """

    def commit(self, epoch: Sequence[PartitionChanges], deadline_seconds: float) -> Mapping[Partition, int]:
        """Writes all in one transaction and returns each marker's offset.

        Kafka answers a little before readers see the transaction: whoever must see it fences the writer first.

        Raises:
            KafkaUnreachable: The transaction was aborted for certain: nothing was written. May be called again.
            TooLarge: A row is larger than the changelog takes. Nothing was written. May be called again.
            StageLost: What is to be written can't be read. Nothing was written. May be called again.
            Fenced: A newer owner exists, and has decided this transaction: most likely nothing was written.
            OutcomeUnknown: It may or may not have been committed. Never call again: restore, and the marker decides.
        """

    def close(self) -> None:
        """Gives up at once whatever is under way. Idempotent."""


@dataclass(frozen=True, slots=True)
class RestoredEpochs:
    """A run of epochs of one partition, read back: apply it in one step. It ends with an epoch, or says so if not.

    Attributes:
        changes: (storage key, row or None), in changelog order; a key may occur several times (the last one counts).
        position: The position after it.
        marker: The last marker among them, with which it ends. None: it ends within an epoch that is too large to be
            held, or in a part of the log whose markers were compacted away. What a copy holds then never existed; the
            position has the offset to go on from, and all else of the marker before.
        records: Changelog records that it covers, markers included: for progress.
        bytes: Length of all keys and rows.
    """

    partition: Partition
    changes: Sequence[tuple[bytes, bytes | None]]
    position: Position
    marker: Marker | None
    records: int
    bytes: int = 0


class ChangelogReader(Protocol):
    """Reads what transactions have committed. One thread; `ends` and `read` block, up to the deadline."""

    def ends(self, states: Mapping[str, Sequence[int]], deadline_seconds: float) -> Mapping[Partition, int]:
        """The offset after the last committed record of each partition, by state and key groups."""

    def read(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        """All from the positions to the ends, in pieces of bounded size that end at markers.

        A position before the log's start (compaction, retention) starts at the log's start. In the part that was never
        compacted, any prefix of the pieces that ends with a marker gives a copy that existed. In the part that was
        compacted, a copy is right again at its end.

        Raises:
            KafkaUnreachable: No progress for `deadline_seconds`.
        """

    def epochs(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        """As `read`, each epoch as a piece of its own, however large: memory has to hold it.

        Only the last piece of a partition may be without a marker.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Reached:
    """A follower has read a partition to where it ended a moment ago: `offset` is the next one to come."""

    partition: Partition
    offset: int


class ChangelogTail(Protocol):
    """Follows partitions beyond their end, committed records only. `close` may come from another thread."""

    def follow(self, positions: Mapping[Partition, Position]) -> None:
        """The whole set that is followed from now on. One that is followed already goes on where it is if its position
        is the one that was handed out last, else it begins anew from the given one. What was read of others is dropped.
        """

    def poll(self, seconds: float) -> Sequence[RestoredEpochs | Reached]:
        """What has come, at most `seconds` later: pieces of bounded size, in order, each up to the last marker.

        A partition's first Reached comes once its end has been read after `follow`, also where it was followed before;
        later ones whenever it is read to its end again. While Kafka can't be reached nothing comes.

        Raises (then it can only be closed):
            ChangelogRecreated: A topic is gone, was made anew, or is shorter than what was read of it.
            TopicMismatch: A record that is not ours.
        """

    def close(self) -> None: ...


class UpdatesRun(NamedTuple):
    """Updates of one key group that came together.

    Attributes:
        start: Where the log was read from: of what is before, nothing is here.
        updates: In the order of the log, ascending by offset; some offsets are no updates.
        end: The offset of the next one to come: the log ended there a moment ago. None: there is more.
        log_end: Where there is more, up to where, as far as that is known; else 0.
    """

    partition: Partition
    start: int
    updates: Sequence[LoggedUpdate]
    end: int | None
    log_end: int = 0

    def behind(self, before: UpdatesRun) -> UpdatesRun:
        """Both as one, where this one follows on the other."""
        return UpdatesRun(self.partition, before.start, [*before.updates, *self.updates], self.end, self.log_end)


class UpdatesTail(Protocol):
    """Reads the updates topics of an application's states, and waits at their ends. `close` may come from another
    thread.
    """

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        """The whole set that is read from now on, each from the offset of its next update. One that is there already
        goes on. What was read of others is dropped.
        """

    def poll(self, seconds: float) -> Sequence[UpdatesRun]:
        """What has come, at most `seconds` later: one run of a key group at most. While Kafka can't be reached nothing
        comes.

        Raises (then it can only be closed):
            ChangelogRecreated: A topic is gone or was made anew, or has not, or not any more, the updates that come
                next: nothing is passed over.
        """

    def close(self) -> None: ...


class LogExtent(NamedTuple):
    """Where a partition begins, and the offset after its last record."""

    start: int
    end: int


class RefusedRecord(NamedTuple):
    """A record of an updates topic that changed nothing, and never will."""

    partition: Partition
    update: LoggedUpdate
    reason: str


class UpdatesTopics(Protocol):
    """Makes and checks the updates topics of an application's states, each with one partition per key group.

    One thread at a time; close it.
    """

    def ensure(self, state: str, key_groups: int, topic_id: str, deadline_seconds: float) -> str:
        """Makes the topic with the right settings, or checks the one that is there. Returns its topic id.

        Args:
            topic_id: Which it must have; empty: any, and where there is none it is made.

        Raises:
            TopicMismatch: Another number of partitions, or settings with which updates or their time would be lost; the
                message names each difference. Nothing was changed.
            ChangelogRecreated: The topic has another id, or is gone.
            KafkaUnreachable: Nothing is known to have happened.
        """

    def check_new(self, state: str, key_groups: int, deadline_seconds: float) -> None:
        """Passes where `ensure` would make the topic, which must not be there. Nothing is made.

        Raises:
            InvalidConfiguration: Kafka has no place for its name, or doesn't let the caller make it.
            KafkaUnreachable: Nobody could be asked.
        """

    def extents(
        self, key_groups: Mapping[str, Sequence[int]], deadline_seconds: float
    ) -> Mapping[Partition, LogExtent]:
        """Where these partitions begin and end, by state and key groups.

        Raises:
            ChangelogRecreated: One is not there.
            KafkaUnreachable: No answer in time.
        """

    def lost(self, topic_ids: Mapping[str, str], deadline_seconds: float) -> Sequence[str]:
        """The states, of these, whose updates topic is gone, or has another id now.

        Raises:
            KafkaUnreachable: One was not found, and that may pass: a broker that has just started has not heard of
                every topic. It is gone once it was not found by two looks some seconds apart.
        """

    def write(self, state: str, key_groups: int, value: bytes, deadline_seconds: float) -> None:
        """Appends a record to each partition; returns once all have it. May be called again.

        Raises:
            KafkaUnreachable: It may be in some of them.
        """

    def put_aside(self, refused: Sequence[RefusedRecord], deadline_seconds: float) -> None:
        """Writes records to the topics of dead letters, `<updates topic>.dead-letter`; returns once they have them.

        Raises:
            KafkaUnreachable: Some may be there. Called again, these are there twice.
        """

    def close(self) -> None: ...


class ReplicaGroup(Protocol):
    """The replica servers that share an application's key groups among themselves; together they have all of them.

    Balanced within one, and moves few when replicas come and go. On Kafka: a consumer group.
    """

    def poll(self, states: Mapping[str, int], seconds: float) -> frozenset[Partition] | None:
        """This replica's share, at most `seconds` later. None: not known yet, or being settled: keep what you have.

        Args:
            states: Number of key groups by state.
        """

    def close(self) -> None:
        """Leaves the group: the others take over at once."""


class TopicRight(enum.StrEnum):
    """An operation on a topic, as Kafka's rules name it."""

    READ = "READ"
    WRITE = "WRITE"
    DELETE = "DELETE"


class ChangelogAdmin(Protocol):
    """Topics, and the fencing of writers that may still be alive."""

    def ensure(self, descriptor: StateDescriptor, deadline_seconds: float) -> str:
        """Makes the state's topic with the right settings, or checks the one that is there. Returns its topic id.

        Raises:
            TopicMismatch: Another number of partitions, or settings that would lose data; the message names each
                difference. Nothing was changed.
            ChangelogRecreated: `descriptor.topic_id` is set and the topic has another one, or is gone.
            KafkaUnreachable: Nothing is known to have happened.
        """

    def check(self, descriptor: StateDescriptor, deadline_seconds: float) -> bool:
        """Whether there is the state's topic, which `ensure` would find as it is to be. Nothing is made or changed.

        Raises:
            TopicMismatch, ChangelogRecreated, InvalidConfiguration: As `ensure` would.
            KafkaUnreachable: Nobody could be asked.
        """

    def check_rights(self, needed: Mapping[str, TopicRight], deadline_seconds: float) -> None:
        """Asks Kafka, once for all of them, whether it lets the caller do this. Nothing is done, and nobody is fenced.

        Args:
            needed: By topic. One that is not there is passed over.

        Raises:
            InvalidConfiguration: It doesn't; topic and operation are named. A Kafka that doesn't say refuses nothing.
            KafkaUnreachable: Nobody could be asked.
        """

    def check_ids(self, prefixes: Sequence[str], deadline_seconds: float) -> None:
        """Tries whether Kafka lets the caller write under transactional.ids that begin so: it doesn't tell who asks.

        One that nobody uses is taken of each. Nobody is fenced.

        Raises:
            InvalidConfiguration: It doesn't; the prefix is named.
            KafkaUnreachable: It can't be tried.
        """

    def delete(self, topics: Sequence[str], deadline_seconds: float) -> None:
        """Deletes topics, by name; returns once none is there. Raises KafkaUnreachable: may be called again."""

    def fence(self, grant: str, deadline_seconds: float) -> None:
        """Makes every writer under the grant's id fail for ever, and waits until its transaction is decided."""


class Changelog(Protocol):
    """Makes the above for one application."""

    def writer(self, grant: str) -> ChangelogWriter: ...

    def reader(self) -> ChangelogReader: ...

    def admin(self) -> ChangelogAdmin: ...

    def control(self, query: str) -> ControlLog: ...

    def tail(self) -> ChangelogTail: ...

    def control_tail(self) -> ControlTail: ...

    def updates_topics(self) -> UpdatesTopics: ...

    def updates_tail(self, topic_ids: Mapping[str, str]) -> UpdatesTail:
        """Of these states, by the ids that their updates topics must have."""

    def replicas(self, group: str) -> ReplicaGroup:
        """The group of replicas of that name. Each group holds every key group once; two groups hold two copies."""

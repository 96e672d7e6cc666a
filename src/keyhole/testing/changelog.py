"""The changelog on a Kafka in memory: the same semantics as the real one, held to the same contract suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from keyhole.changelog.base import Partition, PartitionChanges, RestoredEpochs, TopicRight
from keyhole.changelog.records import EACH_EPOCH, MARKER_KEY, EpochAssembler, PieceLimits, encode_marker
from keyhole.changelog.settings import CONTROL, topic_name, transactional_id
from keyhole.errors import ChangelogRecreated, InvalidConfiguration
from keyhole.model.epoch import Position
from keyhole.model.state import StateDescriptor
from keyhole.testing.followers import MemoryControlTail, MemoryReplicaGroup, MemoryTail
from keyhole.testing.memory_kafka import PIECE_LIMITS, PIECE_RECORDS, MemoryKafka, NextCommit
from keyhole.testing.updates import MemoryUpdatesTail, MemoryUpdatesTopics

__all__ = ["PIECE_RECORDS", "MemoryChangelog", "MemoryKafka", "NextCommit"]


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

    def tail(self) -> MemoryTail:
        return MemoryTail(self._kafka, self._application)

    def control_tail(self) -> MemoryControlTail:
        return MemoryControlTail(self._kafka, self._application)

    def updates_topics(self) -> MemoryUpdatesTopics:
        return MemoryUpdatesTopics(self._kafka, self._application)

    def updates_tail(self, topic_ids: Mapping[str, str]) -> MemoryUpdatesTail:
        return MemoryUpdatesTail(self._kafka, self._application, topic_ids)

    def replicas(self, group: str) -> MemoryReplicaGroup:
        return MemoryReplicaGroup(self._kafka, group)


class MemoryWriter:
    """A ChangelogWriter that commits to a MemoryKafka. Any thread; never blocks."""

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
        """Part of ChangelogWriter; there is nothing to give up."""


class MemoryReader:
    """A ChangelogReader of a MemoryKafka. Any thread; never blocks."""

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
        return self._read(positions, ends, PIECE_LIMITS)

    def epochs(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        return self._read(positions, ends, EACH_EPOCH)

    def _read(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], limits: PieceLimits
    ) -> Iterator[RestoredEpochs]:
        for partition, end in ends.items():
            position = positions[partition]
            assembler = EpochAssembler(partition, position, limits)
            topic = topic_name(self._application, partition.state)
            yield from assembler.add(self._kafka.columns(topic, partition.key_group, position.offset, end))
            yield from assembler.end(end)

    def close(self) -> None:
        """Part of ChangelogReader; there is nothing to give up."""


class MemoryAdmin:
    """A ChangelogAdmin of a MemoryKafka. Any thread; never blocks."""

    def __init__(self, kafka: MemoryKafka, application: str) -> None:
        self._kafka = kafka
        self._application = application

    def ensure(self, descriptor: StateDescriptor, deadline_seconds: float) -> str:
        self.check(descriptor, deadline_seconds)
        return self._kafka.ensure(topic_name(self._application, descriptor.state), descriptor.key_groups)

    def check(self, descriptor: StateDescriptor, deadline_seconds: float) -> bool:
        if descriptor.state == CONTROL:
            raise InvalidConfiguration(f"no state may be called {CONTROL!r}: the control topic has this name")
        topic = topic_name(self._application, descriptor.state)
        found = self._kafka.topic_id(topic)
        if descriptor.topic_id and found != descriptor.topic_id:
            raise ChangelogRecreated(f"topic {topic} is gone, or was made anew", topic=topic)
        self._kafka.check_name(topic)
        if found is not None:
            self._kafka.ensure(topic, descriptor.key_groups)  # which is there, so that nothing is made
        return found is not None

    def check_rights(self, needed: Mapping[str, TopicRight], deadline_seconds: float) -> None:
        self._kafka.reach()
        for topic, right in needed.items():
            if self._kafka.topic_id(topic) is not None:
                self._kafka.check_right(topic, right)

    def check_ids(self, prefixes: Sequence[str], deadline_seconds: float) -> None:
        self._kafka.reach()
        for prefix in prefixes:
            self._kafka.check_ids(prefix)

    def delete(self, topics: Sequence[str], deadline_seconds: float) -> None:
        for topic in topics:
            if self._kafka.topic_id(topic) is not None:
                self._kafka.delete_topic(topic)

    def fence(self, grant: str, deadline_seconds: float) -> None:
        self._kafka.bump(grant)


class MemoryControlLog:
    """A ControlLog in a MemoryKafka, for one query. Any thread; never blocks."""

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

    def read_decided(self, deadline_seconds: float) -> Mapping[str, bytes]:
        return self.read(deadline_seconds)  # no transaction is ever open

    def append(self, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        encoded = [(name.encode(), value) for name, value in records.items()]
        self._kafka.commit(self._id, self._epoch, [(self._topic, 0, encoded)] if encoded else [])

    def close(self) -> None:
        """Part of ControlLog; there is nothing to give up."""

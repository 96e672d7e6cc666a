"""What follows a Kafka in memory: changelogs, the control topic, and the shares of replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from keyhole.changelog.base import Partition, Reached, RestoredEpochs
from keyhole.changelog.records import EpochAssembler
from keyhole.changelog.settings import CONTROL, topic_name
from keyhole.errors import ChangelogRecreated, KafkaUnreachable
from keyhole.model.epoch import Position
from keyhole.testing.memory_kafka import PIECE_LIMITS, MemoryKafka


class _Followed:
    """One partition: where its next record is, and the position that was handed out last."""

    def __init__(self, partition: Partition, position: Position) -> None:
        self.assembler = EpochAssembler(partition, position, PIECE_LIMITS)
        self.partition = partition
        self.position = position
        self.next_offset = position.offset
        self.told_end = False


class MemoryTail:
    """ChangelogTail. A poll takes all that there is; waiting ends with the next commit."""

    def __init__(self, kafka: MemoryKafka, application: str) -> None:
        self._kafka = kafka
        self._application = application
        self._followed: dict[Partition, _Followed] = {}
        self._closed = False

    def follow(self, positions: Mapping[Partition, Position]) -> None:
        before, self._followed = self._followed, {}
        for part, position in positions.items():
            kept = before.get(part)
            self._followed[part] = kept if kept and kept.position == position else _Followed(part, position)
            self._followed[part].told_end = False

    def poll(self, seconds: float) -> Sequence[RestoredEpochs | Reached]:
        self._kafka.wait(lambda: self._closed or (not self._kafka.down and self._something_came()), seconds)
        if self._closed or self._kafka.down:
            return ()
        items: list[RestoredEpochs | Reached] = []
        with contextlib.suppress(KafkaUnreachable):
            for followed in self._followed.values():
                items += self._take(followed)
        return items

    def close(self) -> None:
        self._closed = True
        self._kafka.change(lambda: None)

    def _something_came(self) -> bool:
        places = [self._place(followed) for followed in self._followed.values()]
        return any(
            end != followed.next_offset or not followed.told_end
            for followed, end in zip(self._followed.values(), self._kafka.ends(places), strict=True)
        )

    def _take(self, followed: _Followed) -> list[RestoredEpochs | Reached]:
        topic, number = self._place(followed)
        end = self._kafka.end(topic, number)
        if end < followed.next_offset:
            raise ChangelogRecreated(f"topic {topic} ends before what was read of it", topic=topic)
        if end == followed.next_offset and followed.told_end:
            return []
        items = followed.assembler.add(self._kafka.columns(topic, number, followed.next_offset, end))
        items += followed.assembler.cut()
        if items:
            followed.position = items[-1].position
        followed.next_offset, followed.told_end = end, True
        return [*items, Reached(followed.partition, end)]

    def _place(self, followed: _Followed) -> tuple[str, int]:
        return topic_name(self._application, followed.partition.state), followed.partition.key_group


class MemoryControlTail:
    """ControlTail. Waiting ends with the next append."""

    def __init__(self, kafka: MemoryKafka, application: str) -> None:
        self._kafka = kafka
        self._topic = topic_name(application, CONTROL)
        self._topic_id: str | None = None
        self._next_offset = -1
        self._told: dict[str, bytes] = {}
        self._closed = False

    def poll(self, seconds: float) -> Mapping[str, bytes | None] | None:
        self._kafka.wait(lambda: self._closed or (not self._kafka.down and self._something_came()), seconds)
        if self._closed:
            return None
        try:
            return self._take()
        except KafkaUnreachable:
            return {} if self._topic_id is not None else None

    def _take(self) -> dict[str, bytes | None] | None:
        topic_id = self._kafka.topic_id(self._topic)
        if topic_id is None:
            self._topic_id, self._next_offset = None, -1
            return None
        known = topic_id == self._topic_id
        end = self._kafka.end(self._topic, 0)
        read: dict[str, bytes | None] = {} if known else dict.fromkeys(self._told)
        start = self._next_offset if known else 0
        read |= {key.decode(): value for _, key, value in self._kafka.records(self._topic, 0, start, end)}
        changes = {name: value for name, value in read.items() if self._told.get(name) != value}
        latest: dict[str, bytes | None] = {**self._told, **changes}
        self._told = {name: value for name, value in latest.items() if value is not None}
        self._topic_id, self._next_offset = topic_id, end
        return changes

    def close(self) -> None:
        self._closed = True
        self._kafka.change(lambda: None)

    def _something_came(self) -> bool:
        [end] = self._kafka.ends([(self._topic, 0)])
        return end not in (-1, self._next_offset)


class MemoryReplicaGroup:
    """ReplicaGroup. Waiting ends when somebody joins, leaves or lets something go."""

    def __init__(self, kafka: MemoryKafka, group: str) -> None:
        self._kafka = kafka
        self._shares = kafka.replica_group(group)
        self._member = self._shares.join()
        self._share: frozenset[Partition] | None = None
        self._closed = False

    def poll(self, states: Mapping[str, int], seconds: float) -> frozenset[Partition] | None:
        def changed() -> bool:
            if self._closed or self._kafka.down:
                return self._closed
            known, self._share = self._share, self._shares.share(self._member, states)
            return self._share != known

        before = self._share
        self._kafka.wait(changed, seconds)
        if self._share != before:
            self._kafka.change(lambda: None)  # whoever waits for what this one has let go
        return self._share

    def close(self) -> None:
        self._closed = True
        self._kafka.change(lambda: self._shares.leave(self._member))

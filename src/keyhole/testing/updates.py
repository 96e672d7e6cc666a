"""Updates topics on a Kafka in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyhole.changelog.base import LogExtent, Partition, RefusedRecord, UpdatesRun
from keyhole.changelog.settings import dead_letter_topic, updates_topic_name
from keyhole.errors import ChangelogRecreated, KafkaUnreachable
from keyhole.protocol.updates import LoggedUpdate, Record, encode
from keyhole.testing.memory_kafka import MemoryKafka


class MemoryUpdatesTopics:
    """UpdatesTopics of one application on a MemoryKafka. Any thread; never blocks."""

    def __init__(self, kafka: MemoryKafka, application: str) -> None:
        self._kafka = kafka
        self._application = application
        # States whose topic the last look did not find.
        self._absent: set[str] = set()

    def ensure(self, state: str, key_groups: int, topic_id: str, deadline_seconds: float) -> str:
        topic = updates_topic_name(self._application, state)
        if topic_id and self._kafka.topic_id(topic) != topic_id:
            raise ChangelogRecreated(f"topic {topic} is gone, or was made anew", topic=topic)
        return self._kafka.ensure(topic, key_groups)

    def check_new(self, state: str, key_groups: int, deadline_seconds: float) -> None:
        self._kafka.check_name(updates_topic_name(self._application, state))

    def extents(
        self, key_groups: Mapping[str, Sequence[int]], deadline_seconds: float
    ) -> Mapping[Partition, LogExtent]:
        self._kafka.reach()
        found = {}
        for state, groups in key_groups.items():
            topic = updates_topic_name(self._application, state)
            for group in groups:
                end = self._kafka.end(topic, group)
                records = self._kafka.records(topic, group, 0, end)
                found[Partition(state, group)] = LogExtent(records[0][0] if records else end, end)
        return found

    def lost(self, topic_ids: Mapping[str, str], deadline_seconds: float) -> Sequence[str]:
        found = {state: self._kafka.topic_id(updates_topic_name(self._application, state)) for state in topic_ids}
        before, self._absent = self._absent, {state for state, of in found.items() if of is None}
        # No time passes here: of one that is not there the second look counts.
        if new := self._absent - before:
            raise KafkaUnreachable(f"the Kafka in memory has not heard of the updates topics of {sorted(new)}")
        return [state for state, topic_id in topic_ids.items() if found[state] != topic_id]

    def write(self, state: str, key_groups: int, value: bytes, deadline_seconds: float) -> None:
        for group in range(key_groups):
            self._kafka.append(updates_topic_name(self._application, state), group, value)

    def put_aside(self, refused: Sequence[RefusedRecord], deadline_seconds: float) -> None:
        for record in refused:
            topic = dead_letter_topic(updates_topic_name(self._application, record.partition.state))
            self._kafka.ensure(topic, 1)
            self._kafka.append(topic, 0, record.update.value)

    def close(self) -> None:
        """Part of UpdatesTopics; there is nothing to close."""


class MemoryUpdatesTail:
    """UpdatesTail. A poll takes at most `most` records of each key group; waiting ends with the next record.

    Attributes:
        most: May be changed between two polls.
    """

    def __init__(self, kafka: MemoryKafka, application: str, topic_ids: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._application = application
        self._topic_ids = topic_ids
        self._next: dict[Partition, int] = {}
        # Whose end was given since the last record.
        self._told: set[Partition] = set()
        self._closed = False
        self.most = 1_000

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        self._told = {part for part in self._told if self._next.get(part) == offsets.get(part)}
        self._next = dict(offsets)

    def poll(self, seconds: float) -> Sequence[UpdatesRun]:
        self._kafka.wait(lambda: self._closed or (not self._kafka.down and self._something_came()), seconds)
        if self._closed or self._kafka.down:
            return []
        try:
            runs = [self._run(part) for part in self._next]
        except KafkaUnreachable:
            return []
        return [run for run in runs if run is not None]

    def close(self) -> None:
        self._closed = True
        self._kafka.change(lambda: None)

    def _place(self, part: Partition) -> tuple[str, int]:
        return updates_topic_name(self._application, part.state), part.key_group

    def _something_came(self) -> bool:
        ends = self._kafka.ends(self._place(part) for part in self._next)
        return any(
            end != at or part not in self._told for end, (part, at) in zip(ends, self._next.items(), strict=True)
        )

    def _run(self, part: Partition) -> UpdatesRun | None:
        topic, number = self._place(part)
        start = self._next[part]
        if self._kafka.topic_id(topic) != self._topic_ids[part.state]:
            raise ChangelogRecreated(f"topic {topic} is gone, or was made anew", topics=topic)
        end = self._kafka.end(topic, number)
        records = self._kafka.records(topic, number, 0, end)
        if not start <= end or (records and records[0][0] > start) or (not records and start < end):
            raise ChangelogRecreated(
                f"topic {topic} does not have offset {start}", state=part.state, partition=number, offset=start
            )
        found = [LoggedUpdate(at, int.from_bytes(key, "big"), value) for at, key, value in records if at >= start]
        if not found and part in self._told:
            return None
        taken = found[: self.most]
        whole = len(taken) == len(found)
        self._next[part] = end if whole else taken[-1].offset + 1
        if whole:
            self._told.add(part)
        else:
            self._told.discard(part)
        return UpdatesRun(part, start, taken, end if whole else None, 0 if whole else end)


def send(kafka: MemoryKafka, application: str, state: str, key_group: int, record: Record) -> int:
    """Appends a record to a state's updates topic. Returns its offset."""
    return kafka.append(updates_topic_name(application, state), key_group, encode(record))

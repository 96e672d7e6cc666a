"""Updates topics on Kafka: made or checked, where their partitions begin and end, and what else is written beside."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from functools import partial

from keyhole.changelog.base import LogExtent, Partition, RefusedRecord
from keyhole.changelog.kafka.absences import Absences, unheard_of
from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline, unreachable
from keyhole.changelog.kafka.dead_letter_topics import KafkaLetters
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.changelog.kafka.sending import IN_ORDER, Acknowledged, TopicSender
from keyhole.changelog.settings import UPDATES, updates_topic_name
from keyhole.errors import ChangelogRecreated

_WAIT_SECONDS = 0.1


class KafkaUpdatesTopics:
    """UpdatesTopics of one application. Blocks; one thread at a time; close it."""

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._application = application
        # Made when first asked: an owner asks several times a second, and a standby each second.
        self._topics: Topics | None = None
        self._offsets: TopicOffsets | None = None
        self._letters: dict[str, KafkaLetters] = {}
        self._absences = Absences()

    def ensure(self, state: str, key_groups: int, topic_id: str, deadline_seconds: float) -> str:
        deadline = Deadline(deadline_seconds)
        topic = updates_topic_name(self._application, state)
        if topic_id:
            found = self._known().describe(topic, deadline)
            if found is None or str(found.topic_id) != topic_id:
                raise ChangelogRecreated(
                    f"topic {topic} {'is gone' if found is None else 'was deleted and made anew'}, and with it the "
                    "updates that were not applied yet: drop the query (keyhole drop), and feed it from the start",
                    topic=topic,
                )
        return self._known().ensure(topic, key_groups, deadline)

    def check_new(self, state: str, key_groups: int, deadline_seconds: float) -> None:
        deadline = Deadline(deadline_seconds)
        self._known().check_new(updates_topic_name(self._application, state), key_groups, deadline)

    def extents(
        self, key_groups: Mapping[str, Sequence[int]], deadline_seconds: float
    ) -> Mapping[Partition, LogExtent]:
        deadline = Deadline(deadline_seconds)
        asked = {updates_topic_name(self._application, state): groups for state, groups in key_groups.items()}
        self._offsets = offsets = self._offsets or TopicOffsets(self._bootstrap_servers)
        # The start first: it only grows, so it is never above the end.
        starts, ends = offsets.starts(asked, deadline.left), offsets.ends(asked, deadline.left)
        found = {}
        for state, groups in key_groups.items():
            topic = updates_topic_name(self._application, state)
            for group in groups:
                if (topic, group) not in starts or (topic, group) not in ends:
                    raise ChangelogRecreated(f"topic {topic} is gone, or has no partition {group}", topic=topic)
                found[Partition(state, group)] = LogExtent(starts[topic, group], ends[topic, group])
        return found

    def lost(self, topic_ids: Mapping[str, str], deadline_seconds: float) -> Sequence[str]:
        deadline = Deadline(deadline_seconds)
        lost, absent = [], []
        for state, topic_id in topic_ids.items():
            topic = updates_topic_name(self._application, state)
            found = self._known().describe(topic, deadline)
            if found is not None:
                self._absences.found(topic)
                if str(found.topic_id) != topic_id:
                    lost.append(state)
            elif self._absences.is_gone(topic, time.monotonic()):
                lost.append(state)
            else:
                absent.append(topic)
        if absent and not lost:
            raise unheard_of(self._bootstrap_servers, *absent)
        return lost

    def write(self, state: str, key_groups: int, value: bytes, deadline_seconds: float) -> None:
        topic = updates_topic_name(self._application, state)
        deadline, left = Deadline(deadline_seconds), set(range(key_groups))
        with closing(TopicSender(self._bootstrap_servers, topic, IN_ORDER)) as sender:
            for group in range(key_groups):
                sender.send(value, _discarding(left, group), partition=group, deadline=deadline)
            self._await(left, sender, f"write to topic {topic}", deadline)

    def put_aside(self, refused: Sequence[RefusedRecord], deadline_seconds: float) -> None:
        deadline = Deadline(deadline_seconds)
        for state in dict.fromkeys(record.partition.state for record in refused):
            topic = updates_topic_name(self._application, state)
            letters = self._letters.get(topic) or KafkaLetters(self._bootstrap_servers, topic)
            self._letters[topic] = letters
            try:
                self._put(letters, [record for record in refused if record.partition.state == state], topic, deadline)
            except BaseException:
                self._letters.pop(topic).close()
                raise

    def _put(self, letters: KafkaLetters, refused: Sequence[RefusedRecord], topic: str, deadline: Deadline) -> None:
        left = set(range(len(refused)))
        for at, ((_, group), update, reason) in enumerate(refused):
            letters.put(group, update.offset, (None, update.value), reason, partial(left.discard, at), deadline)
        self._await(left, letters, f"write dead letters of topic {topic}", deadline)

    def close(self) -> None:
        for letters in self._letters.values():
            letters.close()
        self._letters.clear()
        if self._topics is not None:
            self._topics.close()
            self._topics = None
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None

    def _known(self) -> Topics:
        self._topics = self._topics or Topics(self._bootstrap_servers, UPDATES)
        return self._topics

    def _await(
        self, left: Collection[object], sent: TopicSender | KafkaLetters, doing: str, deadline: Deadline
    ) -> None:
        while left:
            if deadline.passed:
                raise unreachable(self._bootstrap_servers, doing, "it was not acknowledged in time")
            sent.poll(min(_WAIT_SECONDS, deadline.left))


def _discarding(left: set[int], number: int) -> Acknowledged:
    return lambda _: left.discard(number)

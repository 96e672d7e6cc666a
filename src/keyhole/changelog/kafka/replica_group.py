"""Which replica server has which key groups: a consumer group, used for its membership alone."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from keyhole.changelog.base import Partition
from keyhole.changelog.kafka.clients import Deadline, Settings
from keyhole.changelog.kafka.group_members import member_settings, take_paused
from keyhole.changelog.settings import topic_name

_SESSION_SECONDS = 10
# Members hear of each other this late.
_HEARTBEAT_SECONDS = 1
_NEW_TOPIC_SECONDS = 5


class KafkaReplicaGroup:
    """ReplicaGroup on Kafka's cooperative-sticky assignment. One thread at a time.

    Nothing is fetched: partitions are paused as they come. No offset is committed. The group is subscribed to the state
    topics by their names: a pattern would also take in the control topic, and states of other queries.
    """

    def __init__(self, bootstrap_servers: str, application: str, group: str) -> None:
        self._application = application
        self._consumer = Consumer(_settings(bootstrap_servers, group))
        self._states: Mapping[str, int] = {}
        self._share: set[tuple[str, int]] = set()
        self._settled = False

    def poll(self, states: Mapping[str, int], seconds: float) -> frozenset[Partition] | None:
        if states.keys() != self._states.keys():
            self._subscribe(states)
        self._states = dict(states)
        deadline = Deadline(seconds)
        before = self._known()
        while True:
            self._consumer.poll(deadline.left)  # callbacks come in here; there are no messages
            known = self._known()
            if known != before or deadline.passed:
                return known

    def close(self) -> None:
        self._consumer.close()

    def _known(self) -> frozenset[Partition] | None:
        if not self._states:
            return frozenset()
        if not self._settled:
            return None
        states = {topic_name(self._application, state): state for state in self._states}
        return frozenset(
            Partition(states[topic], number)
            for topic, number in self._share
            if topic in states and number < self._states[states[topic]]
        )

    def _subscribe(self, states: Mapping[str, int]) -> None:
        self._settled = False
        if states:
            topics = sorted(topic_name(self._application, state) for state in states)
            self._consumer.subscribe(topics, self._assigned, self._revoked, self._lost)
        else:
            self._consumer.unsubscribe()

    def _assigned(self, consumer: Consumer, added: list[TopicPartition]) -> None:
        take_paused(consumer, added)
        self._share |= {(part.topic, part.partition) for part in added}
        self._settled = True

    def _revoked(self, consumer: Consumer, removed: list[TopicPartition]) -> None:
        self._share -= {(part.topic, part.partition) for part in removed}
        self._settled = False  # until the group has agreed on who takes them

    def _lost(self, consumer: Consumer, removed: list[TopicPartition]) -> None:
        """The group has gone on without this member: what it has is nobody else's business until it is back."""
        self._share -= {(part.topic, part.partition) for part in removed}
        self._settled = False


def _settings(bootstrap_servers: str, group: str) -> Settings:
    return {
        **member_settings(
            bootstrap_servers, group, session_seconds=_SESSION_SECONDS, heartbeat_seconds=_HEARTBEAT_SECONDS
        ),
        # A topic that appears after it was subscribed to (5 minutes by default).
        "topic.metadata.refresh.interval.ms": _NEW_TOPIC_SECONDS * 1000,
    }

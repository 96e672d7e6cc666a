"""Changelog topics: made or checked, and writers fenced."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType, TopicDescription

from keyhole.changelog.base import TopicRight
from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of
from keyhole.changelog.kafka.offsets import await_partitions
from keyhole.changelog.kafka.rights import check_ids, check_rights
from keyhole.changelog.kafka.transactions import Transactions
from keyhole.changelog.settings import (
    CHANGELOG,
    CONTROL,
    TopicUse,
    differences,
    refused_name,
    replicas,
    topic_name,
    topic_settings,
)
from keyhole.errors import ChangelogRecreated, InvalidConfiguration, TopicMismatch
from keyhole.model.state import StateDescriptor

_RETRY_SECONDS = 0.05
_Result = TypeVar("_Result")


class KafkaAdmin:
    """ChangelogAdmin. One thread at a time, but for `fence`, which any number may call."""

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._application = application

    def ensure(self, descriptor: StateDescriptor, deadline_seconds: float) -> str:
        deadline = Deadline(deadline_seconds)
        topic = self._topic(descriptor)
        with closing(Topics(self._bootstrap_servers)) as topics:
            if descriptor.topic_id:
                self._found(topics, descriptor, deadline)
            return topics.ensure(topic, descriptor.key_groups, deadline)

    def check(self, descriptor: StateDescriptor, deadline_seconds: float) -> bool:
        deadline = Deadline(deadline_seconds)
        with closing(Topics(self._bootstrap_servers)) as topics:
            found = self._found(topics, descriptor, deadline)
            topic = self._topic(descriptor)
            if found is not None:
                topics.check(topic, descriptor.key_groups, found, deadline)
            else:
                topics.check_new(topic, descriptor.key_groups, deadline)
            return found is not None

    def _topic(self, descriptor: StateDescriptor) -> str:
        if descriptor.state == CONTROL:
            raise InvalidConfiguration(f"no state may be called {CONTROL!r}: the control topic has this name")
        return topic_name(self._application, descriptor.state)

    def _found(self, topics: Topics, descriptor: StateDescriptor, deadline: Deadline) -> TopicDescription | None:
        """The topic that is there. Raises ChangelogRecreated: it isn't the one that the state has."""
        topic = self._topic(descriptor)
        found = topics.describe(topic, deadline)
        if descriptor.topic_id and (found is None or str(found.topic_id) != descriptor.topic_id):
            raise ChangelogRecreated(
                f"topic {topic} {'is gone' if found is None else 'was deleted and made anew'}, and with it the "
                "durable copy of the state: restore the topic from a copy, or drop the query (keyhole drop) and begin "
                "again with a new checkpoint",
                topic=topic,
            )
        return found

    def check_rights(self, needed: Mapping[str, TopicRight], deadline_seconds: float) -> None:
        check_rights(self._bootstrap_servers, needed, deadline_seconds)

    def check_ids(self, prefixes: Sequence[str], deadline_seconds: float) -> None:
        check_ids(self._bootstrap_servers, prefixes, deadline_seconds)

    def delete(self, topics: Sequence[str], deadline_seconds: float) -> None:
        deadline = Deadline(deadline_seconds)
        with closing(Topics(self._bootstrap_servers)) as of:
            for topic in topics:
                of.delete(topic, deadline)

    def fence(self, grant: str, deadline_seconds: float) -> None:
        fencer = Transactions(self._bootstrap_servers, grant)
        try:
            fencer.open(deadline_seconds)
        finally:
            fencer.close()


class Topics:
    """Makes topics of one use, and checks those that are there. One thread at a time; close it."""

    def __init__(self, bootstrap_servers: str, use: TopicUse = CHANGELOG) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._use = use
        self._admin = Admin(bootstrap_servers)

    def ensure(self, topic: str, partitions: int, deadline: Deadline) -> str:
        """See ChangelogAdmin.ensure; returns the topic's id."""
        found = self.describe(topic, deadline)
        if found is None:
            self._create(topic, partitions, deadline)
            found = self._appeared(topic, deadline)
            await_partitions(self._bootstrap_servers, {topic: partitions}, deadline)
        self.check(topic, partitions, found, deadline)
        return str(found.topic_id)

    def describe(self, topic: str, deadline: Deadline) -> TopicDescription | None:
        """What the cluster knows of the topic; None: it has none of this name."""
        try:
            futures = self._admin.client.describe_topics(TopicCollection([topic]), request_timeout=deadline.left)
            future: Future[TopicDescription] = futures[topic]
            return self._result(future, f"describe topic {topic}", deadline)
        except KafkaException as exception:
            if error_of(exception).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise as_ours(error_of(exception), self._bootstrap_servers, f"describe topic {topic}") from exception

    def delete(self, topic: str, deadline: Deadline) -> None:
        """Returns once no broker that is asked knows the topic; one that is not there is passed over."""
        doing = f"delete topic {topic}"
        try:
            futures = self._admin.client.delete_topics(
                [topic], operation_timeout=deadline.left, request_timeout=deadline.left
            )
            self._result(futures[topic], doing, deadline)
        except KafkaException as exception:
            if error_of(exception).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise as_ours(error_of(exception), self._bootstrap_servers, doing) from exception
        # The controller has deleted it; the broker that is asked next may not have heard of that.
        while self.describe(topic, deadline) is not None:
            if deadline.passed:
                raise as_ours(KafkaError(KafkaError._TIMED_OUT), self._bootstrap_servers, doing)
            time.sleep(_RETRY_SECONDS)

    def check_new(self, topic: str, partitions: int, deadline: Deadline) -> None:
        """Raises InvalidConfiguration where Kafka would not make the topic, which must not exist yet."""
        self._create(topic, partitions, deadline, validate_only=True)

    def _create(self, topic: str, partitions: int, deadline: Deadline, *, validate_only: bool = False) -> None:
        doing = f"make topic {topic}"
        try:
            cluster = self._result(self._admin.client.describe_cluster(request_timeout=deadline.left), doing, deadline)
            copies = replicas(len(cluster.nodes))
            new = NewTopic(topic, partitions, copies, config=topic_settings(copies, self._use))
            futures = self._admin.client.create_topics(
                [new], operation_timeout=deadline.left, request_timeout=deadline.left, validate_only=validate_only
            )
            self._result(futures[topic], doing, deadline)
        except KafkaException as exception:
            error = error_of(exception)
            if error.code() == KafkaError.TOPIC_EXCEPTION:
                raise refused_name(topic, error.str()) from exception
            # Somebody else was faster: the check that follows finds out whether it is the right one.
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise as_ours(error, self._bootstrap_servers, doing) from exception

    def _appeared(self, topic: str, deadline: Deadline) -> TopicDescription:
        """Waits until a new topic is known and every partition has a leader."""
        while True:
            found = self.describe(topic, deadline)
            if found is not None and all(part.leader is not None and part.leader.id >= 0 for part in found.partitions):
                return found
            if deadline.passed:
                error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                raise as_ours(error, self._bootstrap_servers, f"make topic {topic}")
            time.sleep(_RETRY_SECONDS)

    def check(self, topic: str, partitions: int, found: TopicDescription, deadline: Deadline) -> None:
        """Compares the topic with what ChangelogAdmin.ensure would make. Raises TopicMismatch where it differs."""
        doing = f"read the settings of topic {topic}"
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            futures = self._admin.client.describe_configs([resource], request_timeout=deadline.left)
            entries = self._result(futures[resource], doing, deadline)
        except KafkaException as exception:
            raise as_ours(error_of(exception), self._bootstrap_servers, doing) from exception
        actual = {name: str(entry.value) for name, entry in entries.items()}
        wrong = differences(actual, min(len(part.replicas) for part in found.partitions), self._use)
        if len(found.partitions) != partitions:
            wrong.insert(0, f"it has {len(found.partitions)} partitions, the state has {partitions} key groups")
        if wrong:
            raise TopicMismatch(
                f"topic {topic} is not as Keyhole needs it: {'; '.join(wrong)}. Change the topic (its partitions can't "
                "be changed: use another name, or delete the topic and with it the state, if no job feeds it)",
                topic=topic,
                differences="; ".join(wrong),
            )

    def _result(self, future: Future[_Result], doing: str, deadline: Deadline) -> _Result:
        try:
            # The client ends it by itself at the deadline; the second more is for its answer to get here.
            return answer(future, deadline.left + 1)
        except TimeoutError as error:
            late = KafkaError(KafkaError._TIMED_OUT)
            raise as_ours(late, self._bootstrap_servers, doing) from error

    def close(self) -> None:
        self._admin.close()

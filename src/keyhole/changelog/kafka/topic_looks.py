"""Looks at a Kafka cluster and at topics of ours that are there, and changes nothing: for `keyhole doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, ConfigResource, DescribeClusterResult, ResourceType, TopicDescription

from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import Deadline, TopicNames, as_ours, error_of
from keyhole.changelog.kafka.rights import withheld
from keyhole.changelog.settings import TopicUse, differences

_Result = TypeVar("_Result")

# What servers and jobs do with topics of ours; of a topic that is there.
_NEEDED = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)


class SeenTopic(NamedTuple):
    """A topic as it is.

    Attributes:
        replicas: Of the partition that has the fewest.
        leaderless: How many partitions nobody leads.
        lagging: How many partitions have replicas that are not in sync.
        below_minimum: How many of these have fewer in sync than `min.insync.replicas`: they take no writes.
        wrong: Settings with which committed changes could be lost, each in words.
        refused: What the caller may not do with it, of what servers and jobs do.
    """

    topic_id: str
    partitions: int
    replicas: int
    leaderless: int
    lagging: int
    below_minimum: int
    wrong: tuple[str, ...]
    refused: tuple[str, ...]


class SeenCluster(NamedTuple):
    """The cluster, and those of the topics that were asked for which it has."""

    brokers: int
    topics: Mapping[str, SeenTopic]


def look_at(bootstrap_servers: str, topics: Mapping[str, TopicUse], deadline_seconds: float) -> SeenCluster:
    """Blocks, at most that long.

    Args:
        topics: Which ones, and what each is for.

    Raises:
        KafkaUnreachable, InvalidConfiguration: Kafka does not answer in time, or refuses.
    """
    deadline = Deadline(deadline_seconds)
    doing = "be asked for its brokers and topics"
    try:
        # First, as it also says why Kafka lets nobody in.
        TopicNames(bootstrap_servers).ask(deadline.left)
        with closing(Admin(bootstrap_servers)) as admin:
            cluster: DescribeClusterResult = _answer(
                admin.client.describe_cluster(request_timeout=deadline.left), deadline
            )
            brokers = len(cluster.nodes)
            described = (
                admin.client.describe_topics(
                    TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=deadline.left
                )
                if topics
                else {}
            )
            found = {name: of for name, future in described.items() if (of := _there(future, deadline)) is not None}
            resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in found}
            configs = (
                admin.client.describe_configs(list(resources.values()), request_timeout=deadline.left) if found else {}
            )
            seen = {
                name: _seen(of, _settings(configs[resources[name]], deadline), topics[name])
                for name, of in found.items()
            }
    except KafkaException as exception:
        raise as_ours(error_of(exception), bootstrap_servers, doing) from exception
    except TimeoutError as exception:
        raise as_ours(KafkaError(KafkaError._TIMED_OUT), bootstrap_servers, doing) from exception
    return SeenCluster(brokers, seen)


def _answer(future: Future[_Result], deadline: Deadline) -> _Result:
    return answer(future, deadline.left + 1)


def _there(future: Future[TopicDescription], deadline: Deadline) -> TopicDescription | None:
    try:
        return _answer(future, deadline)
    except KafkaException as exception:
        # To one who may not even know of it, Kafka says that it isn't there, or this.
        if error_of(exception).code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            return None
        raise


def _settings(future: Future[Mapping[str, object]], deadline: Deadline) -> dict[str, str] | None:
    try:
        entries = _answer(future, deadline)
    except KafkaException as exception:
        if error_of(exception).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return None
        raise
    return {name: str(getattr(entry, "value", "")) for name, entry in entries.items()}


def _seen(found: TopicDescription, settings: Mapping[str, str] | None, use: TopicUse) -> SeenTopic:
    partitions = found.partitions
    replicas = min(len(part.replicas) for part in partitions)
    least = int((settings or {}).get("min.insync.replicas", "1"))
    refused = tuple(withheld(found, _NEEDED))
    return SeenTopic(
        topic_id=str(found.topic_id),
        partitions=len(partitions),
        replicas=replicas,
        leaderless=sum(part.leader is None or part.leader.id < 0 for part in partitions),
        lagging=sum(len(part.isr) < len(part.replicas) for part in partitions),
        below_minimum=sum(len(part.isr) < least for part in partitions),
        wrong=tuple(differences(settings, replicas, use)) if settings is not None else (),
        refused=refused if settings is not None else (*refused, "DESCRIBE_CONFIGS"),
    )

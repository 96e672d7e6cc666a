"""What a look at Kafka says of the brokers and of Keyhole's topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keyhole.changelog.kafka.topic_looks import SeenCluster, SeenTopic, look_at
from keyhole.changelog.settings import (
    CHANGELOG,
    CONTROL,
    UPDATES,
    TopicUse,
    replicas,
    topic_name,
    updates_topic_name,
)
from keyhole.cli.doctor.diagnosis import Diagnosis, fault, ok, warning
from keyhole.errors import KeyholeError
from keyhole.v1 import state_pb2


def kafka_findings(
    bootstrap_servers: str, states: Sequence[state_pb2.StateDescriptor], deadline_seconds: float
) -> Iterator[Diagnosis]:
    """Blocks, at most that long. What Kafka refuses is a finding.

    Args:
        states: Whose topics are looked at.
    """
    about = f"Kafka {bootstrap_servers}"
    uses, ids = _topics(states)
    try:
        cluster = look_at(bootstrap_servers, uses, deadline_seconds)
    except KeyholeError as error:
        yield fault(about, error.message, "start Kafka, or correct --bootstrap-servers or its KEYHOLE_KAFKA_* settings")
        return
    brokers = f"{cluster.brokers} broker{'s' * (cluster.brokers != 1)}"
    yield ok(about, f"answers, {brokers}")
    yield from topic_findings(cluster, uses, ids)


def topic_findings(
    cluster: SeenCluster, uses: dict[str, TopicUse], expected: dict[str, tuple[str, int]]
) -> Iterator[Diagnosis]:
    """Pure.

    Args:
        uses: What each topic is for.
        expected: The id and the number of partitions of those of which they are known.
    """
    for name in sorted(uses):
        about, seen = f"topic {name}", cluster.topics.get(name)
        if seen is None:
            yield fault(
                about,
                "it is not there, or this machine's Kafka user may not know of it",
                "restore it from a copy, or drop the query (keyhole drop) and begin again; or give the user DESCRIBE",
            )
            continue
        found = list(_of_topic(about, seen, cluster.brokers, expected.get(name)))
        yield from found
        if not found:
            count = f"{seen.partitions} partition{'s' * (seen.partitions != 1)}"
            yield ok(about, f"as Keyhole needs it: {count}, replication {seen.replicas}")


def _of_topic(about: str, seen: SeenTopic, brokers: int, expected: tuple[str, int] | None) -> Iterator[Diagnosis]:
    if expected is not None:
        topic_id, partitions = expected
        if topic_id and seen.topic_id != topic_id:
            yield fault(
                about,
                "it was deleted and made anew: the servers' copies are of the one before",
                "restore the topic from a copy, or drop the query (keyhole drop) and begin again",
            )
        if partitions and seen.partitions != partitions:
            yield fault(
                about,
                f"it has {seen.partitions} partitions, and the state has {partitions} key groups",
                "partitions can't be taken away: drop the query (keyhole drop) and begin again, or restore a savepoint",
            )
    for wrong in seen.wrong:
        yield fault(about, wrong, "alter the topic so: kafka-configs --alter --entity-type topics")
    if seen.leaderless:
        yield fault(
            about, f"{seen.leaderless} of its partitions have no leader", "start the brokers that have them again"
        )
    if seen.below_minimum:
        yield fault(
            about,
            f"{seen.below_minimum} of its partitions have fewer replicas in sync than min.insync.replicas: no epoch "
            "can be committed",
            "start the brokers that are away again",
        )
    elif seen.lagging:
        yield warning(
            about,
            f"{seen.lagging} of its partitions have replicas that are not in sync",
            "look at the brokers: with one more away, no epoch can be committed",
        )
    if seen.replicas < replicas(brokers):
        yield warning(
            about,
            f"its replication is {seen.replicas}, and there are {brokers} brokers",
            f"give it {replicas(brokers)} replicas (kafka-reassign-partitions): with one it is lost with its broker",
        )
    if seen.refused:
        yield warning(
            about,
            f"this machine's Kafka user may not {', '.join(seen.refused)}",
            "jobs and servers need these rights; where none run here as this user, that is as it should be",
        )


def _topics(
    states: Sequence[state_pb2.StateDescriptor],
) -> tuple[dict[str, TopicUse], dict[str, tuple[str, int]]]:
    uses, expected = dict[str, TopicUse](), dict[str, tuple[str, int]]()
    for of in states:
        uses[topic_name(of.application, CONTROL)] = CHANGELOG
        changelog = topic_name(of.application, of.state)
        uses[changelog], expected[changelog] = CHANGELOG, (of.topic_id, of.key_groups)
        if of.updates_topic_id:
            updates = updates_topic_name(of.application, of.state)
            uses[updates], expected[updates] = UPDATES, (of.updates_topic_id, of.key_groups)
    return uses, expected

"""A changelog of each kind: the one on Kafka, and the shipped fake."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from keyhole.changelog.base import Changelog
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from tests.support.changelogs import DEADLINE, Cluster, descriptor, grant, key
from tests.support.topics import delete_topic


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.spark)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    application = f"app-{uuid.uuid4().hex[:12]}"
    if request.param == "memory":
        memory = MemoryKafka()
        yield Cluster(application, lambda: MemoryChangelog(memory, application), memory.delete_topic, memory.abort)
    else:
        servers = request.getfixturevalue("kafka")

        def abort(topic: str, partition: int, records: int) -> None:
            producer = Producer({"bootstrap.servers": servers, "transactional.id": grant()})
            producer.init_transactions(DEADLINE)
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(topic, b"never", key(partition, "never"), partition)
            producer.flush(DEADLINE)
            producer.abort_transaction(DEADLINE)

        yield Cluster(
            application, lambda: KafkaChangelog(servers, application), lambda name: delete_topic(servers, name), abort
        )


@pytest.fixture
def changelog(cluster: Cluster) -> Changelog:
    """A changelog whose state "a" exists."""
    made = cluster.changelog()
    made.admin().ensure(descriptor(cluster), DEADLINE)
    return made

"""A changelog of each kind: the one on Kafka, and the shipped fake."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from keyhole.changelog.base import Changelog
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from tests.support.changelogs import DEADLINE, Cluster, descriptor, grant, key


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.spark)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    application = f"app-{uuid.uuid4().hex[:12]}"
    if request.param == "memory":
        memory = MemoryKafka()
        yield Cluster(application, lambda: MemoryChangelog(memory, application), memory.delete_topic, memory.abort)
    else:
        servers = request.getfixturevalue("kafka")

        def delete_topic(name: str) -> None:
            admin = AdminClient({"bootstrap.servers": servers})
            admin.delete_topics([name])[name].result(DEADLINE)
            until = time.monotonic() + DEADLINE
            while name in admin.list_topics(timeout=DEADLINE).topics:  # the broker learns of it a little later
                assert time.monotonic() < until
                time.sleep(0.01)

        def abort(topic: str, partition: int, records: int) -> None:
            producer = Producer({"bootstrap.servers": servers, "transactional.id": grant()})
            producer.init_transactions(DEADLINE)
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(topic, b"never", key(partition, "never"), partition)
            producer.flush(DEADLINE)
            producer.abort_transaction(DEADLINE)

        yield Cluster(application, lambda: KafkaChangelog(servers, application), delete_topic, abort)


@pytest.fixture
def changelog(cluster: Cluster) -> Changelog:
    """A changelog whose state "a" exists."""
    made = cluster.changelog()
    made.admin().ensure(descriptor(cluster), DEADLINE)
    return made

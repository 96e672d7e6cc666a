"""Topics of a real Kafka, made, changed and deleted for tests: each call returns once the broker goes by it.

Kafka's answer comes from its controller, and the broker learns of it later. Until then a new topic takes no records, or
is not known; a new partition is refused; a topic that was deleted is still listed; and a setting is the old one.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.offsets import await_partitions
from tests.support.waiting import LONG_SECONDS, until


def make_topic(kafka: str, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
    """A new one, whose partitions all take records."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, partitions, 1, config=dict(settings or {}))])[topic].result(LONG_SECONDS)
    await_partitions(kafka, {topic: partitions}, Deadline(LONG_SECONDS))


def grow_topic(kafka: str, topic: str, partitions: int) -> None:
    """It has so many partitions from then on, which all take records."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(LONG_SECONDS)
    await_partitions(kafka, {topic: partitions}, Deadline(LONG_SECONDS))


def delete_topic(kafka: str, topic: str) -> None:
    """It is gone, and the broker says so."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(LONG_SECONDS)
    until(lambda: topic not in admin.list_topics(timeout=LONG_SECONDS).topics, LONG_SECONDS)


def alter_topic(kafka: str, topic: str, settings: Mapping[str, str]) -> None:
    """It has these settings, and the broker tells them."""
    admin = AdminClient({"bootstrap.servers": kafka})  # its futures end with it
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([changed])[changed].result(LONG_SECONDS)

    def has_them() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        described = admin.describe_configs([asked])[asked].result(LONG_SECONDS)
        return all(described[name].value == value for name, value in settings.items())

    until(has_them, LONG_SECONDS)

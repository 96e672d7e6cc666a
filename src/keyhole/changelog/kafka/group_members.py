"""Members of a consumer group that is used for its membership alone: who has which partition. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from keyhole.changelog.kafka.clients import Settings, common_settings


def member_settings(
    bootstrap_servers: str, group: str, *, session_seconds: float, heartbeat_seconds: float
) -> Settings:
    """The settings of a member's consumer.

    Args:
        session_seconds: A member that dies without leaving is missed after this long (45 s by default).
        heartbeat_seconds: Members hear of each other this late.
    """
    return {
        **common_settings(bootstrap_servers),
        "group.id": group,
        # Moves few, and those that stay are never taken away for a moment.
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "session.timeout.ms": int(session_seconds * 1000),
        "heartbeat.interval.ms": int(heartbeat_seconds * 1000),
        # Nothing is to be fetched; between assigning and pausing there is a moment.
        "queued.max.messages.kbytes": 1024,
        "fetch.message.max.bytes": 64 << 10,
    }


def take_paused(consumer: Consumer, added: Sequence[TopicPartition]) -> None:
    """Takes partitions that the member was given. For `on_assign`."""
    # A position of our own: nobody has to look for a committed one.
    partitions = [TopicPartition(part.topic, part.partition, OFFSET_END) for part in added]
    consumer.incremental_assign(partitions)
    consumer.pause(partitions)

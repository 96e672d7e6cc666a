"""Asks Kafka's controller which topics there are not: a broker without one may only not have heard of it yet."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from keyhole.changelog.kafka.admin_client import Admin, answer


def unmade(bootstrap_servers: str, topics: Collection[str], timeout_seconds: float) -> set[str]:
    """Those of the topics that were never made, or are deleted. Blocks.

    The question is whether they could be made; nothing is. Who may not make topics gets no answer: then none is named,
    as where no broker answers in time.
    """
    if not topics:
        return set()
    found = set()
    with closing(Admin(bootstrap_servers)) as admin:
        asked = admin.client.create_topics(
            [NewTopic(topic, 1) for topic in topics], request_timeout=timeout_seconds, validate_only=True
        )
        for topic, future in asked.items():
            try:
                answer(future, timeout_seconds)
            except (KafkaException, TimeoutError):
                continue
            found.add(topic)
    return found

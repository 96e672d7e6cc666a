"""Asks Kafka's controller which topics there are not: a broker without one may only not have heard of it yet."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import error_of, is_unanswered


def unmade(bootstrap_servers: str, topics: Collection[str], timeout_seconds: float) -> set[str] | None:
    """Those of the topics that were never made, or are deleted. Blocks.

    The question is whether they could be made; nothing is. Who may not make topics gets no answer for them: none of
    them is named.

    Args:
        topics: At least one.

    Returns:
        None: nobody has answered in time.
    """
    found = set()
    with closing(Admin(bootstrap_servers)) as admin:
        asked = admin.client.create_topics(
            [NewTopic(topic, 1) for topic in topics], request_timeout=timeout_seconds, validate_only=True
        )
        for topic, future in asked.items():
            try:
                # The client ends it by itself in time; the second more is for its answer to get here.
                answer(future, timeout_seconds + 1)
            except TimeoutError:
                return None
            except KafkaException as exception:
                if is_unanswered(error_of(exception)):
                    return None
            else:
                found.add(topic)
    return found

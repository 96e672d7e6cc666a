"""What Kafka's rules let the caller do with topics: asked for, where an attempt would come too late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, TopicDescription

from keyhole.changelog.base import TopicRight
from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of
from keyhole.changelog.settings import refused_right


def withheld(found: TopicDescription, needed: Iterable[AclOperation]) -> list[str]:
    """Those of the operations that the caller may not do, by name.

    Args:
        found: Described with the operations that the caller may do. A Kafka without rules names all of them; one that
            names none does not say, as whoever may do nothing is not told of the topic either.
    """
    allowed = found.authorized_operations
    if not allowed or AclOperation.ALL in allowed:
        return []
    return [of.name for of in needed if of not in allowed]


def check_rights(bootstrap_servers: str, needed: Mapping[str, TopicRight], deadline_seconds: float) -> None:
    """As ChangelogAdmin.check_rights, by a client of its own. Blocks."""
    deadline = Deadline(deadline_seconds)
    with closing(Admin(bootstrap_servers)) as admin:
        asked = admin.client.describe_topics(
            TopicCollection(list(needed)), include_authorized_operations=True, request_timeout=deadline.left
        )
        for topic, right in needed.items():
            doing = f"describe topic {topic}"
            try:
                found = answer(asked[topic], deadline.left + 1)
            except KafkaException as exception:
                if error_of(exception).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise as_ours(error_of(exception), bootstrap_servers, doing) from exception
            except TimeoutError as exception:
                raise as_ours(KafkaError(KafkaError._TIMED_OUT), bootstrap_servers, doing) from exception
            if withheld(found, [AclOperation[right]]):
                raise refused_right(topic, right)

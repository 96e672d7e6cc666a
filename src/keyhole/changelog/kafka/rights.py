"""What Kafka's rules let the caller do: asked for, or tried where nobody is hurt, as an attempt would come too late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, ConsumerGroupDescription, TopicDescription

from keyhole.changelog.base import TopicRight
from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of
from keyhole.changelog.kafka.transactions import Transactions
from keyhole.changelog.settings import refused_group, refused_ids, refused_right, unused_id
from keyhole.errors import Fenced, InvalidConfiguration

_ID_REFUSED = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def withheld(found: TopicDescription | ConsumerGroupDescription, needed: Iterable[AclOperation]) -> list[str]:
    """Those of the operations that the caller may not do, by name.

    Args:
        found: A topic or a group, described with the operations that the caller may do. A Kafka without rules names all
            of them; one that names none does not say, as whoever may do nothing is not told of it either.
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


def check_group(bootstrap_servers: str, group: str, deadline_seconds: float) -> None:
    """Asks Kafka whether the caller may keep positions in the group, which need not be there. Blocks.

    Raises:
        InvalidConfiguration: It may not.
        KafkaUnreachable: Nobody could be asked.
    """
    deadline = Deadline(deadline_seconds)
    doing = f"describe group {group}"
    with closing(Admin(bootstrap_servers)) as admin:
        asked = admin.client.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=deadline.left
        )
        try:
            found = answer(asked[group], deadline.left + 1)
        except KafkaException as exception:
            error = error_of(exception)
            if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise refused_group(group) from exception
            raise as_ours(error, bootstrap_servers, doing) from exception
        except TimeoutError as exception:
            raise as_ours(KafkaError(KafkaError._TIMED_OUT), bootstrap_servers, doing) from exception
        if withheld(found, [AclOperation.READ]):
            raise refused_group(group)


def check_ids(bootstrap_servers: str, prefixes: Iterable[str], deadline_seconds: float) -> None:
    """As ChangelogAdmin.check_ids. Blocks.

    Kafka tells nobody what may be done with a transactional.id. It says so where one is taken, and to take one that is
    used fences whoever has it.
    """
    deadline = Deadline(deadline_seconds)
    for prefix in prefixes:
        tried = Transactions(bootstrap_servers, unused_id(prefix))
        try:
            tried.open(deadline.left)
        except Fenced:
            pass  # by another start, which tries the same
        except InvalidConfiguration as error:
            if error.facts.get("code") != KafkaError(_ID_REFUSED).name():
                raise
            raise refused_ids(prefix) from error
        finally:
            tried.close()

"""Topics of records: those that jobs read from, and write what they can't take to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import Deadline, TopicNames, as_ours, error_of, is_unanswered, unreachable
from keyhole.changelog.kafka.offsets import await_partitions
from keyhole.errors import InvalidConfiguration

_LOOK_SECONDS = 0.5
_ASK_SECONDS = 10.0


def make_topics(bootstrap_servers: str, topics: Mapping[str, int], deadline_seconds: float) -> None:
    """Makes those that there are not yet, with as many copies as the cluster makes by default. Blocks.

    Args:
        topics: How many partitions each is made with.
        deadline_seconds: A broker that only starts is waited for.

    Raises:
        KafkaUnreachable: No broker answers in time.
        InvalidConfiguration: It refuses to.
    """
    deadline = Deadline(deadline_seconds)
    wanted = [NewTopic(name, partitions) for name, partitions in topics.items()]
    new: dict[str, int] = {}
    with closing(Admin(bootstrap_servers)) as admin:
        for name, made in admin.client.create_topics(wanted, request_timeout=deadline_seconds).items():
            doing = f"make topic {name}"
            try:
                answer(made, deadline_seconds)
            except TimeoutError as error:
                raise unreachable(bootstrap_servers, doing, f"no answer within {deadline_seconds:.0f} s") from error
            except KafkaException as exception:
                refusal = error_of(exception)
                if refusal.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise as_ours(refusal, bootstrap_servers, doing) from exception
            else:
                new[name] = topics[name]
    if new:
        await_partitions(bootstrap_servers, new, deadline)


def await_topic(bootstrap_servers: str, topic: str, deadline_seconds: float) -> None:
    """Returns once the topic is there: what makes it may have started at the same time as what reads it. Blocks.

    Raises:
        KafkaUnreachable: No broker answers in time.
        InvalidConfiguration: The brokers don't have the topic in time.
    """
    names = TopicNames(bootstrap_servers)
    deadline = Deadline(deadline_seconds)
    lacking = InvalidConfiguration(
        f"Kafka at {bootstrap_servers} has no topic {topic}: make it, or correct the job's setting", topic=topic
    )
    answered = False
    while True:
        try:
            topics = names.ask(min(deadline.left, _ASK_SECONDS))
        except KafkaException as exception:
            error = error_of(exception)
            if deadline.passed or not is_unanswered(error):
                unheard = as_ours(error, bootstrap_servers, f"tell of topic {topic}")
                raise (lacking if answered else unheard) from exception
        else:
            if topic in topics:
                return
            answered = True
            if deadline.passed:
                raise lacking
        time.sleep(min(_LOOK_SECONDS, deadline.left))

"""Whether the topics of a real-time query are still those that it was started with: Spark goes by their names alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, KafkaUnreachable

LOOK_SECONDS = 10.0
"""How long a topic that was made anew may be taken for the one before."""

_ASK_SECONDS = 10.0


class QueryTopic(NamedTuple):
    """One that the query reads, or writes to.

    Attributes:
        topic_id: Kafka's, as it was at the start.
        remedy: What to do where it is another one now.
    """

    bootstrap_servers: str
    name: str
    topic_id: str
    remedy: str


class FoundTopic(NamedTuple):
    """A topic as Kafka has it now."""

    topic_id: str
    partitions: int


Look = Callable[[str, str], FoundTopic | None]
"""(bootstrap servers, name) -> the topic; None: a broker knows none. Raises KafkaUnreachable."""


def look(bootstrap_servers: str, name: str) -> FoundTopic | None:
    """See Look. Blocks for 10 s at most."""
    with closing(Topics(bootstrap_servers)) as topics:
        found = topics.describe(name, Deadline(_ASK_SECONDS))
    return None if found is None else FoundTopic(str(found.topic_id), len(found.partitions))


class TopicsWatch:
    """Call it before each boundary, and `pass_by` at any other time. One thread."""

    def __init__(self, topics: Sequence[QueryTopic], clock: Clock, look: Look = look) -> None:
        self._topics = topics
        self._clock = clock
        self._look = look
        self._next = clock.monotonic() + LOOK_SECONDS
        self._unknown: set[QueryTopic] = set()

    def pass_by(self) -> None:
        """Looks, where the last look is long ago. Raises as a call."""
        if self._clock.monotonic() >= self._next:
            self()

    def __call__(self) -> None:
        """Looks at each topic.

        Raises:
            ChangelogRecreated: One was made anew, or is gone.
            KafkaUnreachable: No answer. Or a broker has not heard of one: two looks in turn say that it is gone.
        """
        self._next = self._clock.monotonic() + LOOK_SECONDS
        for topic in self._topics:
            found = self._look(topic.bootstrap_servers, topic.name)
            if found is not None and found.topic_id != topic.topic_id:
                raise ChangelogRecreated(
                    f"topic {topic.name} was deleted and made anew (its id is {found.topic_id}, it was "
                    f"{topic.topic_id}): {topic.remedy}",
                    topic=topic.name,
                    topic_id=found.topic_id,
                )
            if found is not None:
                self._unknown.discard(topic)
            elif topic in self._unknown:
                raise ChangelogRecreated(
                    f"topic {topic.name} does not exist any more: {topic.remedy}", topic=topic.name
                )
            else:
                self._unknown.add(topic)
                raise KafkaUnreachable(f"Kafka at {topic.bootstrap_servers} has not heard of topic {topic.name}")

"""Whether the topics of a real-time query are still those that it was started with: Spark goes by their names alone.

And whether Spark still has a core for each partition of those that it reads. The tasks of the others wait until the
batch is over, and have no time left then: their rows would be read by nobody, and the state look fresh without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, InvalidConfiguration, KafkaUnreachable

_log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""How long a topic that was made anew may be taken for the one before."""

LACK_SECONDS = 60.0
"""How long Spark may have too few cores: it may be about to replace an executor, or to get another one."""

_ASK_SECONDS = 10.0


class QueryTopic(NamedTuple):
    """One that the query reads, or writes to.

    Attributes:
        topic_id: Kafka's, as it was at the start.
        remedy: What to do where it is another one now.
        is_read: Spark has a task for each of its partitions, as long as a batch lasts.
    """

    bootstrap_servers: str
    name: str
    topic_id: str
    remedy: str
    is_read: bool = False


class FoundTopic(NamedTuple):
    """A topic as Kafka has it now."""

    topic_id: str
    partitions: int


Look = Callable[[str, str], FoundTopic | None]
"""(bootstrap servers, name) -> the topic; None: a broker knows none. Raises KafkaUnreachable."""


CheckCores = Callable[[Sequence[tuple[str, int]]], None]
"""(topics that are read, and how many partitions each has now). Raises InvalidConfiguration: too few cores for them."""


def look(bootstrap_servers: str, name: str) -> FoundTopic | None:
    """See Look. Blocks for 10 s at most."""
    with closing(Topics(bootstrap_servers)) as topics:
        found = topics.describe(name, Deadline(_ASK_SECONDS))
    return None if found is None else FoundTopic(str(found.topic_id), len(found.partitions))


class TopicsWatch:
    """Call it before each boundary, and `pass_by` at any other time. One thread."""

    def __init__(self, topics: Sequence[QueryTopic], clock: Clock, check_cores: CheckCores, look: Look = look) -> None:
        self._topics = topics
        self._clock = clock
        self._check_cores = check_cores
        self._look = look
        self._lacking_since: float | None = None
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
            InvalidConfiguration: Spark has had fewer cores than they have partitions for LACK_SECONDS.
            KafkaUnreachable: No answer. Or a broker has not heard of one: two looks in turn say that it is gone.
        """
        self._next = self._clock.monotonic() + LOOK_SECONDS
        read = []
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
                if topic.is_read:
                    read.append((topic.name, found.partitions))
            elif topic in self._unknown:
                raise ChangelogRecreated(
                    f"topic {topic.name} does not exist any more: {topic.remedy}", topic=topic.name
                )
            else:
                self._unknown.add(topic)
                raise KafkaUnreachable(f"Kafka at {topic.bootstrap_servers} has not heard of topic {topic.name}")
        self._look_at_cores(read)

    def _look_at_cores(self, read: Sequence[tuple[str, int]]) -> None:
        """A lack that lasts is no outage that ends by itself, and a start would refuse it, too."""
        try:
            self._check_cores(read)
        except InvalidConfiguration as error:
            now = self._clock.monotonic()
            if self._lacking_since is None:
                self._lacking_since = now
                _log.warning("some partitions of a real-time query are not read", extra={"why": error.message})
            if now - self._lacking_since >= LACK_SECONDS:
                raise
        else:
            self._lacking_since = None

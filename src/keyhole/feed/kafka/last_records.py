"""The last records of a source topic, for a look at them before a state is made of it."""

from __future__ import annotations

from contextlib import closing

from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.changelog.kafka.reader import CommittedLog
from keyhole.errors import InvalidConfiguration
from keyhole.feed.kafka.source import source_record
from keyhole.feed.rows import SourceRecord

_SECONDS = 30.0
_OF_EACH_PARTITION = 10


def partitions_of(bootstrap_servers: str, topic: str, deadline_seconds: float) -> int:
    """How many the topic has.

    Raises:
        InvalidConfiguration: There is no such topic.
        KafkaUnreachable: Kafka does not answer in that time.
    """
    with closing(Topics(bootstrap_servers)) as topics:
        found = topics.describe(topic, Deadline(deadline_seconds))
    if found is None:
        raise InvalidConfiguration(
            f"Kafka at {bootstrap_servers} has no topic {topic!r}: check --topic, or make it first", topic=topic
        )
    return len(found.partitions)


def last_records(bootstrap_servers: str, topic: str, partitions: int) -> list[SourceRecord]:
    """Of each partition the last few that are committed; none of an empty topic.

    Raises:
        ChangelogRecreated: The topic is gone.
        KafkaUnreachable: Kafka does not answer.
    """
    deadline = Deadline(_SECONDS)
    log, asked = CommittedLog(bootstrap_servers), range(partitions)
    with closing(TopicOffsets(bootstrap_servers)) as offsets:
        starts = offsets.starts({topic: asked}, deadline.left)
    # What is behind a transaction that is open can't be read, and must not be waited for.
    ends = log.ends([(topic, partition) for partition in asked], deadline.left)
    bounds = {part: (max(starts[part], end - _OF_EACH_PARTITION), end) for part, end in ends.items() if part in starts}
    return [source_record(message) for run in log.read(bounds, _SECONDS) for message in run.records]

"""Updates topics on Kafka: made or checked, and where their partitions begin and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from keyhole.changelog.base import LogExtent, Partition
from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.changelog.settings import UPDATES, updates_topic_name
from keyhole.errors import ChangelogRecreated


class KafkaUpdatesTopics:
    """UpdatesTopics of one application, asked anew at each call. Blocks; any thread."""

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._application = application

    def ensure(self, state: str, key_groups: int, topic_id: str, deadline_seconds: float) -> str:
        deadline = Deadline(deadline_seconds)
        topic = updates_topic_name(self._application, state)
        with closing(Topics(self._bootstrap_servers, UPDATES)) as topics:
            if topic_id:
                found = topics.describe(topic, deadline)
                if found is None or str(found.topic_id) != topic_id:
                    raise ChangelogRecreated(
                        f"topic {topic} {'is gone' if found is None else 'was deleted and made anew'}, and with it the "
                        "updates that were not applied yet: drop the state and feed it from the start",
                        topic=topic,
                    )
            return topics.ensure(topic, key_groups, deadline)

    def extents(
        self, key_groups: Mapping[str, Sequence[int]], deadline_seconds: float
    ) -> Mapping[Partition, LogExtent]:
        deadline = Deadline(deadline_seconds)
        asked = {updates_topic_name(self._application, state): groups for state, groups in key_groups.items()}
        with closing(TopicOffsets(self._bootstrap_servers)) as offsets:
            # The start first: it only grows, so it is never above the end.
            starts, ends = offsets.starts(asked, deadline.left), offsets.ends(asked, deadline.left)
        found = {}
        for state, groups in key_groups.items():
            topic = updates_topic_name(self._application, state)
            for group in groups:
                if (topic, group) not in starts or (topic, group) not in ends:
                    raise ChangelogRecreated(f"topic {topic} is gone, or has no partition {group}", topic=topic)
                found[Partition(state, group)] = LogExtent(starts[topic, group], ends[topic, group])
        return found

"""An updates topic, as a feeder or a producer writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from keyhole.changelog.kafka.absences import IsGone, gone_at_once, unheard_of
from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of, unreachable
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.changelog.kafka.reader import CommittedLog
from keyhole.changelog.kafka.sending import IN_ORDER, Acknowledged, TopicSender
from keyhole.errors import ChangelogRecreated, InvalidConfiguration
from keyhole.feed.fed_topics import Done

_ASK_SECONDS = 10.0
_READ_SECONDS = 60.0
_ROOM_SECONDS = 30.0
_LARGEST = "max.message.bytes"
# What Kafka puts around a value: of the record and its batch, which is alone where it is large.
_AROUND_BYTES = 1_024


class KafkaUpdates:
    """UpdatesTopic (keyhole.feed.fed_topics). One thread; close it.

    Args:
        topic: Its name. It exists: who runs the state's feed makes it.
        is_gone: Asked where a look does not find it; until then Kafka counts as unreachable.

    Raises:
        InvalidConfiguration: There is no such topic.
        KafkaUnreachable: Kafka does not answer.
    """

    def __init__(self, bootstrap_servers: str, topic: str, is_gone: IsGone = gone_at_once) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._is_gone = is_gone
        with ExitStack() as opened:
            self._topics = opened.enter_context(closing(Topics(bootstrap_servers)))
            found = self._topics.describe(topic, Deadline(_ASK_SECONDS))
            if found is None:
                self._check_gone()
                raise InvalidConfiguration(
                    f"Kafka at {bootstrap_servers} has no topic {topic}: the state is not fed by updates", topic=topic
                )
            self.partitions = len(found.partitions)
            self.topic_id = str(found.topic_id)
            largest = self._largest()
            self.most_bytes = largest - _AROUND_BYTES
            self._sender = TopicSender(bootstrap_servers, topic, {**IN_ORDER, "message.max.bytes": largest})
            opened.pop_all()

    def _largest(self) -> int:
        doing = f"read the settings of topic {self._topic}"
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            with closing(Admin(self._bootstrap_servers)) as admin:
                asked = admin.client.describe_configs([resource], request_timeout=_ASK_SECONDS)
                return int(str(answer(asked[resource], _ASK_SECONDS)[_LARGEST].value))
        except KafkaException as exception:
            raise as_ours(error_of(exception), self._bootstrap_servers, doing) from exception
        except TimeoutError as error:
            raise unreachable(self._bootstrap_servers, doing, "no answer in time") from error

    def look(self) -> str:
        found = self._topics.describe(self._topic, Deadline(_ASK_SECONDS))
        if found is None:
            self._check_gone()
            raise ChangelogRecreated(f"topic {self._topic} does not exist any more", topic=self._topic)
        return str(found.topic_id)

    def _check_gone(self) -> None:
        """Raises KafkaUnreachable: It may be there."""
        if not self._is_gone(self._topic):
            raise unheard_of(self._bootstrap_servers, self._topic)

    def bounds(self, partition: int) -> tuple[int, int]:
        with closing(TopicOffsets(self._bootstrap_servers)) as offsets:
            asked, name = {self._topic: [partition]}, (self._topic, partition)
            start, end = offsets.starts(asked, _ASK_SECONDS), offsets.ends(asked, _ASK_SECONDS)
        if name not in start or name not in end:
            raise unreachable(self._bootstrap_servers, f"tell the ends of topic {self._topic}", "it has no leader")
        return start[name], end[name]

    def ends(self) -> Mapping[int, int]:
        """By partition, the offset behind its last record. Raises KafkaUnreachable."""
        with closing(TopicOffsets(self._bootstrap_servers)) as offsets:
            found = offsets.ends({self._topic: range(self.partitions)}, _ASK_SECONDS)
        if len(found) < self.partitions:
            raise unreachable(self._bootstrap_servers, f"tell the ends of topic {self._topic}", "partitions lack")
        return {partition: end for (_, partition), end in found.items()}

    def read(self, partition: int, start: int, end: int) -> Iterator[bytes | None]:
        bounds = {(self._topic, partition): (start, end)}
        for run in CommittedLog(self._bootstrap_servers).read(bounds, _READ_SECONDS):
            for message in run.records:
                value = message.value()
                assert not isinstance(value, str)
                yield value

    def send(self, partition: int, value: bytes, done: Done) -> None:
        self.send_record(partition, value, lambda _: done(), Deadline(_ROOM_SECONDS))

    def send_record(self, partition: int, value: bytes, done: Acknowledged, deadline: Deadline) -> None:
        """As `send`; `done` is given the record as it stands in the topic, with its offset. Any thread, as `poll`.

        Raises:
            KafkaUnreachable: By the deadline there was no room for it, and it is not sent.
        """
        self._sender.send(value, done, partition=partition, deadline=deadline)

    def poll(self, seconds: float) -> None:
        self._sender.poll(seconds)

    def close(self) -> None:
        """Gives up what is under way."""
        self._sender.close()
        self._topics.close()

"""Where topics begin and end, of many partitions in one question."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of, unreachable
from keyhole.errors import KafkaUnreachable, KeyholeError

_LOOK_SECONDS = 0.05
_ASKING = "tell the ends of topics"
# These are without types.
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class TopicOffsets:
    """One thread at a time; blocks. Close it, unless the process ends."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._admin = Admin(bootstrap_servers)

    def ends(self, topics: Mapping[str, Collection[int]], timeout_seconds: float) -> dict[tuple[str, int], int]:
        """The offset after the last record, by (topic, partition). Partitions that don't exist are missing.

        Raises:
            KafkaUnreachable: No answer in time.
            InvalidConfiguration: Kafka refuses the client.
        """
        return self._offsets(topics, _LATEST, Deadline(timeout_seconds))

    def starts(self, topics: Mapping[str, Collection[int]], timeout_seconds: float) -> dict[tuple[str, int], int]:
        """The first offset that is still there, by (topic, partition); as `ends`, and with its errors."""
        return self._offsets(topics, _EARLIEST, Deadline(timeout_seconds))

    def _offsets(
        self, topics: Mapping[str, Collection[int]], spec: OffsetSpec, deadline: Deadline
    ) -> dict[tuple[str, int], int]:
        wanted = {TopicPartition(topic, part): spec for topic, of in topics.items() for part in of}
        if not wanted:
            return {}
        try:
            return self._asked(wanted, deadline)
        except KeyholeError:
            # A client goes on asking by the leader epochs that it knows, and is refused for ever once a broker that was
            # silent has come back with newer ones (librdkafka 2.16).
            self._admin.close()
            self._admin = Admin(self._bootstrap_servers)
            raise

    def close(self) -> None:
        self._admin.close()

    def _asked(self, wanted: dict[TopicPartition, OffsetSpec], deadline: Deadline) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        try:
            asked = self._admin.client.list_offsets(wanted, request_timeout=deadline.left)
        except KafkaException as error:
            raise as_ours(error_of(error), self._bootstrap_servers, _ASKING) from error
        for partition, future in asked.items():
            try:
                found[partition.topic, partition.partition] = answer(future, deadline.left).offset
            except KafkaException as error:
                if not _unknown(error):
                    raise as_ours(error_of(error), self._bootstrap_servers, _ASKING) from error
            except TimeoutError as error:
                raise unreachable(self._bootstrap_servers, _ASKING, "no answer in time") from error
        return found


def _unknown(error: KafkaException) -> bool:
    return error_of(error).code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)


def await_partitions(bootstrap_servers: str, topics: Mapping[str, int], deadline: Deadline) -> None:
    """Returns once all partitions of new topics answer. Blocks.

    A broker names a partition's leader before that has opened the partition's log. Of a producer that wrote meanwhile
    the first records were seen to be lost without a word. The likely way: a first request is refused and a later one
    taken, where a new log takes any first sequence number, and librdkafka then counts the first as acknowledged, too.

    Args:
        topics: How many partitions each has.

    Raises:
        KafkaUnreachable: They don't in time.
        InvalidConfiguration: Kafka refuses the client.
    """
    wanted = {topic: range(count) for topic, count in topics.items()}
    with contextlib.closing(TopicOffsets(bootstrap_servers)) as offsets:
        while True:
            try:
                lacking = sum(topics.values()) - len(offsets.ends(wanted, deadline.left))
            except KafkaUnreachable:
                if deadline.passed:
                    raise
            else:
                if not lacking:
                    return
                if deadline.passed:
                    raise unreachable(
                        bootstrap_servers, f"open topics {', '.join(topics)}", f"{lacking} partitions lack"
                    )
            time.sleep(_LOOK_SECONDS)

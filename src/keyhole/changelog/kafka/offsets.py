"""Where topics begin and end, of many partitions in one question."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import KafkaException

from keyhole.changelog.kafka.asked_offsets import UNKNOWN, AskedOffsets, OffsetsClient
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of, unreachable
from keyhole.changelog.kafka.consumer import TopicPart
from keyhole.errors import KafkaUnreachable, KeyholeError

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_ASKING = "tell the ends of topics"

_OffsetsQuestion = Callable[[OffsetsClient, Sequence[TopicPart], float], AskedOffsets]


class TopicOffsets:
    """One thread at a time; blocks. Close it, unless the process ends.

    Args:
        partial: Partitions that Kafka does not tell of are missing, too, as long as it tells of any.
    """

    def __init__(self, bootstrap_servers: str, *, partial: bool = False) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._partial = partial
        self._client = self._new()

    def _new(self) -> OffsetsClient:
        return OffsetsClient(self._bootstrap_servers, committed=False)

    def ends(self, topics: Mapping[str, Collection[int]], timeout_seconds: float) -> dict[TopicPart, int]:
        """The offset after the last record, by (topic, partition). Partitions that don't exist are missing.

        Raises:
            KafkaUnreachable: No answer in time.
            InvalidConfiguration: Kafka refuses the client.
        """
        return self._offsets(topics, OffsetsClient.ends, Deadline(timeout_seconds))

    def starts(self, topics: Mapping[str, Collection[int]], timeout_seconds: float) -> dict[TopicPart, int]:
        """The first offset that is still there, by (topic, partition); as `ends`, and with its errors."""
        return self._offsets(topics, OffsetsClient.starts, Deadline(timeout_seconds))

    def _offsets(
        self, topics: Mapping[str, Collection[int]], ask: _OffsetsQuestion, deadline: Deadline
    ) -> dict[TopicPart, int]:
        parts = [(topic, number) for topic, of in topics.items() for number in of]
        if not parts:
            return {}
        try:
            return self._asked(parts, ask, deadline)
        except KeyholeError:
            self._renew()
            raise

    def _renew(self) -> None:
        """A client goes on asking by the leader epochs that it knows, and is refused for ever once a broker that was
        silent has come back with newer ones (librdkafka 2.16)."""
        fresh = self._new()
        self._client.close()
        self._client = fresh

    def close(self) -> None:
        self._client.close()

    def _asked(self, parts: Sequence[TopicPart], ask: _OffsetsQuestion, deadline: Deadline) -> dict[TopicPart, int]:
        try:
            asked = ask(self._client, parts, deadline.left)
        except KafkaException as exception:
            raise as_ours(error_of(exception), self._bootstrap_servers, _ASKING) from exception
        refused = [(part, error) for part, error in asked.errors.items() if error.code() not in UNKNOWN]
        if refused:
            why = as_ours(refused[0][1], self._bootstrap_servers, _ASKING)
            if not self._partial or not asked.found:
                raise why
            topics = sorted({topic for (topic, _), _ in refused})
            _log.warning("Kafka does not tell of all topics", extra={"topics": topics, "why": why.message})
            self._renew()
        return asked.found


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

"""A feeder's lease: a transactional.id, whose transactions only commit how far the source was fed.

They are in no topic that anybody reads but for the lag: Kafka's tools show it under the group of the same name.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from keyhole.changelog.kafka.clients import (
    Deadline,
    as_ours,
    common_settings,
    error_of,
    fenced,
    is_fenced,
    unreachable,
)
from keyhole.changelog.kafka.consumer import consumer_settings
from keyhole.changelog.kafka.transactions import take_id

_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
_TIMEOUT_MS = 60_000


class KafkaFeederLease:
    """FeederLease (keyhole.feed.fed_topics). One thread; close it.

    Kafka is asked on a thread of its own, so that feeding goes on meanwhile: `keep` raises what came of the one before.
    Where a broker dies in the middle, librdkafka waits for it in spite of its deadline (send_offsets_to_transaction),
    for as long as it is away. Nobody waits for such a thread, nor does the end of the process.

    Args:
        name: Of the lease: its transactional.id, and the group that has the positions.
        topic: The source.
    """

    def __init__(self, bootstrap_servers: str, name: str, topic: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._name = name
        self._topic = topic
        self._producer = Producer(
            {
                **common_settings(bootstrap_servers),
                "transactional.id": name,
                "transaction.timeout.ms": _TIMEOUT_MS,
            }
        )
        consumer = Consumer({**consumer_settings(bootstrap_servers), "group.id": name})
        self._group = consumer.consumer_group_metadata()
        consumer.close()
        self._kept: Future[None] | None = None

    def take(self) -> None:
        take_id(self._producer, self._name, self._bootstrap_servers, Deadline(_SECONDS))

    def keep(self, ends: Mapping[int, int]) -> None:
        if self._kept is not None:
            try:
                self._kept.result(_SECONDS)
            except TimeoutError as error:
                raise unreachable(self._bootstrap_servers, f"keep {self._name}", "no answer in time") from error
        offsets = [TopicPartition(self._topic, partition, end) for partition, end in ends.items()]
        self._kept = Future()
        threading.Thread(
            target=self._answer, args=(self._kept, offsets), name="keyhole-feed-lease", daemon=True
        ).start()

    def _answer(self, kept: Future[None], offsets: list[TopicPartition]) -> None:
        try:
            self._commit(offsets)
        except BaseException as error:  # noqa: BLE001 - the next `keep` raises it
            kept.set_exception(error)
        else:
            kept.set_result(None)

    def _commit(self, offsets: list[TopicPartition]) -> None:
        deadline = Deadline(_SECONDS)
        try:
            self._producer.begin_transaction()
            self._producer.send_offsets_to_transaction(offsets, self._group, deadline.left)
            self._producer.commit_transaction(deadline.left)
        except KafkaException as exception:
            error = error_of(exception)
            if is_fenced(error) or (error.code() == KafkaError.UNKNOWN and self._is_taken(deadline)):
                raise fenced(self._name) from exception
            # Whether it was committed is no matter: the next feeder goes by the boundaries.
            raise as_ours(error, self._bootstrap_servers, f"keep {self._name}") from exception

    def _is_taken(self, deadline: Deadline) -> bool:
        """A broker has no answer to a commit that arrives while somebody else takes the lease; to the next one it has.

        A feeder that took that for an outage would begin again, and take the lease back.
        """
        try:
            self._producer.abort_transaction(deadline.left)
        except KafkaException as exception:
            return is_fenced(error_of(exception))
        return False

    def close(self) -> None:
        """Whoever takes it next need not wait for a transaction that is open."""
        if self._kept is not None and wait([self._kept], _CLOSE_SECONDS).not_done:
            return  # who takes it next ends it
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(1.0)

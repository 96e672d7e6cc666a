"""Sends records whose acknowledgements are called one by one, on the thread that asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from keyhole.changelog.kafka.clients import Deadline, Settings, as_ours, common_settings, error_of, unreachable
from keyhole.errors import KeyholeError

IN_ORDER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    # Of two requests under way the first may be refused and the second taken.
    "max.in.flight.requests.per.connection": 1,
    # Where one fails for good, none behind it is sent; and none fails because Kafka is away.
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,
    "linger.ms": 0,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 64 << 10,
}
"""For records whose order counts: what stands in a partition is what was sent first, without a gap."""

_FULL_QUEUE_SECONDS = 0.01

Acknowledged = Callable[[Message], None]
Refused = Callable[[KafkaError], bool]


class TopicSender:
    """One producer of one topic. One thread; close it."""

    def __init__(self, bootstrap_servers: str, topic: str, settings: Mapping[str, Any]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        made: Settings = {**common_settings(bootstrap_servers), **settings}
        self._producer = Producer(made)
        self._error: KafkaError | None = None

    def send(
        self,
        value: bytes | None,
        done: Acknowledged,
        *,
        partition: int = -1,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        refused: Refused | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """On its way; waits for room in the queue.

        Args:
            done: Is called within `poll`, once the record is acknowledged.
            partition: -1: any.
            refused: Is called in its place where Kafka refuses; it says whether that has been taken care of.
            deadline: None: waits for room as long as it takes.

        Raises:
            KafkaUnreachable: There was no room by the deadline.
            KeyholeError: This record, or one before it, is not taken.
        """

        def answered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                done(message)
            elif refused is None or not refused(error):
                self._error = self._error or error

        given: dict[str, Any] = {} if headers is None else {"headers": list(headers.items())}
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, on_delivery=answered, **given)
            except BufferError:
                if deadline is not None and deadline.passed:
                    doing = f"write to topic {self._topic}"
                    raise unreachable(self._bootstrap_servers, doing, "its queue is full and does not drain") from None
                self.poll(_FULL_QUEUE_SECONDS)
            except KafkaException as exception:
                raise self._ours(error_of(exception)) from exception
            else:
                return

    def poll(self, seconds: float) -> None:
        """Calls what is done, and waits for that at most so long. Raises KeyholeError: a record was not taken."""
        self._producer.poll(seconds)
        if self._error is not None:
            raise self._ours(self._error)

    def _ours(self, error: KafkaError) -> KeyholeError:
        return as_ours(error, self._bootstrap_servers, f"write to topic {self._topic}")

    def close(self) -> None:
        """Gives up what is under way: some of it may arrive all the same."""
        self._producer.purge()
        self._error = None
        self._producer.poll(0)

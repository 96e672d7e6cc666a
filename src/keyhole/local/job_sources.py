"""What the sources of the jobs here share: records into a topic, at a rate, until SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from confluent_kafka import KafkaError, Message, Producer

from keyhole import logs
from keyhole.changelog.kafka.brokers import client_settings
from keyhole.changelog.kafka.clients import ONE_REQUEST
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.config import SourceConfig, TopicJobConfig, load
from keyhole.errors import KafkaUnreachable, KeyholeError

_TICK_SECONDS = 0.02
_FLUSH_SECONDS = 10
_TOPICS_SECONDS = 120.0
_FULL_PAUSE_SECONDS = 0.5
_FULL_ATTEMPTS = 60
_ANY = -1  # librdkafka's "choose one"

_log = logging.getLogger(__name__)

_Config = TypeVar("_Config", bound=SourceConfig)


class Sender:
    """An idempotent producer to one topic. Blocks while its queue is full. One thread."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({**client_settings(bootstrap_servers), **ONE_REQUEST})
        self.delivered = 0

    def send(self, value: bytes, partition: int = _ANY) -> None:
        """Sends it.

        Raises:
            KafkaUnreachable: The queue was full for half a minute.
        """
        for _ in range(_FULL_ATTEMPTS):
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._on_delivery)
            except BufferError:
                self._producer.poll(_FULL_PAUSE_SECONDS)
            else:
                return
        raise KafkaUnreachable("Kafka has taken no records for a while; check that its broker runs")

    def poll(self) -> None:
        """Takes note of what was delivered."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits for what is under way, for a while."""
        self._producer.flush(_FLUSH_SECONDS)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            _log.warning("a record was not delivered", extra={"error": error.str()})


def due(rate: float, stopped: threading.Event) -> Iterator[int]:
    """Again and again, until it is stopped: how many more there should be by now, at `rate` per second."""
    began, sent = time.monotonic(), 0
    while not stopped.wait(_TICK_SECONDS):
        now = int((time.monotonic() - began) * rate)
        more = min(now - sent, max(1, int(rate)))  # a stop still comes through after a long pause
        sent += more
        yield more


Feed = Callable[[_Config, Sender, threading.Event], None]
"""Sends records until it is stopped."""


def run_source(
    name: str,
    kind: type[_Config],
    feed: Feed[_Config],
    topics: Callable[[_Config], Mapping[str, int]],
    beside: Sequence[type[TopicJobConfig | SourceConfig]] = (),
) -> int:
    """The whole life of a source's process; SIGTERM stops it, and what is under way is waited for.

    Args:
        name: For a person.
        kind: Its configuration, read from the environment.
        topics: What it sends to, and how many partitions a topic is made with that there is not yet.
        beside: As for keyhole.config.load.

    Returns:
        The process's exit code.
    """
    logs.tell_crashes()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        config = load(kind, os.environ, beside)
        logs.configure(config.log_level)
        make_topics(config.bootstrap_servers, topics(config), _TOPICS_SECONDS)
        sender = Sender(config.bootstrap_servers, config.topic)
        feed(config, sender, stopped)
    except KeyholeError as error:
        print(f"{name}: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    sender.flush()
    _log.info("stopped", extra={"delivered": sender.delivered})
    return 0

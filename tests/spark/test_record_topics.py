"""Topics of records: made where there are none, left alone where there are, waited for by who reads them."""

from __future__ import annotations

import socket
import threading

import pytest
from confluent_kafka.admin import AdminClient

from keyhole.changelog.kafka.record_topics import await_topic, make_topics
from keyhole.errors import InvalidConfiguration, KafkaUnreachable
from tests.support.refusals import longer_and_longer
from tests.support.waiting import LONG_SECONDS, until


def test_topics_are_made_once(kafka: str, application: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})

    def partitions() -> list[int]:
        topics = admin.list_topics(timeout=LONG_SECONDS).topics
        return [
            len(topics[name].partitions) if name in topics else 0 for name in (f"{application}-a", f"{application}-b")
        ]

    make_topics(kafka, {f"{application}-a": 3}, LONG_SECONDS)
    make_topics(kafka, {f"{application}-a": 2, f"{application}-b": 1}, LONG_SECONDS)
    until(lambda: partitions() == [3, 1], LONG_SECONDS)  # a broker tells of a topic a moment after it was made


@pytest.mark.core
def test_a_kafka_that_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(KafkaUnreachable, match=address):
            make_topics(address, {"readings": 3}, 0.5)
        with pytest.raises(KafkaUnreachable, match=address):
            await_topic(address, "readings", 0.5)


def test_a_topic_that_is_missing_is_waited_for_and_then_named(kafka: str, application: str) -> None:
    topic = f"{application}-late"
    for seconds in longer_and_longer(3.0):
        with pytest.raises((InvalidConfiguration, KafkaUnreachable)) as caught:
            await_topic(kafka, topic, seconds)
        if caught.type is InvalidConfiguration:  # on a slow machine Kafka may not have answered by then
            break
    caught.match(f"no topic {topic}")
    making = threading.Timer(1.0, make_topics, (kafka, {topic: 1}, LONG_SECONDS))
    making.start()
    await_topic(kafka, topic, LONG_SECONDS)
    making.join()

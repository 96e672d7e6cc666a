"""An updates topic on a real Kafka: as owners need it, read from where they are, and never past what they lack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keyhole.changelog.base import LogExtent, Partition
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.changelog.kafka.updates_tail import KafkaUpdatesTail
from keyhole.changelog.kafka.updates_topics import KafkaUpdatesTopics
from keyhole.errors import ChangelogRecreated, TopicMismatch
from keyhole.protocol.updates import LoggedUpdate
from tests.support.topics import alter_topic, delete_topic
from tests.support.waiting import LONG_SECONDS, until

DEADLINE = LONG_SECONDS
STATE = "orders"
ZERO, ONE = Partition(STATE, 0), Partition(STATE, 1)


@pytest.fixture
def topic(application: str) -> str:
    return f"keyhole.{application}.{STATE}.updates"


@pytest.fixture
def topics(kafka: str, application: str) -> KafkaUpdatesTopics:
    return KafkaUpdatesTopics(kafka, application)


@pytest.fixture
def topic_id(topics: KafkaUpdatesTopics) -> str:
    return topics.ensure(STATE, 2, "", DEADLINE)


@pytest.fixture
def send(kafka: str, topic: str, topic_id: str) -> Callable[..., None]:
    producer = Producer({"bootstrap.servers": kafka})

    def send(partition: int, *values: bytes, timestamp_ms: int = 0) -> None:
        for value in values:
            producer.produce(topic, value, partition=partition, timestamp=timestamp_ms)
        assert producer.flush(DEADLINE) == 0

    return send


@pytest.fixture
def tail(kafka: str, application: str, topic_id: str) -> Iterator[KafkaUpdatesTail]:
    made = KafkaUpdatesTail(kafka, application, {STATE: topic_id})
    yield made
    made.close()


def read(tail: KafkaUpdatesTail, ends: Mapping[Partition, int]) -> dict[Partition, list[LoggedUpdate]]:
    """All up to these ends."""
    found: dict[Partition, list[LoggedUpdate]] = {part: [] for part in ends}
    reached: dict[Partition, int] = {}
    deadline = time.monotonic() + DEADLINE
    while any(reached.get(part) != end for part, end in ends.items()):
        assert time.monotonic() < deadline, reached
        for run in tail.poll(1.0):
            found[run.partition] += run.updates
            if run.end is not None:
                reached[run.partition] = run.end
    return found


def numbers(updates: list[LoggedUpdate]) -> list[tuple[int, bytes | None]]:
    return [(update.offset, update.value) for update in updates]


def test_updates_are_read_from_where_their_key_groups_are(
    send: Callable[..., None], tail: KafkaUpdatesTail, topics: KafkaUpdatesTopics
) -> None:
    send(0, b"a", b"b", b"c")
    send(1, b"x")
    assert topics.extents({STATE: [0, 1]}, DEADLINE) == {ZERO: LogExtent(0, 3), ONE: LogExtent(0, 1)}
    tail.follow({ZERO: 1, ONE: 0})
    found = read(tail, {ZERO: 3, ONE: 1})
    assert {part: numbers(updates) for part, updates in found.items()} == {
        ZERO: [(1, b"b"), (2, b"c")],
        ONE: [(0, b"x")],
    }
    tail.follow({ZERO: 3})
    send(1, b"y")
    send(0, b"d")
    assert numbers(read(tail, {ZERO: 4})[ZERO]) == [(3, b"d")]
    tail.follow({ZERO: 0, ONE: 1})
    found = read(tail, {ZERO: 4, ONE: 2})
    assert [value for _, value in numbers(found[ZERO])] == [b"a", b"b", b"c", b"d"]
    assert numbers(found[ONE]) == [(1, b"y")]


def test_time_is_the_broker_s_whatever_a_producer_says(send: Callable[..., None], tail: KafkaUpdatesTail) -> None:
    before = int(time.time() * 1000)
    send(0, b"a", timestamp_ms=4_000_000_000_000)
    tail.follow({ZERO: 0})
    (update,) = read(tail, {ZERO: 1})[ZERO]
    assert before - 1 <= update.timestamp_ms <= int(time.time() * 1000) + 1


def test_a_producer_s_time_is_none_where_a_topic_had_it_once(
    kafka: str, topic: str, send: Callable[..., None], tail: KafkaUpdatesTail, topics: KafkaUpdatesTopics, topic_id: str
) -> None:
    alter_topic(kafka, topic, {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(1 << 62)})
    with pytest.raises(TopicMismatch, match=r"message\.timestamp\.type is 'CreateTime', it must be 'LogAppendTime'"):
        topics.ensure(STATE, 2, topic_id, DEADLINE)
    send(0, b"a", timestamp_ms=4_000_000_000_000)
    tail.follow({ZERO: 0})
    assert read(tail, {ZERO: 1})[ZERO] == [LoggedUpdate(0, 0, b"a")]


def test_a_topic_is_made_once_and_another_one_is_refused(
    kafka: str, application: str, topic: str, topic_id: str, topics: KafkaUpdatesTopics
) -> None:
    assert topics.ensure(STATE, 2, topic_id, DEADLINE) == topic_id
    with pytest.raises(TopicMismatch, match="it has 2 partitions, the state has 3 key groups"):
        topics.ensure(STATE, 3, topic_id, DEADLINE)
    alter_topic(kafka, topic, {"retention.ms": "60000", "cleanup.policy": "compact"})
    with pytest.raises(TopicMismatch, match=r"cleanup\.policy is 'compact'.*retention\.ms is 60000"):
        topics.ensure(STATE, 2, topic_id, DEADLINE)
    alter_topic(kafka, topic, {"retention.ms": "-1", "cleanup.policy": "delete"})
    assert topics.ensure(STATE, 2, topic_id, DEADLINE) == topic_id


def test_updates_that_were_deleted_before_they_were_read_are_not_passed_over(
    kafka: str, topic: str, send: Callable[..., None], tail: KafkaUpdatesTail, topics: KafkaUpdatesTopics
) -> None:
    send(0, b"a", b"b", b"c")
    admin = AdminClient({"bootstrap.servers": kafka})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    deleted.result(DEADLINE)
    assert topics.extents({STATE: [0]}, DEADLINE) == {ZERO: LogExtent(2, 3)}
    tail.follow({ZERO: 1})
    with pytest.raises(ChangelogRecreated, match="from offset 1 of partition 0 on are needed"):
        read(tail, {ZERO: 3})


def test_a_log_that_ends_before_a_position_is_not_read(send: Callable[..., None], tail: KafkaUpdatesTail) -> None:
    send(0, b"a")
    tail.follow({ZERO: 5})
    with pytest.raises(ChangelogRecreated, match=r"from offset 5 of partition 0 on are needed.*its end was lost"):
        read(tail, {ZERO: 1})


def test_a_topic_that_was_made_anew_is_another_one(
    kafka: str, topic: str, topic_id: str, topics: KafkaUpdatesTopics, tail: KafkaUpdatesTail
) -> None:
    """Also where that came before its first look: its id was given."""
    delete_topic(kafka, topic)
    with pytest.raises(ChangelogRecreated, match="is gone"):
        topics.ensure(STATE, 2, topic_id, DEADLINE)
    make_topics(kafka, {topic: 2}, DEADLINE)
    with pytest.raises(ChangelogRecreated, match="was deleted and made anew"):
        topics.ensure(STATE, 2, topic_id, DEADLINE)
    tail.follow({ZERO: 0})

    def looks() -> bool:
        tail.poll(0.2)
        return False

    with pytest.raises(ChangelogRecreated, match=f"made anew: {topic}"):
        until(looks, LONG_SECONDS)

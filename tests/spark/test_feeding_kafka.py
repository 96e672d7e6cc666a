"""A feeder on a real Kafka: each row is sent, none is skipped, and whoever takes over goes on at the last boundary."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.clock import SystemClock
from keyhole.encoding.murmur3 import key_group
from keyhole.errors import ChangelogRecreated, Fenced, InvalidConfiguration
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, value_columns
from keyhole.feed.feeder import Feeder
from keyhole.feed.kafka.lease import KafkaFeederLease
from keyhole.feed.kafka.letters import KafkaDeadLetterTopic
from keyhole.feed.kafka.source import KafkaSource
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.feed.mapping import RecordMapper
from keyhole.model.state import KeyType
from keyhole.protocol.updates import BoundaryRecord, UpdateRecord, decode
from tests.support.topics import delete_topic, grow_topic, make_topic
from tests.support.waiting import LONG_SECONDS

KEY_GROUPS = 4
STATE = describe(FeedOptions("app", "s", key_columns(["id"]), value_columns(["n:bigint"]), key_groups=KEY_GROUPS))


class Topics:
    """A source and an updates topic of one test's own."""

    def __init__(self, kafka: str) -> None:
        self.kafka = kafka
        self.source = f"orders-{uuid.uuid4().hex[:12]}"
        self.updates = f"{self.source}.updates"
        make_topics(kafka, {self.source: 2, self.updates: KEY_GROUPS}, LONG_SECONDS)
        self.n = 0

    def produce(self, count: int, *, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.kafka})
        for _ in range(count):
            self.n += 1
            row = {"id": f"k{self.n % 7}", "n": self.n}
            producer.produce(self.source, json.dumps(row).encode(), partition=partition)
        assert producer.flush(LONG_SECONDS) == 0

    def reject(self) -> None:
        producer = Producer({"bootstrap.servers": self.kafka})
        producer.produce(self.source, b"{", b"the key", 1)
        assert producer.flush(LONG_SECONDS) == 0

    def log(self, group: int) -> list[UpdateRecord | BoundaryRecord]:
        with closing(KafkaUpdates(self.kafka, self.updates)) as updates:
            start, end = updates.bounds(group)
            found = [decode(value) for value in updates.read(group, start, end)]
        return [one for one in found if isinstance(one, (UpdateRecord, BoundaryRecord))]

    def sent(self) -> list[int]:
        """The amounts of all updates, each as often as it is there; each is in its key's group."""
        amounts = []
        for group in range(KEY_GROUPS):
            for record in self.log(group):
                if isinstance(record, UpdateRecord):
                    assert record.value is not None
                    assert key_group(record.key, [KeyType.STRING], KEY_GROUPS) == group
                    amounts.append(record.value[0])
        return sorted(amounts)


@pytest.fixture
def topics(kafka: str) -> Topics:
    return Topics(kafka)


@pytest.fixture
def open_feeder(topics: Topics) -> Iterator[Callable[..., Feeder]]:
    """Makes feeders, which have begun."""
    with ExitStack() as opened:

        def make(*, from_earliest: bool = False) -> Feeder:
            source = opened.enter_context(closing(KafkaSource(topics.kafka, topics.source)))
            updates = opened.enter_context(closing(KafkaUpdates(topics.kafka, topics.updates)))
            letters = opened.enter_context(closing(KafkaDeadLetterTopic(topics.kafka, topics.source)))
            lease = opened.enter_context(
                closing(KafkaFeederLease(topics.kafka, f"keyhole.app.s.feed.{topics.source}", topics.source))
            )
            feeder = Feeder(
                topics.source,
                lambda source_id: RecordMapper(STATE, RecordFormat.JSON, source_id),
                source,
                updates,
                letters,
                lease,
                SystemClock(),
                boundary_seconds=0.2,
                from_earliest=from_earliest,
            )
            feeder.start()
            return feeder

        yield make


def feed(feeder: Feeder, records: int, seconds: float = LONG_SECONDS) -> None:
    until = time.monotonic() + seconds
    while records > 0 and time.monotonic() < until:
        records -= feeder.step(0.1)
    assert records <= 0


def run(step: Callable[[float], object], seconds: float = LONG_SECONDS) -> None:
    """Until it raises, or the time is over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        step(0.1)


def test_each_row_is_sent_and_a_follower_goes_on_at_the_last_boundary(
    topics: Topics, open_feeder: Callable[..., Feeder]
) -> None:
    topics.produce(300)
    topics.produce(300, partition=1)
    first = open_feeder()
    feed(first, 600)
    first.finish()
    topics.produce(5)
    second = open_feeder()
    feed(second, 5)
    second.finish()
    assert topics.sent() == list(range(1, 606))
    for group in range(KEY_GROUPS):
        begun, *_, last = (one for one in topics.log(group) if isinstance(one, BoundaryRecord))
        assert (begun.ends, last.ends) == ({0: 0, 1: 0}, {0: 305, 1: 300})


def test_a_feeder_without_a_last_boundary_leaves_repetitions_and_no_gap(
    topics: Topics, open_feeder: Callable[..., Feeder]
) -> None:
    topics.produce(50)
    first = open_feeder()
    feed(first, 50)
    while first.waiting:
        first._serve(0.1)
    second = open_feeder()
    feed(second, 50)
    second.finish()
    assert sorted(set(topics.sent())) == list(range(1, 51))
    with pytest.raises(Fenced):
        run(first.step)


def test_what_can_t_be_read_is_a_dead_letter_with_its_place(
    kafka: str, topics: Topics, open_feeder: Callable[..., Feeder]
) -> None:
    topics.reject()
    feeder = open_feeder()
    feed(feeder, 1)
    feeder.finish()
    with closing(KafkaUpdates(kafka, f"{topics.source}.dead-letter")) as letters:
        assert list(letters.read(0, *letters.bounds(0))) == [b"{"]
    assert (topics.sent(), feeder.refused) == ([], 1)


def test_a_partition_that_is_added_is_read_from_its_start(
    kafka: str, topics: Topics, open_feeder: Callable[..., Feeder]
) -> None:
    feeder = open_feeder()
    grow_topic(kafka, topics.source, 3)
    topics.produce(3, partition=2)
    feed(feeder, 3)
    feeder.finish()
    assert topics.sent() == [1, 2, 3]


def test_records_that_were_deleted_before_they_were_read_are_refused(
    kafka: str, topics: Topics, open_feeder: Callable[..., Feeder]
) -> None:
    topics.produce(10)
    feeder = open_feeder()
    feed(feeder, 10)
    feeder.finish()
    topics.produce(5)
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(topics.source, 0, 12)]).values():
        future.result(LONG_SECONDS)
    with pytest.raises(ChangelogRecreated, match="offset 10 of partition 0 is next, and it begins at 12"):
        open_feeder()
    last = open_feeder(from_earliest=True)
    feed(last, 3)
    last.finish()
    assert topics.sent() == [*range(1, 11), 13, 14, 15]


def test_records_that_are_deleted_while_they_are_read_end_the_feeder(kafka: str, topics: Topics) -> None:
    topics.produce(10)
    source = KafkaSource(kafka, topics.source)
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(topics.source, 0, 5)]).values():
        future.result(LONG_SECONDS)
    source.read_from({0: 2})
    with closing(source), pytest.raises(ChangelogRecreated, match="offset 2 of partition 0 is next"):
        run(source.poll)


def make_anew(kafka: str, topic: str, partitions: int) -> None:
    delete_topic(kafka, topic)
    make_topic(kafka, topic, partitions)


def test_an_updates_topic_that_was_made_anew_gets_no_boundary_and_all_rows(
    kafka: str, topics: Topics, open_feeder: Callable[..., Feeder]
) -> None:
    topics.produce(6)
    feeder = open_feeder()
    feed(feeder, 6)
    feeder.finish()
    make_anew(kafka, topics.updates, KEY_GROUPS)
    topics.produce(2)
    time.sleep(0.3)  # a look is due
    with pytest.raises(ChangelogRecreated, match=r"what had been fed is gone|does not exist any more"):
        run(feeder.step)
    assert not any(topics.log(group) for group in range(KEY_GROUPS))
    last = open_feeder()
    feed(last, 8)
    last.finish()
    assert topics.sent() == list(range(1, 9))


def test_a_source_that_was_made_anew_is_refused_by_its_id(
    kafka: str, topics: Topics, open_feeder: Callable[..., Feeder]
) -> None:
    topics.produce(3)
    feeder = open_feeder()
    feed(feeder, 3)
    feeder.finish()
    make_anew(kafka, topics.source, 2)
    with pytest.raises(ChangelogRecreated, match="made anew"):
        run(feeder.step)
    with pytest.raises(ChangelogRecreated, match="made anew"):
        open_feeder()


def test_a_state_without_an_updates_topic_is_not_fed(kafka: str) -> None:
    with pytest.raises(InvalidConfiguration, match="the state is not fed by updates"):
        KafkaUpdates(kafka, "keyhole.app.none.updates")

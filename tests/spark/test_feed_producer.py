"""A program's writes on a real Kafka: durable once they are flushed, and a token says from which epoch on to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.changelog.settings import updates_topic_name
from keyhole.errors import ClientClosed, InvalidConfiguration, TooLarge, UnknownApplication, UnknownState
from keyhole.feed import Producer
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.control import record
from keyhole.protocol.updates import EndRecord, FeedRules, RulesRecord, UpdateRecord, decode, encode
from keyhole.testing.clock import ManualClock
from tests.support.states import KEY_GROUPS, descriptor

STATE = "totals"


@pytest.fixture
def declared(kafka: str, application: str) -> str:
    """The name of an application whose state is on record, and not fed."""
    of = descriptor(
        application=application,
        state=STATE,
        kind=StateKind.REDUCING,
        value=ValueSchema(1, (ValueField("n", "bigint"),)),
        reducers=("sum",),
    )
    with closing(KafkaChangelog(kafka, application).control("q")) as control:
        control.open(60)
        control.append(record("state", STATE, of), 60)
    return application


@pytest.fixture
def updates(kafka: str, declared: str) -> Iterator[KafkaUpdates]:
    """Its updates topic, without rules."""
    make_topics(kafka, {updates_topic_name(declared, STATE): KEY_GROUPS}, 60)
    with closing(KafkaUpdates(kafka, updates_topic_name(declared, STATE))) as opened:
        yield opened


def begin(updates: KafkaUpdates) -> None:
    """As the run of a feed does."""
    waiting = set(range(KEY_GROUPS))
    for group in range(KEY_GROUPS):
        updates.send(group, encode(RulesRecord(1, FeedRules())), lambda group=group: waiting.remove(group))
    while waiting:
        updates.poll(0.1)


def test_writes_are_there_once_they_are_flushed(kafka: str, declared: str, updates: KafkaUpdates) -> None:
    begin(updates)
    with Producer(kafka, f"{declared}/{STATE}", clock=ManualClock()) as producer:
        assert producer.flush().epochs == {}
        for n in range(20):
            producer.add(f"k{n % 5}", {"n": n})
        producer.delete("k0")
        token = producer.flush()
        for n in range(5):
            group = producer.key_group(f"k{n}")
            assert token.min_epoch(group) == updates.bounds(group)[1]
        with pytest.raises(TooLarge):
            producer.add("k" * updates.most_bytes, {"n": 1})
    with pytest.raises(ClientClosed):
        producer.flush()
    found = [decode(value) for group in range(KEY_GROUPS) for value in updates.read(group, *updates.bounds(group))]
    amounts = [one.value[0] for one in found if isinstance(one, UpdateRecord) and one.value is not None]
    assert sorted(amounts) == list(range(20))
    (source,) = {one.source for one in found if isinstance(one, UpdateRecord)}
    assert found.count(EndRecord(source)) == KEY_GROUPS


def test_a_state_that_is_not_fed_is_refused(kafka: str, declared: str) -> None:
    with pytest.raises(InvalidConfiguration, match="the state is not fed by updates"):
        Producer(kafka, f"{declared}/{STATE}")
    with pytest.raises(UnknownState, match="has no state others; it has totals"):
        Producer(kafka, f"{declared}/others")
    with pytest.raises(UnknownApplication, match="Start the job, or the `keyhole feed`, that declares the state"):
        Producer(kafka, f"{declared}-x/{STATE}")


def test_writes_ahead_of_the_first_rules_are_refused(kafka: str, declared: str, updates: KafkaUpdates) -> None:
    with pytest.raises(InvalidConfiguration, match="has no rules yet"):
        Producer(kafka, f"{declared}/{STATE}")

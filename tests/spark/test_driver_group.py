"""Which driver leads, by a real Kafka: members in one process, each with a connection of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
from confluent_kafka import Consumer

from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.driver_group import KafkaDriverGroup
from keyhole.errors import InvalidConfiguration
from tests.support.waiting import LONG_SECONDS


@pytest.fixture
def member(kafka: str) -> Iterator[Callable[[], KafkaDriverGroup]]:
    """Makes one more of the same group."""
    application, members = f"app-{uuid.uuid4().hex[:8]}", list[KafkaDriverGroup]()

    def joined() -> KafkaDriverGroup:
        members.append(KafkaDriverGroup(kafka, application, "orders"))
        members[-1].join()
        return members[-1]

    yield joined
    for of in members:
        of.close()


def test_one_leads_until_it_leaves_and_the_one_that_waits_leads_then(member: Callable[[], KafkaDriverGroup]) -> None:
    leading: list[str] = []
    first = member()
    assert first.await_lead(lambda: False, lambda: leading.append("first"))
    second, third = member(), member()
    assert not second.await_lead(lambda: "second" in leading, lambda: leading.append("second")), "the first one leads"
    assert first.await_lead(lambda: False, lambda: None), "who comes later doesn't take the lead"
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(of.await_lead, lambda: "over" in leading, lambda: None) for of in (second, third)]
        first.close()
        first.close()
        # Whichever it is: the other one goes on waiting.
        assert next(as_completed(waiting, LONG_SECONDS)).result()
        leading.append("over")
        assert sorted(of.result(LONG_SECONDS) for of in waiting) == [False, True]


def test_a_group_of_this_name_that_is_somebody_elses_is_refused_in_place_of_a_wait_without_end(kafka: str) -> None:
    application = f"app-{uuid.uuid4().hex[:8]}"
    ours = KafkaDriverGroup(kafka, application, "orders")
    settings = {"bootstrap.servers": kafka, "group.id": f"keyhole.{application}.orders.drivers"}
    other = Consumer({**settings, "partition.assignment.strategy": "range"})
    try:
        ours.join()
        assert ours.await_lead(lambda: False, lambda: None)
        ours.close()
        other.subscribe([f"keyhole.{application}.control"])
        deadline = Deadline(LONG_SECONDS)
        while not other.assignment():
            assert not deadline.passed
            other.poll(0.1)
        ours = KafkaDriverGroup(kafka, application, "orders")
        ours.join()
        with pytest.raises(InvalidConfiguration, match=rf"join group keyhole\.{application}\.orders\.drivers"):
            ours.await_lead(lambda: deadline.passed, lambda: None)
        assert ours.failed
    finally:
        ours.close()
        other.close()

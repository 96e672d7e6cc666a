"""Which driver leads, by a real Kafka: members in one process, each with a connection of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

from keyhole.changelog.kafka.driver_group import KafkaDriverGroup
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
    told: list[str] = []
    first = member()
    assert first.await_lead(lambda: False, lambda: told.append("first"))
    second, third = member(), member()
    assert not second.await_lead(lambda: "second" in told, lambda: told.append("second")), "the first one leads"
    assert first.await_lead(lambda: False, lambda: None), "who comes later doesn't take the lead"
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(of.await_lead, lambda: "over" in told, lambda: None) for of in (second, third)]
        first.close()
        first.close()
        # Whichever it is: the other one goes on waiting.
        assert next(as_completed(waiting, LONG_SECONDS)).result()
        told.append("over")
        assert sorted(of.result(LONG_SECONDS) for of in waiting) == [False, True]

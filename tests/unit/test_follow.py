"""What a follower asks of Kafka, order by order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keyhole.changelog.base import Partition
from keyhole.model.epoch import START
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from services.state_server.replica.follower import Subscription
from tests.support.simulation import SteppedFollower
from tests.support.states import descriptor


def test_of_what_is_followed_already_a_new_order_asks_nothing() -> None:
    asked: list[Mapping[str, Sequence[int]]] = []

    class Asked(MemoryChangelog):
        def reader(self) -> Any:
            reader = super().reader()
            ends = reader.ends
            reader.ends = lambda states, seconds: (asked.append(states), ends(states, seconds))[1]  # type: ignore[method-assign]
            return reader

    of = descriptor()
    changelog = Asked(MemoryKafka(), of.application)
    changelog.admin().ensure(of, 1)
    prepared: list[Mapping[Partition, int | None]] = []

    def prepare(number: int, ends: Mapping[Partition, int | None]) -> Any:
        prepared.append(ends)
        return dict.fromkeys(ends, START)

    follower = SteppedFollower(changelog, of.query, prepare, lambda delivery: None, ManualClock())
    for number, groups in enumerate([{0, 1}, {0}, {0, 1}, {1}, set[int](), {1}], 1):
        follower.subscribe(Subscription(number, {of.state: frozenset(groups)}))
        follower.step()
    assert asked == [{of.state: [0, 1]}, {of.state: [1]}, {of.state: [1]}]
    first, second = Partition(of.state, 0), Partition(of.state, 1)
    assert prepared == [{first: 0, second: 0}, {first: None}, {first: None, second: 0}, {second: None}, {second: 0}]

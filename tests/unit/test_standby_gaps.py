"""A standby in the compacted part of the log: between the markers that are left it holds states that never existed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from keyhole.changelog.base import Changelog, Marker, Partition, Reached, RestoredEpochs
from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS
from keyhole.clock import Clock
from keyhole.model.epoch import EpochStamp, Position
from keyhole.testing.clock import ManualClock
from services.state_server.replica.follower import Delivery, Prepare, Subscription
from services.state_server.replica.take_over import StateShare
from tests.support.hosts import Hosted
from tests.support.states import group, key, names_in, row

FIRST, SECOND = names_in(0, 2)
GROUP = Partition("counts", group(FIRST))
NOW_MS = ManualClock().now_ms()
OLD_MS = NOW_MS - MIN_COMPACTION_LAG_MS


class Handed:
    """A follower that brings what a test hands it."""

    def __init__(self, changelog: Changelog, query: str, prepare: Prepare, deliver: Callable[[Delivery], None]) -> None:
        self._prepare, self._deliver = prepare, deliver
        self._number = 0

    def start(self) -> None: ...

    def subscribe(self, subscription: Subscription) -> None:
        self._number = subscription.number

    def close(self) -> None: ...

    def join(self) -> None: ...

    async def bring(self, *items: RestoredEpochs | Reached) -> None:
        await asyncio.to_thread(self._deliver, Delivery(self._number, items, None))


def piece(epoch: int, changes: Sequence[tuple[str, float]], commit_time_ms: int) -> RestoredEpochs:
    """One epoch, two offsets after the one before."""
    marker = Marker(EpochStamp(epoch, 1, commit_time_ms, 0), 0, 0)
    position = Position(2 * epoch, epoch, 1, 0, commit_time_ms)
    return RestoredEpochs(GROUP, [(key(name), row(n)) for name, n in changes], position, marker, len(changes) + 1)


class Standby:
    """One that follows a single key group."""

    def __init__(self) -> None:
        self.hosted = Hosted(make_follower=self._make)

    def _make(
        self, changelog: Changelog, query: str, prepare: Prepare, deliver: Callable[[Delivery], None], clock: Clock
    ) -> Handed:
        self.follower = Handed(changelog, query, prepare, deliver)
        return self.follower

    async def start(self) -> None:
        await self.hosted.host.follow([StateShare(self.hosted.of, frozenset(), frozenset({GROUP.key_group}))])

    def rows(self) -> list[bytes | None]:
        return list(self.hosted.table.lookup([key(FIRST), key(SECOND)]).rows)

    def warm(self) -> bool:
        return bool(self.hosted.host.warm())


@pytest.fixture
async def standby() -> AsyncIterator[Standby]:
    of = Standby()
    await of.start()
    yield of
    await of.hosted.host.close()


async def test_young_epochs_are_shown_one_by_one(standby: Standby) -> None:
    await standby.follower.bring(Reached(GROUP, 0))
    await standby.follower.bring(piece(1, [(FIRST, 1.0)], NOW_MS))
    assert standby.rows() == [row(1.0), None]
    await standby.follower.bring(piece(2, [(SECOND, 2.0)], NOW_MS))
    assert standby.rows() == [row(1.0), row(2.0)]
    assert standby.warm()


async def test_in_old_epochs_the_last_state_that_existed_stays_until_the_end_is_reached(standby: Standby) -> None:
    await standby.follower.bring(Reached(GROUP, 0), piece(1, [(FIRST, 1.0), (SECOND, 1.0)], NOW_MS))
    # Epoch 2 also changed FIRST, to what epoch 3 changed again: compaction has left nothing of that.
    await standby.follower.bring(piece(2, [(SECOND, 2.0)], OLD_MS))
    assert standby.rows() == [row(1.0), row(1.0)]
    assert not standby.warm()
    await standby.follower.bring(piece(3, [(FIRST, 3.0)], OLD_MS))
    assert standby.rows() == [row(1.0), row(1.0)]
    await standby.follower.bring(Reached(GROUP, 6))
    assert standby.rows() == [row(3.0), row(2.0)]
    assert standby.warm()


async def test_nothing_is_shown_before_the_end_was_reached_for_the_first_time(standby: Standby) -> None:
    await standby.follower.bring(piece(1, [(FIRST, 1.0)], NOW_MS))
    assert standby.hosted.table.standby.groups == frozenset()
    await standby.follower.bring(Reached(GROUP, 2))
    assert standby.rows() == [row(1.0), None]


async def test_what_was_read_for_an_order_before_is_not_applied(standby: Standby) -> None:
    await standby.follower.bring(Reached(GROUP, 0))
    late = standby.follower._number
    await standby.start()
    await asyncio.to_thread(standby.follower._deliver, Delivery(late, [piece(1, [(FIRST, 1.0)], NOW_MS)], None))
    assert standby.rows() == [None, None]

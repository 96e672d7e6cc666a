"""A watch that reads back what is not in memory, while more is committed; and what of a large epoch is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing

import pytest

from keyhole.changelog.base import PartitionChanges
from keyhole.encoding.storage_key import group_of
from keyhole.encoding.watch_token import WatchMark, WatchPlace, marks_of, watch_place
from keyhole.errors import OutcomeUnknown, UnavailableError
from keyhole.model.state import StateDescriptor
from keyhole.rpc.watch_requests import WatchAsked
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.memory_kafka import NextCommit
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watch_selection import Selections, WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshots
from services.state_server.read.watcher import GroupEpoch, Watcher
from services.state_server.read.watching import Watching
from services.state_server.servicers.changelog_history import ChangelogHistory
from services.state_server.write import store_write
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, key, names_in, row
from tests.support.waiting import LONG_SECONDS

GROUPS = frozenset(range(KEY_GROUPS))


async def owning() -> Hosted:
    hosted = Hosted()
    await hosted.own()
    return hosted


def watching(hosted: Hosted, history: ChangelogHistory, place: WatchPlace | None) -> Watching:
    asked = WatchAsked(None, 0, GROUPS, place, True, False, False, False, 5.0)
    select = WatchSelection(hosted.table, asked, Selections(), 2_000)
    return Watching(
        hosted.table, asked, history, hosted.clock, lambda: None, WatchLimits(), WatchSnapshots(1, 30.0), select
    )


class Busy(ChangelogHistory):
    """Whenever something is read back, the next epoch is committed."""

    def __init__(self, hosted: Hosted) -> None:
        super().__init__(lambda of: MemoryChangelog(hosted.kafka, of))
        self._hosted = hosted
        self.epoch = 0

    async def commit(self) -> None:
        self.epoch += 1
        self._hosted.clock.advance(10.0)
        await self._hosted.apply(self.epoch, {key(name): row(float(self.epoch)) for name in ("a", "b")})

    async def epochs(
        self, descriptor: StateDescriptor, marks: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncGenerator[GroupEpoch]:
        await self.commit()
        async with aclosing(super().epochs(descriptor, marks, ends)) as epochs:
            async for epoch in epochs:
                yield epoch


async def test_a_watch_that_never_catches_up_with_memory_moves_its_time_on() -> None:
    hosted = await owning()
    hosted.table.changes._most_bytes = 0
    history = Busy(hosted)
    await history.commit()
    began_ms = hosted.clock.now_ms()
    place = WatchPlace(dict.fromkeys(GROUPS, WatchMark(0, 0)), began_ms)
    given: list[tuple[int, int]] = []
    async with aclosing(watching(hosted, history, place).messages()) as messages:
        async for message in messages:
            given += [(sent.stamp.epoch, message.as_of_ms - began_ms) for sent in message.sent]
            if len(given) == 8:
                break
    # Of two key groups each epoch; behind each of them, all is given that was committed when it was begun.
    assert given == [(1, 0), (1, 0), (2, 0), (2, 0), (3, 10_000), (3, 10_000), (4, 20_000), (4, 20_000)]
    await hosted.host.close()


@pytest.mark.parametrize("fate", [NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, NextCommit.IS_LOST_AND_NOT_ANSWERED])
async def test_an_epoch_whose_outcome_its_owner_is_not_told_is_given_once(fate: NextCommit) -> None:
    hosted = await owning()
    history = ChangelogHistory(lambda of: MemoryChangelog(hosted.kafka, of))
    given, begun = list[tuple[bytes, int]](), asyncio.Event()

    async def follow() -> None:
        token = ""
        while True:
            place = watch_place(token, hosted.of, 0) if token else None
            try:
                async with aclosing(watching(hosted, history, place).messages()) as messages:
                    async for message in messages:
                        token = message.token or token
                        if message.snapshot_done:
                            begun.set()
                        if message.sent:
                            given.extend((of, sent.stamp.epoch) for sent in message.sent for of in sent.keys)
                        if (key("a"), 2) in given:
                            return
            except UnavailableError:
                await asyncio.sleep(0.001)

    async with asyncio.timeout(LONG_SECONDS):
        reader = asyncio.create_task(follow())
        await begun.wait()
        rows = {key(name): row(1.0) for name in ("a", "b")}
        receipts = await hosted.stage(1, rows)
        hosted.kafka.next_commit = fate
        with pytest.raises(OutcomeUnknown):
            await hosted.commit(1, receipts)
        await hosted.own(generation=2)
        await hosted.apply(1, rows)
        await hosted.apply(2, {key("a"): row(2.0)})
        await reader
    assert sorted(given) == sorted([(key("a"), 1), (key("b"), 1), (key("a"), 2)])
    await hosted.host.close()


async def test_a_token_says_which_key_group_is_further_than_the_epoch_of_which_all_was_given() -> None:
    hosted = await owning()
    history = ChangelogHistory(lambda of: MemoryChangelog(hosted.kafka, of))
    await hosted.apply(1, {key("a"): row(1.0), key("b"): row(1.0)})
    await hosted.apply(2, {key("a"): None})
    # The driver was killed before it was known that all have epoch 2.
    await hosted.own(generation=2, complete=1)
    keys = list[bytes]()
    async with aclosing(watching(hosted, history, None).messages()) as messages, asyncio.timeout(LONG_SECONDS):
        async for message in messages:
            keys += [of for sent in message.sent for of in sent.keys]
            if message.stamp.epoch:
                break
    assert (keys, message.stamp.epoch) == ([key("b")], 1)
    marks = marks_of(message.token)
    assert (marks[group_of(key("a"))].epoch, marks[group_of(key("b"))].epoch) == (2, 1)
    await hosted.host.close()


async def test_what_is_kept_of_one_epoch_is_bounded_over_all_its_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(written: Sequence[PartitionChanges]) -> Iterator[list[PartitionChanges]]:
        return ([item] for item in written)

    monkeypatch.setattr(store_write, "portions", one_by_one)
    monkeypatch.setattr("services.state_server.write.watched_write.MOST_BYTES", 500)
    hosted = await owning()
    changes, published = hosted.table.changes, list[GroupEpoch]()
    changes.expect(Watcher(None, GROUPS), hosted.table.committed.positions)
    monkeypatch.setattr(changes, "published", lambda epochs, _: published.extend(epochs))
    await hosted.apply(1, {key(name): row(1.0) for group in GROUPS for name in names_in(group, 1)})
    assert len(published) == KEY_GROUPS
    assert 0 < sum(epoch.size for epoch in published) <= 500
    assert any(epoch.changes is None for epoch in published)
    await hosted.host.close()


async def test_who_is_slow_to_take_what_is_read_back_keeps_nobody_waiting() -> None:
    hosted = await owning()
    for number in range(1, 5):
        await hosted.apply(number, {key("a"): row(float(number))})
    history = ChangelogHistory(lambda of: MemoryChangelog(hosted.kafka, of), 0.01)
    ends = {group: position.offset for group, position in hosted.table.committed.positions().items() if position.offset}
    marks = dict.fromkeys(ends, 0)
    async with AsyncExitStack() as stack, asyncio.timeout(LONG_SECONDS):
        slow = [await stack.enter_async_context(aclosing(history.epochs(hosted.of, marks, ends))) for _ in range(3)]
        found = [[(await anext(one)).after.epoch] for one in slow]
        async with aclosing(history.epochs(hosted.of, marks, ends)) as quick:
            assert [epoch.after.epoch async for epoch in quick] == [1, 2, 3, 4]
        # They go on where they were, each epoch once.
        for one, epochs in zip(slow, found, strict=True):
            epochs += [epoch.after.epoch async for epoch in one]
        assert found == [[1, 2, 3, 4]] * 3
    await hosted.host.close()

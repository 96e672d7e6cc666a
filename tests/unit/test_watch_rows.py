"""The snapshots from which watches read rows are few, are not held for long, and not while changes are read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import pytest

from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace, watch_place
from keyhole.model.epoch import Position
from keyhole.model.state import StateDescriptor
from keyhole.protocol.failpoints import Step
from keyhole.rpc.watch_requests import WatchAsked
from keyhole.stores.memory import MemorySnapshot
from keyhole.testing.changelog import MemoryChangelog
from services.state_server.read.watch_messages import Message
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watch_selection import Selections, WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshots
from services.state_server.read.watch_times import RESUMABLE_MS
from services.state_server.read.watcher import GroupEpoch
from services.state_server.read.watching import Watching
from services.state_server.servicers.changelog_history import ChangelogHistory
from tests.support.fed_hosts import NAMES, begun, closed
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, key, names_in, row
from tests.support.waiting import LONG_SECONDS, eventually

GROUPS = frozenset(range(KEY_GROUPS))
LIMITS = WatchLimits(page_changes=1)


def rows(celsius: float) -> dict[bytes, bytes | None]:
    return {key(name): row(celsius) for group in GROUPS for name in names_in(group, 3)}


def watching(
    hosted: Hosted, snapshots: WatchSnapshots, place: WatchPlace | None = None, history: ChangelogHistory | None = None
) -> Watching:
    history = history or ChangelogHistory(lambda of: MemoryChangelog(hosted.kafka, of))
    asked = WatchAsked(None, 0, GROUPS, place, True, False, False, False, 0.0)
    select = WatchSelection(hosted.table, asked, Selections(), 2_000)
    return Watching(hosted.table, asked, history, hosted.clock, lambda: None, LIMITS, snapshots, select)


async def until_rows_are_done(messages: AsyncGenerator[Message]) -> int:
    """How many rows came."""
    count = 0
    async with asyncio.timeout(LONG_SECONDS):
        async for message in messages:
            count += sum(len(sent.keys) for sent in message.sent)
            if message.snapshot_done:
                break
    return count


async def test_who_does_not_read_its_rows_keeps_no_snapshot_and_nobody_waiting() -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.apply(1, rows(1.0))
    snapshots = WatchSnapshots(most=1, seconds=0.01)
    async with aclosing(watching(hosted, snapshots).messages()) as idle:
        given = 0
        while not given:
            message = await anext(idle)
            given += sum(len(sent.keys) for sent in message.sent)
        async with aclosing(watching(hosted, snapshots).messages()) as reading:
            assert await until_rows_are_done(reading) == len(rows(1.0))
        await eventually(lambda: not snapshots._turn.locked())
        # It goes on where it was, from another snapshot.
        assert given + await until_rows_are_done(idle) == len(rows(1.0))
    await hosted.host.close()


class Noting(ChangelogHistory):
    """Says whether a snapshot was held while something was read back."""

    def __init__(self, hosted: Hosted, snapshots: WatchSnapshots) -> None:
        super().__init__(lambda of: MemoryChangelog(hosted.kafka, of))
        self._snapshots = snapshots
        self.held: list[bool] = []

    async def epochs(
        self, descriptor: StateDescriptor, marks: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncGenerator[GroupEpoch]:
        self.held.append(self._snapshots._turn.locked())
        async with aclosing(super().epochs(descriptor, marks, ends)) as epochs:
            async for epoch in epochs:
                yield epoch


async def test_what_has_changed_of_rows_that_were_given_is_read_back_before_a_snapshot_is_held() -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.apply(1, rows(1.0))
    position = hosted.table.committed.positions()[0]
    await hosted.apply(2, rows(2.0))
    first = min(of for of in rows(1.0) if of[:2] == b"\0\0")
    half_way = {0: WatchMark(position.offset, 1, 0, first)}
    snapshots = WatchSnapshots(most=1, seconds=LONG_SECONDS)
    history = Noting(hosted, snapshots)
    place = WatchPlace(dict.fromkeys(GROUPS, NOT_BEGUN) | half_way, hosted.clock.now_ms())
    async with aclosing(watching(hosted, snapshots, place, history).messages()) as messages:
        assert await until_rows_are_done(messages) == len(rows(1.0))
    assert history.held == [False]
    await hosted.host.close()


async def test_how_far_key_groups_are_is_read_once_for_all_watches_of_what_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.apply(1, rows(1.0))
    positions, reads = MemorySnapshot.positions, list[MemorySnapshot]()

    def noted(snapshot: MemorySnapshot) -> Mapping[int, Position]:
        reads.append(snapshot)
        return positions(snapshot)

    monkeypatch.setattr(MemorySnapshot, "positions", noted)
    for _ in range(2):
        async with aclosing(watching(hosted, WatchSnapshots(1, LONG_SECONDS)).messages()) as messages:
            assert await until_rows_are_done(messages) == len(rows(1.0))
    assert len(reads) == 1
    await hosted.host.close()


async def test_rows_may_take_longer_than_a_token_lives_and_what_changes_of_them_meanwhile_comes() -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.apply(1, rows(1.0))
    there, epoch, token, count = dict(rows(1.0)), 1, "", 0
    given: dict[bytes, bytes | None] = {}
    snapshots = WatchSnapshots(1, LONG_SECONDS)
    oldest_ms = 0
    async with asyncio.timeout(LONG_SECONDS):
        done = False
        while not done:  # left now and then
            place = watch_place(token, hosted.of, 0) if token else None
            async with aclosing(watching(hosted, snapshots, place).messages()) as messages:
                async for message in messages:
                    token = message.token or token
                    if message.sent:
                        given |= [row for sent in message.sent for row in zip(sent.keys, sent.rows, strict=True)]
                        # Its reader takes a minute, and now and then the first row changes.
                        hosted.clock.advance(60.0)
                        hosted.host.lease.confirm()
                        count += 1
                        if count % 3 == 0:
                            epoch += 1
                            there[next(iter(given))] = row(float(epoch))
                            await hosted.apply(epoch, {next(iter(given)): row(float(epoch))})
                        oldest_ms = max(oldest_ms, hosted.clock.now_ms() - message.as_of_ms)
                        if count % 5 == 0:
                            break
                    done |= message.snapshot_done
                    if done and given == there:
                        break
    assert given == there
    assert epoch > 3
    assert 60_000 * count > RESUMABLE_MS > oldest_ms
    await hosted.host.close()


async def test_who_waits_for_a_snapshot_or_for_the_changelog_says_so() -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.apply(1, rows(1.0))
    snapshots = WatchSnapshots(1, LONG_SECONDS)
    async with aclosing(watching(hosted, snapshots).messages()) as waits:
        async with aclosing(watching(hosted, snapshots).messages()) as holds:
            while not (await anext(holds)).sent:
                pass
            async with asyncio.timeout(LONG_SECONDS):
                for _ in range(3):
                    assert not (await anext(waits)).sent
        assert await until_rows_are_done(waits) == len(rows(1.0))
    assert not snapshots._turn.locked()
    # One that gives its place up takes nobody's turn.
    async with snapshots.queued() as holds_it:
        assert await holds_it.has_turn(0)
        async with snapshots.queued() as gone:
            assert not await gone.has_turn(0)
        async with snapshots.queued() as comes_late:
            assert not await comes_late.has_turn(0)
            await holds_it.leave()
            await asyncio.sleep(0)
    assert not snapshots._turn.locked()
    await hosted.apply(2, rows(2.0))
    hosted.table.changes._rest()
    given = WatchPlace({group: WatchMark(0, 0) for group in GROUPS}, hosted.clock.now_ms())
    stuck = Stuck(lambda of: MemoryChangelog(hosted.kafka, of))
    async with (
        aclosing(watching(hosted, snapshots, given, stuck).messages()) as messages,
        asyncio.timeout(LONG_SECONDS),
    ):
        for _ in range(3):
            assert not (await anext(messages)).sent
        stuck.free.set()
        while not (await anext(messages)).sent:
            pass
    await hosted.host.close()


class Stuck(ChangelogHistory):
    """Gives nothing until it is free."""

    free = asyncio.Event()

    async def epochs(
        self, descriptor: StateDescriptor, marks: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncGenerator[GroupEpoch]:
        await self.free.wait()
        async with aclosing(super().epochs(descriptor, marks, ends)) as epochs:
            async for epoch in epochs:
                yield epoch


class Nothing(ChangelogHistory):
    """Nothing is to be read back."""

    def epochs(
        self, descriptor: StateDescriptor, marks: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncGenerator[GroupEpoch]:
        raise AssertionError(f"read back from {marks} to {ends}")


async def test_the_rows_of_a_quiet_state_that_is_fed_by_updates_are_all_that_is_committed() -> None:
    fed = await begun()
    for at, name in enumerate(NAMES):
        fed.add(name, float(at))
    await fed.steps()
    # And nothing comes after it: what is published stays as it was before the commit.
    await fed.host.feeding.commit()
    nothing = Nothing(lambda of: MemoryChangelog(fed.kafka, of))
    async with aclosing(watching(fed, WatchSnapshots(1, LONG_SECONDS), history=nothing).messages()) as messages:
        assert await until_rows_are_done(messages) == len(NAMES)
        # Nor does any of it come as a change.
        message = await anext(messages)
        assert not message.sent
        place = watch_place(message.token, fed.of, 0)
    # Who was given some of the rows goes on with the others.
    first = fed.table.committed.positions()[0]
    half_way = dict.fromkeys(GROUPS, NOT_BEGUN) | {0: WatchMark(first.offset, first.epoch, 0, key(NAMES[0]))}
    place = WatchPlace(half_way, place.as_of_ms)
    again = watching(fed, WatchSnapshots(1, LONG_SECONDS), place, nothing)
    async with aclosing(again.messages()) as messages:
        assert await until_rows_are_done(messages) == len(NAMES) - 1
    await closed(fed)


class Between:
    """Does something on the event loop between a commit in the changelog and its publication."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.hosted: Hosted | None = None
        self.messages: AsyncGenerator[Message] | None = None
        self.seen: list[tuple[int, int]] = []

    def reached(self, step: Step, epoch: int) -> None:
        if step is Step.SERVER_TRANSACTION_COMMITTED and self.messages is not None:
            asyncio.run_coroutine_threadsafe(self._tell(), self.loop).result()

    async def _tell(self) -> None:
        assert self.hosted is not None
        assert self.messages is not None
        self.hosted.clock.advance(10.0)
        self.hosted.host.lease.confirm()
        self.seen.append(((await anext(self.messages)).as_of_ms, self.hosted.table.confirmed_ms))


async def test_a_watch_does_not_say_that_it_has_a_commit_which_is_under_way() -> None:
    between = Between()
    hosted = between.hosted = Hosted(observer=between)
    await hosted.own()
    await hosted.apply(1, rows(1.0))
    async with aclosing(watching(hosted, WatchSnapshots(1, LONG_SECONDS)).messages()) as messages:
        await until_rows_are_done(messages)
        before_ms = (await anext(messages)).as_of_ms
        between.messages = messages
        await hosted.apply(2, rows(2.0))
        assert between.seen == [(before_ms, before_ms + 10_000)]
        while (message := await anext(messages)).as_of_ms == before_ms:
            assert message.sent
        assert message.as_of_ms == before_ms + 10_000
    await hosted.host.close()

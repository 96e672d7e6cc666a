"""Each message of a watch that has changes has a token, and who goes on behind it gets the rest, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from keyhole import field
from keyhole.encoding.watch_token import WatchPlace, watch_place
from keyhole.model.selection import EVERYTHING, Selection, selection
from keyhole.rpc.watch_requests import WatchAsked
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.clock import ManualClock
from services.state_server.read.watch_messages import Message
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watch_selection import Selections, WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshots
from services.state_server.read.watching import Watching
from services.state_server.servicers.changelog_history import ChangelogHistory
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, key, names_in, row
from tests.support.waiting import LONG_SECONDS

GROUPS = frozenset(range(KEY_GROUPS))
Change = tuple[int, bytes, bytes | None]
"""Epoch, storage key, row."""


class Ticking(ManualClock):
    """A second has passed whenever it is looked at."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def rows(celsius: float, each: int) -> dict[bytes, bytes | None]:
    """So many of each key group."""
    return {key(name): row(celsius) for group in GROUPS for name in names_in(group, each)}


def watching(
    hosted: Hosted,
    place: WatchPlace | None = None,
    select: Selection = EVERYTHING,
    limits: WatchLimits | None = None,
    *,
    latest_only: bool = False,
    progress_seconds: float = LONG_SECONDS,
) -> Watching:
    limits = limits or WatchLimits(turn=1)
    predicate = b"" if select is EVERYTHING else b"one"
    asked = WatchAsked(None, 0, GROUPS, place, False, False, latest_only, False, progress_seconds, select, predicate)
    history = ChangelogHistory(lambda of: MemoryChangelog(hosted.kafka, of))
    selected = WatchSelection(hosted.table, asked, Selections(), limits.turn)
    snapshots = WatchSnapshots(1, LONG_SECONDS)
    return Watching(hosted.table, asked, history, Ticking(), lambda: None, limits, snapshots, selected)


def changes_of(message: Message) -> list[Change]:
    return [
        (sent.stamp.epoch, key, row) for sent in message.sent for key, row in zip(sent.keys, sent.rows, strict=True)
    ]


async def read_on(
    messages: AsyncGenerator[Message], all_of: dict[bytes, bytes | None], quiet: int = 0
) -> list[Message]:
    """Those with changes, until all has come, and so many without."""
    found: list[Message] = []
    rows: dict[bytes, bytes | None] = {}
    without = 0
    async with asyncio.timeout(LONG_SECONDS):
        while without < quiet or not all_of.items() <= rows.items():
            message = await anext(messages)
            without += 1
            if changes := changes_of(message):
                found.append(message)
                rows |= {key: row for _, key, row in changes}
                without = 0
    return found


async def begun(messages: AsyncGenerator[Message]) -> None:
    while not (await anext(messages)).snapshot_done:
        pass


async def check_each_token(
    hosted: Hosted, found: Sequence[Message], there: dict[bytes, bytes | None], *, latest_only: bool = False
) -> None:
    """What came up to it and what comes behind it is all of it, and nothing twice."""
    before: list[Change] = []
    for message in found:
        assert message.token, message
        before += changes_of(message)
        given = {key: row for _, key, row in before}
        left = {key: row for key, row in there.items() if given.get(key) != row}
        place = watch_place(message.token, hosted.of, 0)
        async with aclosing(watching(hosted, place, latest_only=latest_only, progress_seconds=0.5).messages()) as rest:
            behind = [change for later in await read_on(rest, left, 5) for change in changes_of(later)]
        came = [(epoch, key) for epoch, key, _ in (*before, *behind)]
        assert len(came) == len(set(came))
        assert given | {key: row for _, key, row in behind} == there


@pytest.mark.parametrize("seconds", [1, 3, 6])
async def test_where_a_message_is_due_within_an_epoch_it_has_all_that_was_given_and_a_token_behind_that(
    seconds: int,
) -> None:
    hosted = Hosted()
    await hosted.own()
    async with aclosing(watching(hosted, progress_seconds=seconds + 0.5).messages()) as messages:
        await begun(messages)
        # One key group has one change, which all are sent alike, and another one is looked at in several turns.
        (name, *_), several = names_in(0), names_in(1)
        await hosted.apply(1, {key(of): row(1.0) for of in (name, *several)})
        await hosted.apply(2, rows(2.0, 3))
        found = await read_on(messages, rows(2.0, 3))
    assert sum(len(changes_of(message)) for message in found) == 4 + 3 * KEY_GROUPS
    await check_each_token(hosted, found, rows(2.0, 3))
    await hosted.host.close()


async def test_so_it_is_where_changes_were_replaced_by_later_ones() -> None:
    hosted = Hosted()
    await hosted.own()
    slow = watching(hosted, limits=WatchLimits(page_changes=1), latest_only=True)
    slow._watcher._most_bytes = 5_000
    async with aclosing(slow.messages()) as messages:
        await begun(messages)
        for epoch, each in ((1, 3), (2, 2), (3, 2), (4, 2), (5, 2)):
            await hosted.apply(epoch, rows(float(epoch), each))
        there = rows(1.0, 3) | rows(5.0, 2)
        found = await read_on(messages, there)
    changes = [change for message in found for change in changes_of(message)]
    assert len(changes) < (3 + 4 * 2) * KEY_GROUPS
    assert slow._watcher.error is None
    await check_each_token(hosted, found, there, latest_only=True)
    await hosted.host.close()


async def test_who_goes_on_where_changes_were_replaced_is_told_of_all_that_its_predicate_has_become_false_of() -> None:
    hosted = Hosted()
    await hosted.own()
    warm = selection(field("n") > 3.0, None, keys_only=False)
    slow = watching(hosted, None, warm, WatchLimits(page_changes=1), latest_only=True)
    slow._watcher._most_bytes = 5_000
    async with aclosing(slow.messages()) as messages:
        await begun(messages)
        await hosted.apply(1, rows(5.0, 3))
        had = {key: row for message in await read_on(messages, rows(5.0, 3)) for _, key, row in changes_of(message)}
        # Of each key group one stays warm, and two are cold from now on, the later the colder.
        await hosted.apply(2, rows(1.0, 3) | dict.fromkeys(rows(0.0, 3).keys() - rows(0.0, 2).keys(), row(7.0)))
        for epoch in range(3, 7):
            await hosted.apply(epoch, rows(1.0 / epoch, 2))
        gone: dict[bytes, bytes | None] = dict.fromkeys(rows(0.0, 2))
        there = gone | dict.fromkeys(rows(0.0, 3).keys() - gone.keys(), row(7.0))
        found = await read_on(messages, there)
    for message in found:
        had |= {key: row for _, key, row in changes_of(message)}
        place = watch_place(message.token, hosted.of, 0)
        again = watching(hosted, place, warm, latest_only=True, progress_seconds=0.5)
        async with aclosing(again.messages()) as rest:
            # All that there is has come by then: nothing is committed any more.
            behind = [change for later in await read_on(rest, {}, 50) for change in changes_of(later)]
        assert had | {key: row for _, key, row in behind} == there
    await hosted.host.close()

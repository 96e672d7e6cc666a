"""Who watches a state that is fed by updates gets what is committed of them, and not what is applied alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keyhole.encoding.storage_key import group_of
from keyhole.encoding.watch_token import WatchMark, watch_place
from keyhole.errors import KafkaUnreachable
from keyhole.rpc.watch_requests import WatchAsked
from keyhole.stores.base import Batch
from services.state_server.read.watch_given import GivenSoFar
from services.state_server.read.watcher import Watcher
from tests.support.fed_hosts import NAMES, STATE, Fed, begun, closed
from tests.support.states import KEY_GROUPS, key


def taken(watcher: Watcher) -> list[tuple[bytes, bytes | None, bytes | None]]:
    found = []
    while (pending := watcher.take()) is not None:
        found += [(change.key, change.entry, change.before) for change in pending.changes]
    return found


def attached(fed: Fed) -> Watcher:
    """One who watches all of the state from where it is."""
    changes = fed.table.changes
    watcher = Watcher(None, frozenset(range(KEY_GROUPS)), befores=True)
    changes.expect(watcher, fed.table.committed.positions)
    assert changes.attach(watcher, {of: WatchMark.at(position) for of, position in changes.positions.items()})
    return watcher


async def test_a_change_is_given_once_it_is_committed_and_rows_are_those_that_are() -> None:
    fed = await begun()
    name = NAMES[0]
    group = group_of(key(name))
    fed.add(name, 1.0)
    await fed.steps()
    changes = fed.table.changes
    watcher = attached(fed)
    held = fed.table.owned.hold()
    assert held.stored.get(key(name)) is None
    held.release()
    assert fed.sums([name]) == [1.0]
    assert taken(watcher) == []

    await fed.host.feeding.commit()
    ((changed, first, before),) = taken(watcher)
    assert (changed, before) == (key(name), None)
    fed.add(name, 2.0)
    await fed.steps()
    assert fed.sums([name]) == [3.0]
    assert taken(watcher) == []
    held = fed.table.owned.hold()
    assert held.stored.get(key(name)) == first
    held.release()
    await fed.host.feeding.commit()
    ((_, second, before),) = taken(watcher)
    assert before == first != second
    assert changes.positions[group].offset == fed.table.committed.positions()[group].offset
    await closed(fed)


async def test_who_comes_while_a_store_is_written_misses_nothing_of_that_write(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1.0)
    await fed.steps()
    loop = asyncio.get_running_loop()
    state = fed.host._states.hosted[STATE]
    apply, watchers = state.apply, list[Watcher]()

    async def comes() -> None:
        watchers.append(attached(fed))
        # What is confirmed now does not have this commit, though it is in the changelog.
        confirmed_ms = fed.table.confirmed_ms
        fed.clock.advance(10.0)
        fed.host.lease.confirm()
        assert fed.table.complete_ms == confirmed_ms < fed.table.confirmed_ms

    def applied(batch: Batch, *befores: Any) -> None:
        """Host thread: whether changes are kept has been decided by now."""
        if not watchers:
            asyncio.run_coroutine_threadsafe(comes(), loop).result()
        apply(batch, *befores)

    monkeypatch.setattr(state, "apply", applied)
    await fed.host.feeding.commit()
    (watcher,) = watchers
    # It is not in memory, and so is read back from the changelog.
    assert watcher.lost
    assert fed.table.complete_ms == fed.table.confirmed_ms
    assert dict(fed.table.changes.positions) == dict(fed.table.committed.positions())
    await closed(fed)


async def test_what_is_in_the_store_is_given_where_the_commit_fails_behind_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = await begun()
    watcher = attached(fed)
    commits = fed.host.feeding._commits
    carry_out = commits._carry_out

    async def fails(commit: Any) -> None:
        await carry_out(commit)
        raise KafkaUnreachable("planted")

    monkeypatch.setattr(commits, "_carry_out", fails)
    fed.add(NAMES[0], 1.0)
    await fed.steps()
    with pytest.raises(KafkaUnreachable):
        await fed.host.feeding.commit()
    assert [changed for changed, *_ in taken(watcher)] == [key(NAMES[0])]
    await closed(fed)


async def test_a_view_of_all_key_groups_gives_what_has_led_there(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = await begun()
    watcher = attached(fed)

    async def nothing() -> None:
        """The view comes first."""

    with monkeypatch.context() as planted:
        planted.setattr(fed.host.feeding._commits, "_tell_watchers", nothing)
        fed.add(NAMES[0], 1.0)
        await fed.steps()
        await fed.host.feeding.commit()
    assert taken(watcher) == []
    fed.host._states.publish_applied(await fed.host._thread.call(fed.host._states.views))
    assert [changed for changed, *_ in taken(watcher)] == [key(NAMES[0])]
    assert not watcher.lost
    await closed(fed)


async def test_a_watch_is_as_old_as_what_it_was_given_of_the_log_whatever_the_lease_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = await begun()
    monkeypatch.setattr(fed.host.feeding._due, "_commit_at", float("inf"))
    await fed.steps()
    await fed.ask()
    await fed.host.feeding.commit()
    given = GivenSoFar(
        fed.table,
        WatchAsked(None, 0, frozenset(range(KEY_GROUPS)), None, False, False, False, False, 5.0),
        fed.clock,
        lambda: None,
    )
    fed.table.changes.expect(attached(fed), fed.table.committed.positions)
    given.begin()

    def age_seconds() -> float:
        return (fed.clock.now_ms() - given.message().as_of_ms) / 1000

    assert age_seconds() == 0.0
    fed.add(NAMES[0], 1.0)
    await fed.steps()
    for _ in range(5):
        fed.clock.advance(1.0)
        fed.host.lease.confirm()
    await fed.ask()
    assert fed.is_within(NAMES[0], 0.0)
    given.reach_published()
    assert age_seconds() == 5.0, "it is applied, and not committed"
    fed.clock.advance(60.0)  # the lease passes
    await fed.ask()
    await fed.host.feeding.commit()
    given.reach_published()
    assert age_seconds() == 0.0
    assert watch_place(given.message().token, fed.of, 0).as_of_ms == fed.clock.now_ms()
    await closed(fed)

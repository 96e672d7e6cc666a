"""An owner of a state that is fed by updates, where something fails: what it keeps, gives up and tries again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from keyhole.changelog.base import Partition, PartitionChanges, RefusedRecord
from keyhole.errors import (
    ChangelogRecreated,
    InvalidConfiguration,
    KafkaUnreachable,
    KeyholeError,
    NotReady,
    StoreFull,
    TooLarge,
)
from keyhole.testing.changelog import MemoryChangelog, MemoryWriter
from keyhole.testing.updates import MemoryUpdatesTopics
from services.state_server.write import feed_commits
from services.state_server.write.group_feed import GroupFeed
from services.state_server.write.query_states import PublishedView
from tests.support.fed_hosts import NAMES, STATE, TOPIC, Fed, begun, closed
from tests.support.states import key, names_in
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS

LETTERS = f"{TOPIC}.dead-letter"


def fail_once(monkeypatch: pytest.MonkeyPatch, key_group: int = 0) -> None:
    """Applying a key group fails once, for no reason that it knows."""
    apply, failed = GroupFeed.apply, []

    def failing(self: GroupFeed, *of: Any) -> Any:
        if self._key_group == key_group and not failed:
            failed.append(self)
            raise RuntimeError("it was told to fail")
        return apply(self, *of)

    monkeypatch.setattr(GroupFeed, "apply", failing)


def refusing(monkeypatch: pytest.MonkeyPatch, method: str, error: KeyholeError, of: type = MemoryUpdatesTopics) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(of, method, refuse)


async def test_one_look_that_finds_no_topic_stops_nothing_and_two_do() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    away = fed.kafka._topics.pop(TOPIC)
    with pytest.raises(KafkaUnreachable, match="not heard"):
        await fed.host.feeding.commit()
    with pytest.raises(KafkaUnreachable, match="not heard"):
        await fed.host.feeding.step(0)  # by whoever reads, too
    fed.kafka._topics[TOPIC] = away
    await fed.steps(5)
    fed.add(NAMES[0], 1)
    fed.add(NAMES[1], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    assert fed.sums(NAMES) == [2, 1, None, None]
    fed.host.confirm(fed.run, fed.version)
    fed.add(NAMES[0], 7)
    await fed.steps()
    del fed.kafka._topics[TOPIC]
    for _ in range(2):
        with pytest.raises(KeyholeError) as raised:
            await fed.host.feeding.commit()
    assert "are gone" in raised.value.message
    await fed.steps()
    assert fed.sums(NAMES) == [2, 1, None, None], "what was committed"
    await closed(fed)


async def test_a_partition_that_a_broker_does_not_know_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    extents, asked = MemoryUpdatesTopics.extents, []

    def missing(self: MemoryUpdatesTopics, *of: Any) -> Any:
        if len(asked) < 2:
            asked.append(of)
            raise ChangelogRecreated("it has no partition 0")
        return extents(self, *of)

    monkeypatch.setattr(MemoryUpdatesTopics, "extents", missing)
    other = Fed(fed.kafka)
    object.__setattr__(other.host.feeding._settings, "restore_deadline_seconds", LONG_SECONDS)
    await other.open(2, "grant-2")
    waits = asyncio.ensure_future(other.assign(wait=LONG_SECONDS))
    while not waits.done():
        other.clock.advance(0.01)  # no faster than the machine's clock: its threads need time, too
        await asyncio.sleep(0.01)
    assert await waits
    assert (len(asked), other.sums(NAMES[:1])) == (2, [1])
    await closed(fed)
    await closed(other)


async def test_a_store_that_can_not_be_read_makes_no_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    store = fed.host._states.state(STATE).store
    snapshot = store.snapshot

    class Unread:
        def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
            raise StoreFull("it was told that it can't be read")

        def close(self) -> None: ...

    fed.add(NAMES[0], 1)
    await fed.host.feeding.step(0)
    monkeypatch.setattr(store, "snapshot", lambda: Unread())
    for _ in range(4):
        await fed.host.feeding.step(0)
        fed.clock.advance(2.0)
    monkeypatch.setattr(store, "snapshot", snapshot)
    await fed.steps(5)
    await fed.host.feeding.commit()
    assert fed.sums(NAMES[:1]) == [2]
    assert LETTERS not in fed.kafka._topics
    await closed(fed)


async def test_a_key_group_that_fails_while_its_commit_is_under_way_begins_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = names_in(0, 2)
    fed = await begun()
    feeding = fed.host.feeding
    for _ in range(3):
        fed.add(first, 1)
    for _ in range(7):
        fed.add(second, 1)
    await fed.steps()
    begun_commit, goes_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        begun_commit.set()
        assert goes_on.wait(PATIENCE_SECONDS)

    fed.kafka.before_commit = stand_still
    commit = asyncio.ensure_future(feeding.commit())
    assert await asyncio.to_thread(begun_commit.wait, PATIENCE_SECONDS)
    fed.kafka.before_commit = lambda: None
    fail_once(monkeypatch)
    fed.add(first, 1)
    await fed.steps(4)
    assert fed.sums([first, second]) == [3, 7], "readers see what they saw"
    state = feeding.fed[0]
    assert (state.feed.key_groups, state.groups.new) == ({1, 2, 3}, None), "it is not known yet from where it goes on"
    goes_on.set()
    await commit
    assert state.state.position(0).epoch == 11
    feeding._tail.most = 1  # type: ignore[union-attr]
    await fed.host.feeding.step(0)
    await feeding.commit()
    assert state.state.position(0).epoch >= 11
    await fed.steps(20)
    await feeding.commit()
    other = Fed(fed.kafka)
    await other.open(2, "grant-2")
    assert await other.assign()
    assert other.sums([first, second]) == fed.sums([first, second]) == [4, 7]
    await closed(fed)
    await closed(other)


async def test_no_epoch_is_followed_by_an_earlier_one_under_one_grant() -> None:
    fed = await begun()
    feeding = fed.host.feeding
    fed.add(NAMES[0], 1)
    fed.add(NAMES[1], 1)
    await fed.steps()
    feeding._commits._highest = {STATE: {0: 9}}
    feeding._commits._writer = fed.host._grant.check()
    await feeding.commit()
    ends = MemoryChangelog(fed.kafka, "app").reader().ends({STATE: [0, 1]}, 1.0)
    assert ends[Partition(STATE, 0)] == 0 < ends[Partition(STATE, 1)]
    for _ in range(8):
        fed.add(NAMES[0], 1)
    await fed.steps()
    await feeding.commit()
    assert fed.host._states.state(STATE).position(0).epoch == 10
    await closed(fed)


@pytest.mark.parametrize(
    "error", [InvalidConfiguration("no ACL for dead letters"), KafkaUnreachable("it was told to be away")]
)
async def test_dead_letters_that_can_not_be_written_cost_no_grant(
    monkeypatch: pytest.MonkeyPatch, error: KeyholeError
) -> None:
    fed = await begun()
    fed.kafka.append(TOPIC, 0, b"{}")
    fed.add(NAMES[0], 1)
    await fed.steps()
    with monkeypatch.context() as patched:
        refusing(patched, "put_aside", error)
        for _ in range(3):
            with pytest.raises(type(error)):
                await fed.host.feeding.commit()
    fed.host.confirm(fed.run, fed.version)
    await fed.host.feeding.commit()
    assert fed.kafka.end(LETTERS, 0) == 1
    assert fed.host._states.state(STATE).position(0).epoch == 3
    await closed(fed)


@pytest.mark.parametrize("error", [TooLarge("a marker is too large"), InvalidConfiguration("no ACL")])
async def test_a_transaction_that_is_aborted_for_certain_costs_no_grant(
    monkeypatch: pytest.MonkeyPatch, error: KeyholeError
) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    with monkeypatch.context() as patched:
        refusing(patched, "commit", error, MemoryWriter)
        with pytest.raises(type(error)):
            await fed.host.feeding.commit()
    fed.host.confirm(fed.run, fed.version)
    await fed.host.feeding.commit()
    assert fed.host._states.state(STATE).position(0).epoch == 2
    await closed(fed)


async def test_a_store_that_is_full_is_told_again_and_the_changelog_is_not_written_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    store = fed.host._states.state(STATE).store
    reader = MemoryChangelog(fed.kafka, "app").reader()
    with monkeypatch.context() as patched:
        refusing(patched, "apply", StoreFull("it was told to be full"), type(store))
        for _ in range(3):
            with pytest.raises(StoreFull):
                await fed.host.feeding.commit()
            ends = reader.ends({STATE: [0]}, 1.0)
    fed.host.confirm(fed.run, fed.version)
    assert fed.sums(NAMES[:1]) == [1]
    await fed.host.feeding.commit()
    assert reader.ends({STATE: [0]}, 1.0) == ends
    assert fed.host._states.state(STATE).position(0).epoch == 2
    await closed(fed)


async def test_a_dead_letter_is_written_once_however_often_its_commit_fails() -> None:
    fed = await begun()
    fed.kafka.append(TOPIC, 0, b"{}")
    await fed.steps()

    def away() -> None:
        raise KafkaUnreachable("no transactions for now")

    fed.kafka.before_commit = away
    for _ in range(5):
        with pytest.raises(KafkaUnreachable):
            await fed.host.feeding.commit()
    fed.kafka.before_commit = lambda: None
    await fed.host.feeding.commit()
    assert fed.kafka.end(LETTERS, 0) == 1
    await closed(fed)


async def test_dead_letters_are_written_in_portions_each_of_which_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_commits, "_LETTERS", 2)
    put_aside, portions = MemoryUpdatesTopics.put_aside, []

    def failing_once(self: MemoryUpdatesTopics, refused: Sequence[RefusedRecord], seconds: float) -> None:
        portions.append(len(refused))
        if len(portions) == 2:
            raise KafkaUnreachable("it was told to be away")
        put_aside(self, refused, seconds)

    monkeypatch.setattr(MemoryUpdatesTopics, "put_aside", failing_once)
    fed = await begun()
    for _ in range(5):
        fed.kafka.append(TOPIC, 0, b"{}")
    await fed.steps()
    with pytest.raises(KafkaUnreachable):
        await fed.host.feeding.commit()
    await fed.host.feeding.commit()
    assert (portions, fed.kafka.end(LETTERS, 0)) == ([2, 2, 2, 1], 5)
    await closed(fed)


async def test_above_so_many_bytes_that_are_not_committed_nothing_more_is_read() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    state = fed.host.feeding.fed[0]
    room = fed.host.feeding._settings.fed_room
    room.limit_bytes = state.room_bytes + 1

    def away() -> None:
        raise KafkaUnreachable("no transactions for now")

    fed.kafka.before_commit = away
    for _ in range(2):
        for name in NAMES[:2]:
            fed.add(name, 1)
        await fed.steps(6)
    held = fed.sums(NAMES[:2])
    assert held == [2, 1], "no more than what was read as it became too much"
    fed.kafka.before_commit = lambda: None
    room.limit_bytes = 1 << 20
    fed.clock.advance(2.0)
    await fed.steps(6)
    assert fed.sums(NAMES[:2]) == [3, 2]
    await closed(fed)


async def test_a_take_over_whose_grant_is_lost_while_it_catches_up_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    caught_up = fed.host.feeding.caught_up

    async def losing(stop: threading.Event) -> None:
        await fed.host._thread.call(fed.host._grant.give_up)  # as a commit that is fenced does
        await caught_up(stop)

    async def losing_late(stop: threading.Event) -> None:
        await caught_up(stop)
        await fed.host._thread.call(fed.host._grant.give_up)

    for number, patched in enumerate([losing, losing_late]):
        await fed.open(2, f"grant-{number}")
        monkeypatch.setattr(fed.host.feeding, "caught_up", patched)
        with pytest.raises(NotReady, match="lost its grant"):
            await fed.assign()
    monkeypatch.setattr(fed.host.feeding, "caught_up", caught_up)
    await fed.open(2, "grant-3")
    assert await fed.assign()
    assert fed.sums(NAMES[:1]) == [1]
    await closed(fed)


async def test_others_go_on_while_a_key_group_begins_anew_and_it_says_how_old_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = await begun()
    for name in NAMES[:2]:
        fed.add(name, 1)
        fed.add(name, 1)
    await fed.steps()
    await fed.host.feeding.commit()
    fed.add(NAMES[0], 5)
    await fed.steps()
    fail_once(monkeypatch)
    fed.add(NAMES[0], 7)
    fed.clock.advance(1.0)
    reading = fed.host.feeding._beginnings
    monkeypatch.setattr(reading, "_again_at", float("inf"))  # it takes long
    fed.add(NAMES[1], 1)
    await fed.steps()
    assert fed.sums(NAMES[:2]) == [7, 3]
    await fed.ask()
    assert [fed.is_within(name, 0.9) for name in NAMES[:2]] == [False, True]
    monkeypatch.setattr(reading, "_again_at", float("-inf"))
    await fed.steps(5)
    assert fed.sums(NAMES[:2]) == [14, 3]
    assert fed.is_within(NAMES[0], 0.9)
    await closed(fed)


async def test_a_commit_takes_what_fits_and_less_once_it_did_not_fit_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = await begun()
    feeding = fed.host.feeding
    for name in NAMES:
        fed.add(name, 1)
    await fed.steps()
    sizes: list[int] = []
    commit = MemoryWriter.commit

    def in_time(self: MemoryWriter, epoch: Sequence[PartitionChanges], seconds: float) -> Mapping[Partition, int]:
        sizes.append(len(epoch))
        if len(epoch) > 1:
            raise KafkaUnreachable("records were not acknowledged in time")
        return commit(self, epoch, seconds)

    monkeypatch.setattr(MemoryWriter, "commit", in_time)
    of_group = max(feeding.fed[0].feed.bytes_of(of) for of in range(4))
    feeding._commits._room = 4 * of_group
    monkeypatch.setattr(feed_commits, "_LEAST_BYTES", 1)
    monkeypatch.setattr(feed_commits, "_MOST_BYTES", of_group)
    for _ in range(2):
        with pytest.raises(KafkaUnreachable):
            await feeding.commit()
    await feeding.commit()
    assert sizes == [4, 2, 1, 1, 1, 1]
    assert feeding.fed[0].feed.clean
    await closed(fed)


async def test_what_a_poll_publishes_is_of_the_key_groups_that_have_moved() -> None:
    fed = await begun()
    await fed.steps()
    said: list[tuple[list[int], bool]] = []
    publish = fed.host._states.publish_applied

    def publishing(views: Sequence[PublishedView]) -> None:
        said.extend((sorted(view.standings or ()), view.over is None) for view in views)
        publish(views)

    fed.host._states.publish_applied = publishing  # type: ignore[method-assign]
    epoch = fed.add(NAMES[1], 1)
    await fed.steps()
    assert said == [([1], False)]
    sources = fed.table.lookup([key(name) for name in NAMES]).sources
    assert sorted({of.epoch for of in sources}) == [1, epoch]
    assert {(of.generation, of.assignment_version) for of in sources} == {(1, 1)}
    # One that is lost on its way, or of readers who were told something else, is followed by one that says all.
    fed.host._states.publish_applied = lambda views: [view.snapshot.close() for view in views]  # type: ignore
    fed.add(NAMES[1], 1)
    await fed.steps()
    fed.host._states.publish_applied = publishing  # type: ignore[method-assign]
    said.clear()
    for name in (NAMES[2], NAMES[3], NAMES[3]):
        fed.add(name, 1)
        await fed.steps()
    assert said == [([2], False), ([0, 1, 2, 3], True), ([3], False), ([3], False)]
    assert fed.sums(NAMES) == [None, 2, 1, 2]
    said.clear()
    await fed.ask()
    assert said == [([0, 1, 2, 3], False)], "all are as of now"
    assert all(fed.is_within(name, 0.0) for name in NAMES)
    await closed(fed)


async def test_a_state_that_can_not_be_begun_stops_no_other_thread_and_no_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    asked, goes_on = threading.Event(), threading.Event()
    extents = MemoryUpdatesTopics.extents

    def slow(self: MemoryUpdatesTopics, *of: Any) -> Any:
        asked.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        return extents(self, *of)

    await fed.host.release(fed.run, STATE, frozenset([0]), fed.version)
    monkeypatch.setattr(MemoryUpdatesTopics, "extents", slow)
    waits = asyncio.ensure_future(fed.assign())
    assert await asyncio.to_thread(asked.wait, PATIENCE_SECONDS)
    await asyncio.wait_for(fed.host._thread.call(lambda: None), PATIENCE_SECONDS)
    fed.add(NAMES[1], 4)
    await fed.steps(until_done=False)
    assert fed.sums(NAMES[1:2]) == [4], "others go on"
    goes_on.set()
    assert await waits
    assert fed.sums(NAMES[:2]) == [1, 4]
    await closed(fed)


async def test_a_key_group_that_fails_again_and_again_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = await begun()
    apply = GroupFeed.apply

    def failing(self: GroupFeed, *of: Any) -> Any:
        if self._key_group == 0:
            raise RuntimeError("it was told to fail")
        return apply(self, *of)

    monkeypatch.setattr(GroupFeed, "apply", failing)
    for _ in range(4):  # each step applies what the one before has read
        fed.add(NAMES[0], 1)
        fed.add(NAMES[1], 1)
        await fed.steps()
        fed.clock.advance(2.0)
    await fed.steps()
    assert fed.sums(NAMES[:2]) == [None, 4]
    refused = [of.why for of in fed.host.feeding.fed[0].groups._groups.values() if of.why is not None]
    assert [str(of.message) for of in refused] == ["its updates can't be applied: RuntimeError"]
    await closed(fed)

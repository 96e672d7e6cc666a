"""What waits for one who watches, and what a state keeps for those who come back: bounded, and without a hole."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from keyhole.encoding.storage_key import prefix_of
from keyhole.encoding.watch_token import WatchMark
from keyhole.model.epoch import START, Position
from keyhole.rpc.watch_requests import WatchedKeys, WatchedRange
from services.state_server.read.watch_messages import Sent
from services.state_server.read.watched_changes import Changes
from services.state_server.read.watcher import GroupEpoch, Watcher, size_of
from tests.support.waiting import LONG_SECONDS


def key(name: str, group: int = 0) -> bytes:
    return prefix_of(group) + name.encode()


def epoch(
    number: int, rows: dict[str, bytes | None], group: int = 0, befores: list[bytes | None] | None = None
) -> GroupEpoch:
    changes = [(key(name, group), row) for name, row in rows.items()]
    after = Position(10 * number, number, 1, 0, 1000 * number)
    return GroupEpoch(group, 10 * (number - 1), after, changes, befores, size_of(changes))


def taken(watcher: Watcher) -> list[tuple[int, str, bytes | None]]:
    found = []
    while (pending := watcher.take()) is not None:
        found += [(pending.after.epoch, change.key[2:].decode(), change.entry) for change in pending.changes]
    return found


BOTH = frozenset({0, 1})


def at_start() -> dict[int, Position]:
    return dict.fromkeys(BOTH, START)


def begun(most_bytes: int = 1 << 20) -> Changes:
    """Those of a state that one watches already, or is about to."""
    changes = Changes(most_bytes)
    changes.expect(Watcher(None, BOTH), at_start)
    return changes


def attached(changes: Changes, watcher: Watcher, marks: dict[int, WatchMark]) -> bool:
    changes.expect(watcher, at_start)
    return changes.attach(watcher, marks)


def marks(offset: int = 0, groups: int = 2) -> dict[int, WatchMark]:
    return {group: WatchMark(offset, 0) for group in range(groups)}


async def test_a_watcher_gets_what_is_in_memory_and_then_what_comes_and_of_keys_no_others() -> None:
    changes = begun()
    changes.published([epoch(1, {"a": b"1", "b": b"2"}), epoch(1, {"c": b"3"}, group=1)], {})
    whole, one = Watcher(None, BOTH), Watcher(WatchedKeys(frozenset({key("b")}), frozenset()), frozenset({0}))
    prefix = Watcher(WatchedKeys(frozenset(), frozenset({key("b")})), frozenset({0}))
    assert all(attached(changes, of, marks()) for of in (whole, one, prefix))
    changes.published([epoch(2, {"bb": b"5", "a": None})], {})
    assert taken(whole) == [(1, "a", b"1"), (1, "b", b"2"), (1, "c", b"3"), (2, "bb", b"5"), (2, "a", None)]
    assert taken(one) == [(1, "b", b"2")]
    assert taken(prefix) == [(1, "b", b"2"), (2, "bb", b"5")]
    behind = Watcher(None, BOTH)
    assert attached(changes, behind, {0: WatchMark(0, 0, 1), 1: WatchMark(10, 1)})
    assert taken(behind) == [(1, "b", b"2"), (2, "bb", b"5"), (2, "a", None)]
    changes.close()


async def test_what_is_kept_is_bounded_and_what_is_not_kept_is_known_to_be_missing() -> None:
    changes = begun(most_bytes=1000)
    for number in range(1, 9):
        changes.published([epoch(number, {"a": b"x" * 100})], {})
    assert 0 < changes.kept_bytes <= 1000
    late, near = Watcher(None, BOTH), Watcher(None, BOTH)
    assert not attached(changes, late, marks())
    assert attached(changes, near, marks() | {0: WatchMark(60, 6)})
    assert [number for number, *_ in taken(near)] == [7, 8]
    # An epoch that was not kept, and one that came by way of another owner.
    changes.published([GroupEpoch(0, 80, Position(90, 9, 1, 0), None)], {})
    assert near.lost
    assert not attached(changes, near, marks() | {0: WatchMark(80, 8)})
    assert attached(changes, near, marks() | {0: WatchMark(90, 9)})
    assert not near.lost
    changes.published([], {1: Position(70, 7, 1, 0)})
    assert near.lost
    changes.published([epoch(9, {"a": b"again"})], {})
    assert taken(near) == []
    changes.close()


async def test_what_is_made_of_an_epoch_for_all_who_watch_is_kept_of_each_key_groups_last_ones_alone() -> None:
    changes = begun()
    elsewhere, epochs = epoch(1, {"b": b"x"}, group=1), [epoch(number, {"a": b"x"}) for number in range(1, 21)]
    changes.published([elsewhere], {})
    for of in epochs:
        changes.published([of], {})
        of.shared["all"], of.selected["some"] = Sent(0, of.after.stamp, snapshot=False), array("Q")
    assert [of.recent for of in epochs] == 4 * [False] + 16 * [True]
    assert [(len(of.shared), len(of.selected)) for of in epochs] == 4 * [(0, 0)] + 16 * [(1, 1)]
    assert elsewhere.recent
    changes.close()
    # What is too much to be kept is not kept for that.
    small = begun(most_bytes=1000)
    for number in range(1, 11):
        small.published([epoch(number, {"a": b"x" * 400})], {})
    assert list(small._recent[0]) == list(small._ring)
    assert len(small._ring) < 3
    small.close()


@pytest.mark.parametrize("latest_only", [False, True])
async def test_who_is_slow_is_let_go_or_has_the_last_change_of_each_key(latest_only: bool) -> None:
    changes = begun(most_bytes=1 << 20)
    slow, quick = Watcher(None, BOTH, latest_only=latest_only, most_bytes=3000), Watcher(None, BOTH)
    assert attached(changes, slow, marks())
    assert attached(changes, quick, marks())
    for number in range(1, 101):
        changes.published([epoch(number, {"a": b"%d" % number, f"k{number % 3}": b"x"}, befores=[b"-", None])], {})
        assert slow._bytes <= 3000
    assert len(taken(quick)) == 200
    if not latest_only:
        assert slow.error is not None
        assert slow.error.reason == "TOO_SLOW"
        assert taken(slow) == []
        assert changes.let_go == 1
        assert changes.watchers == 1
    else:
        found = taken(slow)
        assert slow.error is None
        assert found[-2:] == [(100, "a", b"100"), (100, "k1", b"x")]
        assert len(found) < 60
        assert {name for _, name, _ in found} == {"a", "k0", "k1", "k2"}
        for number in range(200):  # more keys than may wait: it can't be kept up with
            changes.published([epoch(101 + number, {f"new{number}": b"x"})], {})
        assert slow.error is not None
    changes.close()


async def test_what_was_there_before_is_known_only_where_it_was_read_before_the_first_change() -> None:
    changes = begun()
    slow = Watcher(None, BOTH, latest_only=True, befores=True, most_bytes=3000)
    assert attached(changes, slow, marks())
    # Nobody has asked for it in the first epoch; later ones have it.
    changes.published([epoch(1, {"a": b"1"})], {})
    for number in range(2, 40):
        changes.published([epoch(number, {"a" if number == 2 else "b": b"x"}, befores=[b"-"])], {})
    waiting = [pending for pending in iter(slow.take, None) if pending.changes]
    known = {change.key[2:]: (pending.known, change.before) for pending in waiting for change in pending.changes}
    assert known == {b"a": (False, None), b"b": (True, b"-")}
    changes.close()


async def test_what_is_written_is_kept_while_a_watch_is_on_its_way_to_the_last_changes() -> None:
    changes, watcher = Changes(), Watcher(None, BOTH)
    changes.expect(watcher, at_start)
    changes.published([epoch(1, {"a": b"1"})], {})
    changes._rest()
    assert changes.active
    assert changes.attach(watcher, marks())
    assert taken(watcher) == [(1, "a", b"1")]
    changes.detach(watcher)
    changes._rest()
    assert not changes.active
    changes.close()


class Looked(list[tuple[bytes, bytes | None]]):
    """Changes of an epoch, and how many times one was looked at."""

    looks = 0

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        self.looks += len(self)
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


class Asked(Watcher):
    """Counts how many times it is asked whether it wants what was there before."""

    asked = 0

    @property
    def befores(self) -> bool:  # type: ignore[override]
        Asked.asked += 1
        return False

    @befores.setter
    def befores(self, _: bool) -> None:
        pass


async def test_who_watches_a_range_gets_it_however_many_do() -> None:
    changes = begun()
    names = [f"k{number:02}" for number in range(20)]
    ranges = [WatchedRange(name.encode(), b"k15") for name in names[:12]]
    whole = Watcher(WatchedRange(b"", b""), BOTH)
    for number, count in ((1, 3), (2, 12)):
        some = [Watcher(of, BOTH) for of in ranges[:count]]
        at = {group: WatchMark.at(changes.positions[group]) for group in BOTH}
        assert all(attached(changes, of, at) for of in (*some, whole))
        changes.published([epoch(number, dict.fromkeys(names[::-1], b"x"))], {})
        assert [len(taken(of)) for of in some] == [15 - first for first in range(count)]
        assert [name for _, name, _ in taken(whole)] == names[::-1]
        for of in (*some, whole):
            changes.detach(of)
    changes.close()


async def test_what_changes_is_looked_at_once_however_many_watch_and_each_has_its_own() -> None:
    changes = begun()
    names = [f"k{number}" for number in range(40)]
    alone = [Asked(WatchedKeys(frozenset(), frozenset({key(name)})), frozenset({0})) for name in names[4:]]
    alone += [Asked(WatchedKeys(frozenset({key(name)}), frozenset()), frozenset({0})) for name in names[:4]]
    # Each key of the second is in two, or three, of its places.
    several = [
        Watcher(WatchedKeys(frozenset({key("k1")}), frozenset({key("k3")})), frozenset({0})),
        Watcher(WatchedKeys(frozenset({key("k1"), key("k11")}), frozenset({key("k"), key("k1")})), frozenset({0})),
    ]
    whole = Watcher(None, BOTH, befores=True)
    everyone = [*alone, *several, whole]
    assert all(attached(changes, of, marks()) for of in everyone)
    assert changes.wants_befores
    looked = Looked([(key(name), b"x") for name in ["k1", "k11", "k3", "k35", "other"]])
    changes.published([GroupEpoch(0, 0, Position(10, 1, 1, 0), looked, None, 1)], {})
    assert looked.looks <= 2 * len(looked)
    assert [[name for _, name, _ in taken(of)] for of in several] == [["k1", "k3", "k35"], ["k1", "k11", "k3", "k35"]]
    assert [name for of in alone for _, name, _ in taken(of)] == ["k11", "k35", "k1", "k3"]
    assert len(taken(whole)) == 5
    # Of those who have gone nothing is left.
    for of in everyone:
        changes.detach(of)
    # Who comes back soon still gets what was there before.
    assert changes.wants_befores
    changes._rest_befores()
    assert not changes.wants_befores
    assert Asked.asked <= 6 * len(alone)
    changes.published([epoch(2, {"k1": b"y"})], {})
    assert not any(of.waiting for of in everyone)
    changes.close()


async def test_whoever_commits_has_its_turn_before_all_watchers_had_theirs() -> None:
    changes = begun()
    watchers = [Watcher(None, BOTH) for _ in range(50)]
    assert all(attached(changes, of, marks()) for of in watchers)
    waiting = [asyncio.create_task(of.woken(LONG_SECONDS)) for of in watchers]
    await asyncio.sleep(0)
    changes.published([epoch(1, {"a": b"1"})], {})
    turns = list[int]()
    while not all(of.done() for of in waiting):
        await asyncio.sleep(0)
        turns.append(sum(of.done() for of in waiting))
    assert max(now - before for before, now in itertools.pairwise([0, *turns])) <= 20
    assert all(len(taken(of)) == 1 for of in watchers)
    changes.close()


async def test_nothing_is_kept_where_nobody_watches() -> None:
    changes = Changes()
    changes.published([epoch(1, {"a": b"1"})], {0: Position(10, 1, 1, 0)})
    assert not changes.active
    assert changes.kept_bytes == 0
    watcher = Watcher(None, frozenset({0}))
    changes.expect(watcher, lambda: {0: Position(10, 1, 1, 0)})
    assert changes.attach(watcher, {0: WatchMark(10, 1)})
    changes.detach(watcher)
    changes.published([epoch(2, {"a": b"1"})], {})
    assert changes.kept_bytes
    changes._rest()
    assert not changes.active
    assert changes.kept_bytes == 0
    changes.close()
    await asyncio.sleep(0)

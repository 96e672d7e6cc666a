"""The copy of a mirror by itself: parts of epochs, how old it is, its bounds, and states that are fed by updates."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from keyhole import errors
from keyhole.client.mirror_copy import MirrorCopy
from keyhole.client.mirror_intake import ENTRY_BYTES, MirrorLimits
from keyhole.client.wire.watch_stream import StoredMessage, WatchOptions
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace
from keyhole.model.read import Answer, KeyedEntry, ReadBounds, Source, Stale
from keyhole.model.state import TtlClock
from keyhole.v1 import query_pb2 as pb
from tests.support.states import CODEC, KEY_GROUPS, descriptor, group, key, row
from tests.support.waiting import until

NAMES = [f"k{number}" for number in range(40)]
ONE, OTHER = (name for name in NAMES if group(name) == 1), (name for name in NAMES if group(name) == 2)
A, B, C = next(ONE), next(ONE), next(OTHER)
AT_REST = WatchMark(10, 1)


class Clocks:
    """By which a copy tells how old it is."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000.0, 50.0

    def copy(self, *keys: Any, entries: int = 100, size: int = 100_000) -> MirrorCopy:
        clocks = (lambda: self.wall, lambda: self.steady)
        return MirrorCopy("app/counts", WatchOptions(keys, True, False, False), MirrorLimits(entries, size), clocks)


def message(
    marks: Mapping[int, WatchMark],
    changes: Mapping[str, float | None] | None = None,
    epoch: int = 0,
    *,
    snapshot: bool = False,
    complete: int = 0,
    as_of_ms: int = 0,
    whole: bool = True,
    codec: StateCodec = CODEC,
) -> StoredMessage:
    """One part, of the key group of its keys; the marks of other key groups are at rest."""
    parts = []
    if changes:
        (of,) = {group(name) for name in changes}
        keys = [key(name)[2:] for name in changes]
        values = [b"" if n is None else row(n) for n in changes.values()]
        parts = [
            pb.WatchedChanges(
                key_group=of, epoch=epoch, commit_time_ms=1000 * epoch, snapshot=snapshot, keys=keys, values=values
            )
        ]
    token = WatchPlace(dict.fromkeys(range(KEY_GROUPS), AT_REST) | dict(marks), as_of_ms).token(codec.descriptor, 0)
    response = pb.WatchResponse(
        changes=parts,
        token=token if whole else "",
        epoch=complete,
        as_of_ms=as_of_ms,
        commit_time_ms=1000 * complete,
        watermark_ms=100 * complete,
    )
    return StoredMessage(codec, response, token)


def begun(copy: MirrorCopy, complete: int = 1) -> None:
    copy.take(message({1: WatchMark(10, 1, 0, key(A)), 2: NOT_BEGUN}, {A: 1.0}, 1, snapshot=True))
    assert not copy.whole
    copy.take(message({2: NOT_BEGUN}, {B: 2.0}, 1, snapshot=True))
    assert not copy.whole
    copy.take(message({}, {C: 3.0}, 1, snapshot=True, as_of_ms=990_000))
    assert not copy.whole  # nobody has said up to which epoch that is
    copy.take(message({}, complete=complete, as_of_ms=990_000))
    assert copy.whole


def values(copy: MirrorCopy) -> list[Any]:
    return [answer.value and answer.value.n for answer in copy.answers([A, B, C])]


def test_an_epoch_is_shown_once_all_of_it_has_come_by_key_group() -> None:
    copy = Clocks().copy()
    begun(copy)
    assert values(copy) == [1.0, 2.0, 3.0]
    within = {1: WatchMark(10, 1, 1)}
    copy.take(message(within, {A: 10.0}, 2, complete=1))
    # Another key group goes on meanwhile, also with a part that has no token.
    copy.take(message({}, {C: 30.0}, 3, whole=False))
    assert values(copy) == [1.0, 2.0, 3.0]
    copy.take(message(within | {2: WatchMark(30, 3)}, complete=1))
    assert values(copy) == [1.0, 2.0, 30.0]
    assert [answer.epoch for answer in copy.answers([A, C])] == [1, 3]
    assert copy.holds({2: 3})
    assert not copy.holds({1: 2})
    copy.take(message({1: WatchMark(20, 2), 2: WatchMark(30, 3)}, {B: None}, 2, complete=3))
    assert values(copy) == [10.0, None, 30.0]
    assert copy.holds(3)
    # Of epoch 3, which has nothing of key group 1.
    answer = copy.answer(B)
    assert (answer.found, answer.epoch, answer.commit_time) == (False, 3, copy.answer(C).commit_time)
    assert answer.commit_time is not None
    assert answer.source.watermark is not None
    assert (answer.commit_time.timestamp(), answer.source.watermark.timestamp()) == (3, 0.3)
    assert {entry.key: entry.value.n for entry in copy.keyed_entries()} == {A: 10.0, C: 30.0}
    assert copy.entries == 2
    assert copy.size == sum(len(key(name)) + len(row(1.0)) + ENTRY_BYTES for name in (A, C))


def test_a_key_group_that_goes_on_without_a_change_has_the_times_of_its_epoch_from_those_that_have_one() -> None:
    """Where nothing of it is selected. Until all of the epoch has come, its mark alone says that it is of it."""
    copy = Clocks().copy()
    begun(copy)
    further = message({1: WatchMark(30, 3), 2: WatchMark(30, 3)}, {A: 10.0}, 3, complete=1)
    further.response.changes[0].watermark_ms = 300
    copy.take(further)
    one, other = copy.answer(A).source, copy.answer(C).source
    assert (other.epoch, other.commit_time, other.watermark) == (3, one.commit_time, one.watermark)
    assert other.commit_time is not None
    # An epoch of which nothing else is known has none yet.
    copy.take(message({1: WatchMark(30, 3), 2: WatchMark(40, 4)}, complete=3))
    assert (copy.answer(C).epoch, copy.answer(C).commit_time) == (4, None)


def test_a_key_group_that_an_epoch_has_not_touched_names_the_one_before_until_all_of_it_has_come() -> None:
    """What it shows is the same as of both."""
    copy = Clocks().copy()
    begun(copy)
    copy.take(message({1: WatchMark(30, 3)}, {A: 10.0}, 3, complete=1, as_of_ms=990_000))
    assert [(answer.epoch, answer.source.as_of) for answer in copy.answers([C, A])] == [
        (1, copy.answer(C).source.as_of),
        (3, copy.answer(C).source.as_of),
    ]
    # Who must have that epoch is given nothing of the copy, and asks a server.
    assert copy.good_enough(C, ReadBounds(min_epoch=3)) is None
    assert copy.good_enough(A, ReadBounds(min_epoch=3)) is not None
    assert not copy.holds(3)
    copy.take(message({1: WatchMark(30, 3)}, complete=3))
    assert copy.answer(C).epoch == 3
    assert copy.holds(3)


class WatchedLock:
    """A lock that says when a thread waits for it."""

    def __init__(self) -> None:
        self.waited = threading.Event()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.waited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize(
    "read",
    [
        lambda copy: [copy.answer(A)],
        lambda copy: copy.answers([A, B]),
        lambda copy: [entry for entry in copy.keyed_entries() if group(entry.key) == 1],
    ],
    ids=["one", "many", "all"],
)
def test_what_is_read_at_once_is_of_one_moment_though_another_thread_takes_an_epoch_in_meanwhile(
    read: Callable[[MirrorCopy], list[Answer | KeyedEntry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, lock, taken = Clocks().copy(), WatchedLock(), list[Future[None]]()
    begun(copy)
    before = [of.value.n for of in read(copy)]
    copy.take(message({}, complete=1))  # from here on nobody knows what answers say of an epoch
    source = copy._source

    def read_in_two(of: int) -> Source:
        """A row has been read, and of which epoch it is has not."""
        if not taken:
            epoch = message({1: WatchMark(20, 2)}, {A: 10.0, B: 20.0}, 2, complete=2)
            taken.append(pool.submit(copy.take, epoch))
            until(lambda: lock.waited.is_set() or taken[0].done())
        return source(of)

    monkeypatch.setattr(copy, "_lock", lock)
    monkeypatch.setattr(copy, "_source", read_in_two)
    with ThreadPoolExecutor(1) as pool:
        found = [(of.value.n, of.source.epoch) for of in read(copy)]
        taken[0].result()
    assert found == [(n, 1) for n in before]
    assert [(of.value.n, of.source.epoch) for of in read(copy)] == [(10 * n, 2) for n in before]


def test_how_old_it_is_counts_by_the_clock_that_makes_it_older() -> None:
    clocks = Clocks()
    copy = clocks.copy()
    assert copy.age_seconds == float("inf")
    begun(copy)
    assert copy.age_seconds == 10.0
    recent, never = ReadBounds(max_staleness_ms=15_000), ReadBounds(stale=Stale.NEVER)
    assert copy.good_enough(A, recent) is not None
    assert copy.good_enough(A, never) is None
    assert copy.good_enough(A, ReadBounds(as_of=1)) is None
    # The reader's clock is set back; what is heard again says nothing new.
    clocks.wall, clocks.steady = 980.0, 62.0
    copy.take(message({}, complete=1, as_of_ms=990_000))
    assert copy.age_seconds == 12.0
    clocks.steady += 10
    assert copy.good_enough(A, recent) is None
    copy.take(message({}, complete=1, as_of_ms=991_000))
    assert copy.age_seconds == 0.0
    assert copy.good_enough(A, ReadBounds(min_epoch=1)) is not None
    assert copy.good_enough(A, ReadBounds(min_epoch=2)) is None


def test_where_a_state_is_fed_by_updates_each_key_group_has_its_epoch() -> None:
    fed = StateCodec(descriptor(updates_topic_id="updates"))
    copy = Clocks().copy()
    copy.take(message({1: WatchMark(10, 70), 2: WatchMark(10, 9)}, {A: 1.0}, 60, snapshot=True, codec=fed))
    copy.take(message({1: WatchMark(10, 70), 2: WatchMark(10, 9)}, as_of_ms=1, codec=fed))
    assert copy.whole
    assert [answer.epoch for answer in copy.answers([A, C])] == [70, 9]
    assert copy.answer(A).commit_time is None  # what it is at by now has changed nothing of it
    assert copy.good_enough(A, ReadBounds(min_epochs=((1, 70), (2, 10)))) is not None
    assert copy.good_enough(C, ReadBounds(min_epochs=((1, 70), (2, 10)))) is None
    assert copy.holds({1: 70, 2: 9})
    assert not copy.holds(10)


@pytest.mark.parametrize("clock", list(TtlClock))
def test_what_has_expired_is_not_shown_though_its_deletion_has_yet_to_come(clock: TtlClock) -> None:
    clocks, expiring = Clocks(), StateCodec(descriptor(ttl_ms=1_000, ttl_clock=clock))
    copy = clocks.copy()
    first = message({}, {A: 1.0, B: 2.0}, 1, snapshot=True, complete=1, codec=expiring)
    first.response.changes[0].expires_ms.extend([0, 1_005_000])
    copy.take(first)
    assert values(copy) == [1.0, 2.0, None]
    assert (copy.entries, copy.answer(B).found) == (2, True)

    def pass_to(time_ms: int) -> None:
        if clock is TtlClock.PROCESSING_TIME:
            clocks.wall = time_ms / 1000
        later = message({}, complete=1, codec=expiring)
        later.response.epoch, later.response.watermark_ms = time_ms, time_ms
        copy.take(later)

    pass_to(1_004_999)
    assert copy.answer(B).found
    pass_to(1_005_000)
    assert not copy.answer(B).found
    clocks.wall = 900.0  # which does not bring it back
    assert values(copy) == [1.0, None, None]
    assert (copy.entries, copy.answer(B).found, copy.answer(B).epoch) == (1, False, 1_005_000)
    assert [entry.key for entry in copy.keyed_entries()] == [A]
    # Written anew it is there again.
    again = message({1: WatchMark(20, 2_000_000)}, {B: 3.0}, 2_000_000, codec=expiring)
    again.response.changes[0].expires_ms.append(9_000_000_000)
    copy.take(again)
    assert copy.answer(B).value.n == 3.0


def test_of_some_keys_it_says_of_others_that_it_is_not_of_them() -> None:
    copy = Clocks().copy(A, C)
    copy.take(message({}, {A: 1.0}, 1, snapshot=True, complete=1))
    assert copy.whole
    assert (copy.answer(A).found, copy.answer(C).found) == (True, False)
    for read in (copy.answer, lambda name: copy.answers([A, name])):
        with pytest.raises(errors.MalformedRequest, match="of 2 keys"):
            read(B)
    assert copy.good_enough(B, ReadBounds()) is None


def test_more_than_it_may_have_is_refused_by_the_bounds_name_also_before_the_epoch_is_whole() -> None:
    copy = Clocks().copy(entries=3)
    begun(copy)
    # As many as it may have, all of them anew.
    copy.take(message({1: WatchMark(20, 2)}, {A: 1.5, B: 2.5}, 2, complete=1))
    with pytest.raises(errors.TooLarge, match="4 entries, and max_entries=3 allows no more") as caught:
        copy.take(message({1: WatchMark(30, 3)}, {next(ONE): 1.0}, 3, complete=1))
    assert caught.value.facts == {"bound": "max_entries", "limit": "3"}
    small = Clocks().copy(size=3 * (ENTRY_BYTES + 20))
    begun(small)
    many = {name: 1.0 for name in NAMES if group(name) == 1}
    with pytest.raises(errors.TooLarge, match="larger max_bytes"):
        small.take(message({1: WatchMark(10, 1, 5)}, many, 2, complete=1))


def test_an_entry_takes_about_what_is_counted_for_it() -> None:
    count = 20_000
    copy = Clocks().copy(entries=count, size=1 << 30)
    part = pb.WatchedChanges(key_group=1, epoch=1, snapshot=True)
    part.keys.extend(b"key-%08d-of-some-length\0\0" % number for number in range(count))
    part.values.extend(row(float(number)) for number in range(count))
    token = message({}).whole
    tracemalloc.start()
    copy.take(StoredMessage(CODEC, pb.WatchResponse(changes=[part], token=token, epoch=1), token))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert copy.entries == count
    # A dict that has just grown takes more.
    assert 0.7 < taken / copy.size < 1.1

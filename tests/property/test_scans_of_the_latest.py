"""A scan of the latest gives what a scan gives after the commit: of each kind, whatever is staged and asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole import Predicate, field
from keyhole.encoding.codec import EntryRange
from keyhole.encoding.envelope import DIGEST_BYTES, Aggregate, deletion
from keyhole.encoding.key_codec import encode_integer, end_of_prefix
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.read import ReadBounds
from keyhole.model.selection import EVERYTHING, Selection
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock
from keyhole.stores.base import Advance, Batch
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.clock import ManualClock
from services.state_server.read.indexed_scans import IndexRule
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.write import open_group, staged
from services.state_server.write.attempts import Attempt, RoundAttempts
from services.state_server.write.merge import changes, merge_of
from services.state_server.write.merging import CommitContext
from services.state_server.write.open_epoch import OpenEpoch
from services.state_server.write.staged import StagedAttempt
from tests.support.examples import examples
from tests.support.states import descriptor, row

Rows = Mapping[bytes, bytes | None]

GROUPS = 2
NAMES = [f"key-{number}" for number in range(6)]
MAP_KEY = (KeyColumn("m", KeyType.INT),)
BY_EVENT_TIME = {"ttl_ms": 100, "ttl_clock": TtlClock.EVENT_TIME}
STATES: Mapping[str, Mapping[str, Any]] = {
    "values": {},
    "values with an index": {"index": ("n",)},
    "values that expire": BY_EVENT_TIME,
    "values by order": {"order_by": "n"},
    "sums": {"kind": StateKind.REDUCING, "reducers": ("sum",)},
    "sums with an index that expire": {
        "kind": StateKind.REDUCING,
        "reducers": ("sum",),
        "index": ("n",),
        **BY_EVENT_TIME,
    },
    "aggregates": {"kind": StateKind.AGGREGATING},
    "maps": {"kind": StateKind.MAP, "map_key": MAP_KEY},
    "maps with an index": {"kind": StateKind.MAP, "map_key": MAP_KEY, "index": ("n",)},
    "maps by order": {"kind": StateKind.MAP, "map_key": MAP_KEY, "order_by": "n"},
    "lists": {"kind": StateKind.LIST},
    "lists of three": {"kind": StateKind.LIST, "max_length": 3, **BY_EVENT_TIME},
}


class Asked(NamedTuple):
    """A scan: of a key group, or of one key. Bounds are places among all keys that there can be."""

    key: str | None
    first: int | None
    last: int | None
    map_first: int | None
    map_last: int | None
    where: Predicate | None
    descending: bool
    limit: int


class Drawn(NamedTuple):
    """What is committed by two epochs, and what the third one has staged. `watermarks`: of each."""

    of: StateDescriptor
    epochs: list[Rows]
    watermarks: list[int]
    replaces: bool
    scans: list[Asked]


@st.composite
def drawn(draw: st.DrawFn, state: str) -> Drawn:
    of = descriptor(key_groups=GROUPS, **STATES[state])
    codec = Table("server-a", of, MemoryEngine().open("app", "counts", "t"), Lease(ManualClock(), 3.0)).codec
    bounds = st.none() | st.integers(0, 5)
    scans = st.builds(
        Asked,
        st.none() | st.sampled_from(NAMES) if of.entry_key else st.none(),
        bounds,
        bounds,
        bounds if of.entry_key else st.none(),
        bounds if of.entry_key else st.none(),
        st.sampled_from([None, field("n") > 1.0, field("n") == 2.0, field("n") < 0.0]),
        st.booleans(),
        st.sampled_from([0, 0, 1, 3]),
    )
    numbers = st.integers(-1, 3).map(float)

    def entries(name: str) -> st.SearchStrategy[dict[bytes, bytes | None]]:
        key = codec.prefix(name)
        if of.kind is StateKind.AGGREGATING:
            made = numbers.map(lambda n: bytes(DIGEST_BYTES) + Aggregate(1, row(n), b"made", None).encode())
            return (st.none() | made).map(lambda stored: {key: stored})
        if of.kind is StateKind.LIST:
            pushed = st.lists(numbers, max_size=5).map(
                lambda given: {key + encode_integer(at, 8): row(n) for at, n in enumerate(given)}
            )
            return st.builds(lambda some, clear: {**some, **({key: None} if clear else {})}, pushed, st.booleans())
        one = numbers.map(row) | st.none()
        if of.order_by:
            one = one | numbers.map(deletion)
        if not of.map_key:
            return one.map(lambda stored: {key: stored})
        by_map_key = st.dictionaries(st.integers(-2, 3).map(lambda m: key + encode_integer(m, 4)), one, max_size=4)
        clears = st.sampled_from([{}, {key: deletion(1.0) if of.order_by else None}])
        return st.builds(lambda some, clear: {**some, **clear}, by_map_key, clears)

    def epoch() -> Rows:
        names = draw(st.sets(st.sampled_from(NAMES), min_size=2))
        return {key: stored for name in sorted(names) for key, stored in draw(entries(name)).items()}

    watermarks = sorted(draw(st.lists(st.sampled_from([1000, 1050, 1200]), min_size=3, max_size=3)))
    return Drawn(
        of,
        [epoch(), epoch(), epoch()],
        watermarks,
        draw(st.booleans()) and draw(st.booleans()),
        draw(st.lists(scans, min_size=3, max_size=5)),
    )


class Owner:
    """One owner of all key groups, on which epochs are staged and committed."""

    def __init__(self, of: StateDescriptor) -> None:
        self.of = of
        clock = ManualClock(2500)
        lease = Lease(clock, seconds=1000.0)
        lease.confirm()
        store = MemoryEngine().open(of.application, of.state, "topic")
        self.store = IndexedStore(store, of) if of.index else store
        self.table = Table("server-a", of, self.store, lease)
        self.table.index_rule = IndexRule(1, 1000)
        self.attempts = RoundAttempts(lambda attempt: None)
        self.table.owned.staged = OpenEpoch(self.table, self.attempts, lease)
        self._positions: dict[int, Position] = {}

    def stage(self, epoch: int, rows: Rows, watermark_ms: int, *, replaces: bool) -> StagedAttempt:
        attempt = StagedAttempt("app/counts", GROUPS, 511, merge_of(self.of), None, replaces, watermark_ms)
        attempt.add(list(rows), list(rows.values()))
        self.attempts.stage(Attempt("counts", epoch, 0, 0, epoch), attempt)
        return attempt

    def commit(self, epoch: int, attempt: StagedAttempt, watermark_ms: int, *, replaces: bool) -> None:
        stamp = EpochStamp(epoch, 1, 2500, watermark_ms)
        snapshot, context = self.store.snapshot(), CommitContext.of(stamp)
        written: dict[bytes, bytes | None] = {}
        for group in range(GROUPS):
            part = attempt.groups.get(group.to_bytes(2, "big"))
            merged = part.merged() if part else {}
            written |= changes(merged, snapshot, group, merge_of(self.of), context, replace=replaces)
        snapshot.close()
        after = Position(10 * epoch, epoch, 1, 0, 1)
        advances = {of: Advance(self._positions.get(of, START), after) for of in range(GROUPS)}
        self._positions = dict.fromkeys(advances, after)
        puts = sorted((key, stored) for key, stored in written.items() if stored is not None)
        self.store.apply(Batch(puts, sorted(written.keys() - dict(puts).keys()), advances))
        standing = Standing(stamp, assignment_version=1)
        self.table.publish(self.store.snapshot(), frozenset(range(GROUPS)), standing, {}, epoch)
        self.attempts.drop_committed(epoch)

    def scanned(self, asked: Asked, bounds: ReadBounds) -> dict[int, tuple[int, list[tuple[bytes, bytes]]]]:
        """By key group: of which epoch anything is staged, and what is found."""
        select = SelectedEntries(self.of, Selection(asked.where) if asked.where is not None else EVERYTHING)
        scans = Scans(ScanLimits(page_entries=3, turn_entries=4))
        found = {}
        for within in self._ranges(asked):
            scanned = self.table.scan(
                within, bounds, descending=asked.descending, indexed=select.indexed, limit=asked.limit
            )
            pages = list(scans.pages(scanned, asked.limit, select))
            scanned.close()
            group = int.from_bytes(within.prefix[:2], "big")
            entries = [pair for page in pages for pair in zip(page.keys, page.rows, strict=True)]
            found[group] = scanned.source.staged_epoch, entries
        return found

    def _ranges(self, asked: Asked) -> Iterator[EntryRange]:
        codec, position = self.table.codec, 4 if self.of.map_key else 8
        map_first, map_last = (
            b"" if bound is None else encode_integer(bound - 2 * (position == 4), position)
            for bound in (asked.map_first, asked.map_last)
        )
        if asked.key is not None:
            key = codec.prefix(asked.key)
            yield EntryRange(key, key + map_first, key + map_last if map_last else end_of_prefix(key))
            return
        for group in range(GROUPS):
            first, last = (
                b"" if bound is None else codec.prefix(NAMES[bound])[2:] for bound in (asked.first, asked.last)
            )
            yield codec.group_range(group, b"", first, last, (map_first, map_last), descending=asked.descending)


@contextmanager
def small_pieces() -> Iterator[None]:
    """A few rows make several of each."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(open_group, "_PIECE_ENTRIES", 2))
        stack.enter_context(mock.patch.object(staged, "_RUN_KEYS", 2))
        yield


@pytest.mark.parametrize("state", STATES)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_it_is_what_the_commit_makes_of_it(state: str, data: st.DataObject) -> None:
    of = data.draw(drawn(state))
    owner, latest = Owner(of.of), ReadBounds(latest=True)
    for number, rows in enumerate(of.epochs[:2], start=1):
        at = of.watermarks[number - 1]
        owner.commit(number, owner.stage(number, rows, at, replaces=False), at, replaces=False)
    before = [owner.scanned(asked, ReadBounds()) for asked in of.scans]
    attempt = owner.stage(3, of.epochs[2], of.watermarks[2], replaces=of.replaces)
    with small_pieces():
        scanned = [owner.scanned(asked, latest) for asked in of.scans]
    assert [owner.scanned(asked, ReadBounds()) for asked in of.scans] == before, "a read has changed something"
    owner.commit(3, attempt, of.watermarks[2], replaces=of.replaces)
    assert [owner.scanned(asked, latest) for asked in of.scans] == [
        owner.scanned(asked, ReadBounds()) for asked in of.scans
    ], "something is staged of an epoch that is committed"
    with_rows = {int.from_bytes(prefix, "big") for prefix in attempt.groups}
    for asked, found, was in zip(of.scans, scanned, before, strict=True):
        after = owner.scanned(asked, ReadBounds())
        for group, (epoch, entries) in found.items():
            if group in with_rows:
                assert (epoch, entries) == (3, after[group][1])
            else:
                assert (epoch, entries) == was[group]
    owner.table.close()

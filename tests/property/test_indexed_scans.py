"""A scan gives the same with indexes as without: of any fields, predicates, ranges and limits, as of any epoch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Lifetime, Moment
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.encoding.value_types import value_type
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.predicates import Predicate
from keyhole.model.read import ReadBounds
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor, TtlClock
from keyhole.stores.base import Advance, Batch, Snapshot, Store, StoreEngine, StoreLimits
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.clock import ManualClock
from services.state_server.read import indexed_scans
from services.state_server.read.indexed_scans import IndexRule
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from tests.property.test_index_values import with_indexes
from tests.support.examples import examples
from tests.support.key_strategies import keys
from tests.support.predicate_model import GIVEN, predicates, states

TTL_MS = 1000
ENGINES: Mapping[str, Callable[[Path], StoreEngine]] = {
    "memory": lambda path: MemoryEngine(),
    "lmdb": lambda path: LmdbEngine(StoreLimits(path, 1 << 24)),
    "rocksdb": lambda path: RocksdbEngine(StoreLimits(path, 1 << 24)),
}
RULES = (IndexRule(1, 1000), IndexRule(1, 1000), IndexRule(1, 2), IndexRule())


class Asked(NamedTuple):
    """A scan of each key group. `cut`: it begins behind the entry of this place, as a token has it."""

    where: Predicate
    descending: bool
    limit: int
    cut: int | None
    as_of: int


class Drawn(NamedTuple):
    """A state that is indexed by all fields, its epochs (None deletes), and scans.

    Attributes:
        above: What stands over the store when it is read last, as in a state that is fed by updates.
        late: Whether the indexes are declared once the first epoch is stored, and built behind the second.
    """

    of: StateDescriptor
    epochs: list[dict[bytes, bytes | None]]
    above: dict[bytes, bytes | None]
    scans: list[Asked]
    late: bool
    rule: IndexRule


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    of, first = draw(states())
    of = with_indexes(msgspec.structs.replace(of, ttl_ms=TTL_MS if draw(st.booleans()) else 0))
    codec = StateCodec(of)
    new = st.tuples(keys((*of.scan_key, *of.entry_key)).map(codec.storage_key), rows_of(of))
    known = st.sampled_from(sorted(first)) if first else st.nothing()
    changed = st.lists(new | st.tuples(known, st.none() | rows_of(of)), max_size=8).map(dict)
    epochs = [dict(first), draw(changed), draw(changed)]
    scan = st.builds(
        Asked,
        predicates(of),
        st.booleans(),
        st.sampled_from([0, 0, 1, 3]),
        st.none() | st.integers(0, 3),
        st.sampled_from([0, 0, 2]),
    )
    scans = draw(st.lists(scan, min_size=1, max_size=4))
    return Drawn(of, epochs, draw(changed), scans, draw(st.booleans()), draw(st.sampled_from(RULES)))


def rows_of(of: StateDescriptor) -> st.SearchStrategy[bytes]:
    def stored(values: tuple[Any, ...]) -> bytes:
        pairs = zip(of.value.fields, values, strict=True)
        given_ = [None if value is None else value_type(field.type).from_given(value) for field, value in pairs]
        return encode_row(of.value.version, given_)

    return st.tuples(*(st.none() | GIVEN[field.type] for field in of.value.fields)).map(stored)


class Reader:
    """A table over a store: epochs are committed, and it is scanned."""

    def __init__(self, of: StateDescriptor, store: Store, clock: ManualClock) -> None:
        self.of, self.store = of, store
        lease = Lease(clock, seconds=1000.0)
        lease.confirm()
        self.table = Table("server-a", of, store, lease)
        self._positions: dict[int, Position] = {}
        self._epoch = 0

    def entry(self, row: bytes | None) -> bytes | None:
        """As it is stored in this epoch. Every second one has expired when it is read."""
        if row is None or not self.of.ttl_ms:
            return row
        written = Moment(100 if self._epoch % 2 else 5000, 0)
        return Lifetime(TTL_MS, TtlClock.PROCESSING_TIME).entries(written)(row)

    def commit(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._epoch += 1
        entries = {key: self.entry(row) for key, row in changes.items()}
        after = Position(10 * self._epoch, self._epoch, 1, 0, 1)
        advances = {of: Advance(self._positions.get(of, START), after) for of in range(self.of.key_groups)}
        puts = sorted((key, entry) for key, entry in entries.items() if entry is not None)
        self.store.apply(Batch(puts, sorted(key for key, entry in entries.items() if entry is None), advances))
        self._positions = dict.fromkeys(advances, after)
        self.publish(self.store.snapshot())

    def publish(self, snapshot: Snapshot) -> None:
        standing = Standing(EpochStamp(self._epoch, 1, 1, 0), assignment_version=1)
        self.table.publish(snapshot, frozenset(range(self.of.key_groups)), standing, {})

    def publish_over(self, changes: Mapping[bytes, bytes | None]) -> None:
        """What stands over the store, as of the same epoch."""
        overlay = Overlay().changed((key, self.entry(row)) for key, row in changes.items())
        self.publish(OverlaySnapshot(self.store.snapshot(), overlay))

    def scanned(self, asked: Asked, page: int) -> list[list[tuple[bytes, bytes]]]:
        """Keys and rows, by key group."""
        select = SelectedEntries(self.of, Selection(asked.where))
        scans = Scans(ScanLimits(page_entries=page, turn_entries=page + 1))
        found = []
        for group in range(self.of.key_groups):
            behind = b""
            if asked.cut is not None:
                all_keys = sorted(key for key, _ in self._all(group))
                behind = all_keys[asked.cut] if asked.cut < len(all_keys) else b""
            within = self.table.codec.group_range(group, behind, descending=asked.descending)
            scanned = self.table.scan(
                within,
                ReadBounds(as_of=asked.as_of),
                descending=asked.descending,
                indexed=select.indexed,
                limit=asked.limit,
            )
            pages = list(scans.pages(scanned, asked.limit, select))
            scanned.close()
            found.append([pair for of in pages for pair in zip(of.keys, of.rows, strict=True)])
        return found

    def _all(self, group: int) -> list[tuple[bytes, bytes]]:
        snapshot = self.store.snapshot()
        try:
            return list(snapshot.items(group))
        finally:
            snapshot.close()


@contextmanager
def readers(of: StateDescriptor, kind: str) -> Iterator[tuple[Reader, Reader, IndexedStore]]:
    """Without indexes, and with them."""
    clock = ManualClock(3000)
    with tempfile.TemporaryDirectory() as directory:
        plain, engine = MemoryEngine(), ENGINES[kind](Path(directory))
        bare = msgspec.structs.replace(of, index=())
        store = IndexedStore(engine.open(of.application, of.state, "topic"), bare, build_entries=2)
        without = Reader(bare, plain.open(of.application, of.state, "topic"), clock)
        try:
            yield without, Reader(of, store, clock), store
        finally:
            engine.close()
            plain.close()


def check(of: Drawn, kind: str) -> None:
    few = mock.patch.object(indexed_scans, "_RUN_KEYS", 2)
    with few, readers(of.of, kind) as (without, indexed, store):
        indexed.table.index_rule = of.rule
        if not of.late:
            store.declare(of.of)
        for number, epoch in enumerate(of.epochs):
            for reader in (without, indexed):
                reader.commit(epoch)
            if of.late and number == 0:
                store.declare(of.of)
                store.build()
            if of.late and number == 1:
                while store.build():
                    pass
        for over in (False, True):
            if over:
                without.publish_over(of.above)
                indexed.publish_over(of.above)
            for asked in of.scans:
                if not over or not asked.as_of:
                    assert indexed.scanned(asked, 3) == without.scanned(asked, 1000)
        without.table.close()
        indexed.table.close()


@settings(max_examples=examples(60))
@given(drawn())
def test_a_scan_of_a_store_in_memory_is_the_same_with_indexes(of: Drawn) -> None:
    check(of, "memory")


@settings(max_examples=examples(25))
@given(drawn())
def test_a_scan_of_lmdb_is_the_same_with_indexes(of: Drawn) -> None:
    check(of, "lmdb")


@settings(max_examples=examples(8))
@given(drawn())
def test_a_scan_of_rocksdb_is_the_same_with_indexes(of: Drawn) -> None:
    check(of, "rocksdb")

"""Any sequence of writes, declarations, builds, drops, crashes and restarts leaves each index that is asked equal to
what a model makes of the rows, also in the snapshots of before."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyhole.encoding.envelope import Lifetime, Moment, deletion
from keyhole.encoding.index_ranges import ValueRange
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.encoding.storage_key import group_of, prefix_of
from keyhole.errors import StoreConflict
from keyhole.model.epoch import START, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch, Snapshot, StoreEngine, StoreLimits
from keyhole.stores.index_entries import keys_in, keys_of_one_value, rows_counted
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from tests.support.examples import examples

GROUPS = (0, 1, 7)
FIRST = ValueSchema(1, (ValueField("a", "int"), ValueField("b", "string")))
SECOND = ValueSchema(
    2,
    (
        ValueField("b", "string"),
        ValueField("c", "double", True, msgspec.msgpack.encode(0.5)),
        ValueField("a", "bigint"),
    ),
)
OF = StateDescriptor(
    "app", "state", "main", StateKind.VALUE, 8, (KeyColumn("k", KeyType.STRING),), FIRST, topic_id="topic"
)
ANY = ValueRange(b"\0", b"\2")
SETTINGS = settings(
    max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

# The longest has no room beside any value.
names = st.sampled_from([b"a", b"b", b"c", b"\0", b"\xff\xff", b"l" * 507])
fields = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.sampled_from(["", "x", "x" * 70, "x" * 71, "ü\0"]))


class Row(NamedTuple):
    """A row, as the first schema has it; None: what is remembered of a deletion. `version`: of its schema."""

    fields: tuple[int | None, str | None] | None
    version: int


class Model(NamedTuple):
    """What the store has: rows by storage key, and positions."""

    rows: dict[bytes, Row]
    positions: dict[int, Position]

    def copy(self) -> Model:
        return Model(dict(self.rows), dict(self.positions))


class IndexMachine(RuleBasedStateMachine):
    """See the module's text. Rows are stored with a stamp, and as a state with order_by has them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="keyhole-test-indexes-"))
        self.engine = self.make_engine(StoreLimits(self.root / "stores", 1 << 30))
        self.model = Model({}, {})
        self.kept: list[tuple[Snapshot, Model, StateDescriptor]] = []
        self.epoch = 0

    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        raise NotImplementedError

    @initialize(index=st.sampled_from([(), ("a",), ("a", "b")]), ttl=st.booleans(), ordered=st.booleans())
    def start(self, index: tuple[str, ...], ttl: bool, ordered: bool) -> None:
        self.of = msgspec.structs.replace(
            OF, index=index, ttl_ms=1000 if ttl else 0, order_by="a" if ordered else "", keep_deleted_ms=1000
        )
        self.open()

    def open(self) -> None:
        self.base = self.engine.open("app", "state", "topic")
        self.store = IndexedStore(self.base, self.of, build_entries=3)

    def stored(self, row: Row) -> bytes:
        if row.fields is None:
            value = deletion(1)
        else:
            a, b = row.fields
            value = msgspec.msgpack.encode([1, a, b] if row.version == 1 else [2, b, 2.5, a])
        if not self.of.ttl_ms and not self.of.order_by:
            return value
        return Lifetime(self.of.ttl_ms, TtlClock.PROCESSING_TIME, 1000).entries(Moment(500, 0))(value)

    def batch(self, changes: dict[tuple[int, bytes], Any], others: set[int]) -> tuple[Batch, dict[bytes, Row | None]]:
        self.epoch += 1
        after = Position(self.epoch * 7, self.epoch, 1, self.epoch, self.epoch, 0)
        rows: dict[bytes, Row | None] = {}
        for (group, name), value in changes.items():
            row = None if value == "gone" else Row(value, self.of.value.version)
            if row is not None and row.fields is None and not self.of.order_by:
                row = None
            rows[prefix_of(group) + name] = row
        touched = {group_of(key) for key in rows} | others
        advances = {group: Advance(self.model.positions.get(group, START), after) for group in touched}
        puts = sorted((key, self.stored(row)) for key, row in rows.items() if row is not None)
        return Batch(puts, sorted(key for key, row in rows.items() if row is None), advances), rows

    def done(self, batch: Batch, rows: dict[bytes, Row | None]) -> None:
        for key, row in rows.items():
            if row is None:
                self.model.rows.pop(key, None)
            else:
                self.model.rows[key] = row
        self.model.positions.update({group: advance.after for group, advance in batch.advances.items()})

    changed = st.dictionaries(
        st.tuples(st.sampled_from(GROUPS), names), st.just("gone") | st.none() | fields, max_size=8
    )

    @rule(
        changes=changed, others=st.sets(st.sampled_from(GROUPS)), by=st.sampled_from(["us"] * 5 + ["before", "fails"])
    )
    def apply(self, changes: dict[tuple[int, bytes], Any], others: set[int], by: str) -> None:
        batch, rows = self.batch(changes, others)
        if by == "fails":
            wrong = {**batch.advances, 1: Advance(Position(1, 1, 1, 1), Position(2, 2, 2, 2))}
            with pytest.raises(StoreConflict):
                self.store.apply(Batch(batch.puts, batch.deletes, wrong))
            return
        if by == "before":
            # A release that knows no indexes has the store for a while.
            self.base.apply(batch)
            self.done(batch, rows)
            self.restart()
            return
        self.store.apply(batch)
        self.done(batch, rows)

    @rule(key_group=st.sampled_from(GROUPS), by=st.sampled_from(["us", "us", "before"]))
    def drop_key_group(self, key_group: int, by: str) -> None:
        (self.store if by == "us" else self.base).drop_key_group(key_group)
        for key in [key for key in self.model.rows if group_of(key) == key_group]:
            del self.model.rows[key]
        self.model.positions.pop(key_group, None)
        if by == "before":
            self.restart()

    @rule(index=st.sampled_from([(), ("a",), ("a", "b"), ("b",)]))
    def declare(self, index: tuple[str, ...]) -> None:
        self.of = msgspec.structs.replace(self.of, index=index)
        self.store.declare(self.of)

    @rule(index=st.sampled_from([("a",), ("a", "c"), ("c", "b")]))
    def evolve(self, index: tuple[str, ...]) -> None:
        self.of = msgspec.structs.replace(self.of, value=SECOND, earlier=(FIRST,), index=index)
        self.store.declare(self.of)

    @rule(steps=st.integers(1, 4))
    def build(self, steps: int) -> None:
        for _ in range(steps):
            self.store.build()

    @rule()
    def build_to_the_end(self) -> None:
        # What a key group has given up for a key that is gone since begins anew when the state is declared.
        self.store.declare(self.of)
        while self.store.build():
            pass
        snapshot, taken = self.store.snapshot(), 0
        for group in self.model.positions:
            rows_of = {key: row for key, row in self.model.rows.items() if group_of(key) == group}
            whole = all(len(key) < 100 or row.fields is None for key, row in rows_of.items())
            for field in indexed_fields(self.of):
                rows = rows_counted(snapshot, group, field.id)
                assert (rows is not None) is whole
                taken += 0 if rows is None else rows + 1
        snapshot.close()
        assert self.base.size().entries == len(self.model.rows) + taken
        assert self.store.size().entries == len(self.model.rows)

    @precondition(lambda self: len(self.kept) < 3)
    @rule()
    def keep(self) -> None:
        self.kept.append((self.store.snapshot(), self.model.copy(), self.of))

    @rule()
    def restart(self) -> None:
        for snapshot, _, _ in self.kept:
            snapshot.close()
        self.kept.clear()
        self.store.close()
        self.open()

    def check(self, snapshot: Snapshot, model: Model, of: StateDescriptor) -> None:
        assert snapshot.positions() == model.positions
        for group in GROUPS:
            assert [key for key, _ in snapshot.items(group)] == sorted(k for k in model.rows if group_of(k) == group)
            for field in indexed_fields(of):
                counted = rows_counted(snapshot, group, field.id)
                if counted is None:
                    continue
                rows = {k: row for k, row in model.rows.items() if group_of(k) == group and row.fields is not None}
                values = {key: field.encode(value_of(row, field.name)) for key, row in rows.items()}
                found = list(keys_in(snapshot, group, field.id, ANY))
                assert sorted(found) == sorted(rows)
                assert [values[key] for key in found] == sorted(values.values())
                assert counted == len(rows)
                for value in set(values.values()):
                    first = prefix_of(group) + b"b"
                    same = sorted(key for key, of in values.items() if of == value)
                    asked = (snapshot, group, field.id, value)
                    assert list(keys_of_one_value(*asked, prefix_of(group), None, descending=False)) == same
                    assert list(keys_of_one_value(*asked, first, None, descending=True)) == [
                        key for key in same[::-1] if key >= first
                    ]
                    end = prefix_of(group + 1)
                    assert list(keys_of_one_value(*asked, first, end, descending=False)) == [
                        key for key in same if key >= first
                    ]

    @invariant()
    def what_is_asked_is_right(self) -> None:
        snapshot = self.store.snapshot()
        self.check(snapshot, self.model, self.of)
        snapshot.close()
        for earlier, model, of in self.kept:
            self.check(earlier, model, of)

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.root)


def value_of(row: Row, name: str) -> Any:
    """Of a field, as it is stored."""
    assert row.fields is not None
    if name == "c":
        return 0.5 if row.version == 1 else 2.5
    return row.fields["ab".index(name)]


class MemoryMachine(IndexMachine):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return MemoryEngine(limits.bytes)


class LmdbMachine(IndexMachine):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return LmdbEngine(limits)


class RocksdbMachine(IndexMachine):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return RocksdbEngine(limits)


TestIndexesInMemory = MemoryMachine.TestCase
TestIndexesInLmdb = LmdbMachine.TestCase
TestIndexesInRocksdb = RocksdbMachine.TestCase

TestIndexesInMemory.settings = SETTINGS
TestIndexesInLmdb.settings = settings(SETTINGS, max_examples=examples(12))
TestIndexesInRocksdb.settings = settings(SETTINGS, max_examples=examples(5))

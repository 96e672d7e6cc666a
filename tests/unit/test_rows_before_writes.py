"""A write reads each row that it replaces once, for those who watch and for an index; and nothing for neither."""

from __future__ import annotations

import pytest

from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.encoding.index_ranges import ValueRange
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.model.epoch import EpochStamp
from keyhole.stores.index_entries import keys_in
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.memory import MemoryEngine
from services.state_server.read.watcher import size_of
from services.state_server.replica.hosted import StateReplica
from services.state_server.write import watched_write
from services.state_server.write.store_write import write_to_stores
from tests.support.counting_engine import CountingEngine
from tests.support.states import descriptor, hosted, key, names_in, row

FEW, MANY = names_in(0, 2), names_in(1, 6)


class Written:
    """A state, and epochs of two key groups that are written to its store."""

    def __init__(self, *index: str) -> None:
        of = descriptor(index=index)
        self.engine = CountingEngine(MemoryEngine())
        self.store = IndexedStore(self.engine.open(of.application, of.state, "topic"), of)
        self.state: StateReplica = hosted(of=of, store=self.store)
        self.state.indexes = self.store
        self.epoch = 0
        self.write(1.0)

    def write(self, n: float, names: tuple[list[str], list[str]] = (FEW, MANY)) -> int:
        """How many rows were read of the store."""
        self.epoch, before = self.epoch + 1, self.engine.asked_keys
        marker = Marker(EpochStamp(self.epoch, 1, 1000, 0), self.epoch, 0)
        parts = {Partition("counts", group): sorted(key(name) for name in of) for group, of in enumerate(names)}
        changes = [PartitionChanges(part, [(of, row(n)) for of in keys], marker) for part, keys in parts.items()]
        self.state.changed = []
        write_to_stores(changes, dict.fromkeys(parts, 10 * self.epoch), {"counts": self.state})
        if self.store.has_entries:
            assert self.store.index_entries() == {"n": len(FEW) + len(MANY)}
            assert self._indexed(n) == sorted(key(name) for of in names for name in of)
        return self.engine.asked_keys - before

    def _indexed(self, n: float) -> list[bytes]:
        """The rows that the index has of a number."""
        (of,) = indexed_fields(self.state.descriptor)
        snapshot = self.store.snapshot()
        value, groups = of.encode(n), range(2)
        found = [keys_in(snapshot, group, of.id, ValueRange(value, value + b"\xff")) for group in groups]
        return [key for keys in found for key in sorted(keys)]

    def watch(self, *, befores: bool) -> None:
        self.state.table.changes.active, self.state.table.changes.wants_befores = True, befores

    @property
    def befores(self) -> list[list[bytes | None] | None]:
        return [None if epoch.befores is None else list(epoch.befores) for epoch in self.state.changed]


def test_each_row_is_read_once_whoever_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed, plain = Written("n"), Written()
    assert (indexed.write(2.0), plain.write(2.0)) == (8, 0)
    for of in (indexed, plain):
        of.watch(befores=False)
    assert (indexed.write(3.0), plain.write(3.0)) == (8, 0)
    assert indexed.befores == plain.befores == [None, None]
    for of in (indexed, plain):
        of.watch(befores=True)
    assert (indexed.write(4.0), plain.write(4.0)) == (8, 8)
    assert indexed.befores == plain.befores == [[row(3.0)] * 2, [row(3.0)] * 6]
    # What is too much to be kept for those who watch is read by the index alone.
    of_few = size_of([(key(name), row(5.0)) for name in FEW]) + len(FEW) * len(row(4.0))
    monkeypatch.setattr(watched_write, "MOST_BYTES", of_few)
    assert (indexed.write(5.0), plain.write(5.0)) == (8, 2)
    assert indexed.befores == [[row(4.0)] * 2, None]

"""Whatever was written, compacted, cut off and taken up again: a restored store and its index are those of a model."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.changelog.records import PieceLimits
from keyhole.encoding.envelope import Lifetime, Moment, deletion
from keyhole.encoding.indexed_fields import INDEX_GROUPS
from keyhole.encoding.storage_key import group_of, prefix_of
from keyhole.errors import NotReady
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.state import StateDescriptor, TtlClock
from keyhole.stores import packed
from keyhole.stores.base import Advance, Batch, Store, StoreEngine, StoreLimits
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.restore import AtOnce, restore
from tests.support.examples import examples
from tests.support.states import KEY_GROUPS, content, descriptor, table

ENGINES: dict[str, Callable[[StoreLimits], StoreEngine]] = {
    "lmdb": LmdbEngine,
    "rocksdb": RocksdbEngine,
    "memory": lambda limits: MemoryEngine(limits.bytes),
}
LIVES = Lifetime(1000, TtlClock.PROCESSING_TIME, 1000)

# As of a value state, and as of the entries of one key of a map, which begin alike.
names = st.sampled_from([b"a", b"b", b"c", b"d", b"\xff\xff"]) | st.binary(max_size=2).map(lambda of: b"map\x00" + of)
keys = st.builds(lambda group, name: prefix_of(group) + name + b"\x00", st.integers(0, KEY_GROUPS - 1), names)
# A row is written at a time: some have expired long ago, as seen from the others. A deletion may be remembered.
rows = st.tuples(st.none() | st.integers(-3, 3), st.sampled_from([0, 500, 10**6]))
epochs = st.lists(st.dictionaries(keys, st.just("gone") | rows, max_size=20), max_size=8)


def stored(of: StateDescriptor, row: Any) -> bytes | None:
    if row == "gone":
        return None
    number, written_ms = row
    value = deletion(1) if number is None and of.order_by else msgspec.msgpack.encode([1, number])
    return LIVES.entries(Moment(written_ms, 0))(value) if of.ttl_ms else value


class Bench:
    """A changelog, what it should come to, and a store that is restored from it."""

    def __init__(self, of: StateDescriptor, engine: StoreEngine) -> None:
        self.of = of
        self.kafka = MemoryKafka()
        self.changelog = MemoryChangelog(self.kafka, "app")
        self.changelog.admin().ensure(of, 1.0)
        self.writer = self.changelog.writer("grant")
        self.writer.open(1.0)
        self.model: dict[bytes, bytes] = {}
        self.positions: dict[int, Position] = {}
        self.base = engine.open("app", "counts", "topic")
        self.store = IndexedStore(self.base, of)
        self.epoch = 0

    def write(self, changes: dict[bytes, Any]) -> None:
        self.epoch += 1
        stamp = EpochStamp(self.epoch, 1, 1000 * self.epoch, 0)
        rows = {key: stored(self.of, row) for key, row in changes.items()}
        groups = sorted({group_of(key) for key in rows})
        parts = [
            PartitionChanges(
                Partition("counts", group),
                [(key, row) for key, row in rows.items() if group_of(key) == group],
                Marker(stamp, self.epoch, 0),
            )
            for group in groups
        ]
        if parts:
            for part, offset in self.writer.commit(parts, 1.0).items():
                self.positions[part.key_group] = Position.after(offset, stamp, self.epoch)
        for key, row in rows.items():
            if row is None:
                self.model.pop(key, None)
            else:
                self.model[key] = row

    def restore(self, at_once: AtOnce, pieces: int | None) -> None:
        """Reads it back as a server does that starts; to its end, or no further than so many pieces."""
        replica = StateReplica.open(self.of, self.store, table(self.of, self.store))
        replica.indexes = self.store
        stop = mock.create_autospec(threading.Event, instance=True)
        stop.is_set.side_effect = _after(pieces)
        restore(
            {"counts": replica},
            {"counts": range(KEY_GROUPS)},
            self.changelog,
            ManualClock(0),
            away_limit_ms=10**9,
            deadline_seconds=5.0,
            stop=stop,
            at_once=at_once,
        )

    def check(self) -> None:
        assert content(self.base) == self.model
        snapshot = self.store.snapshot()
        assert dict(snapshot.positions()) == self.positions
        snapshot.close()
        assert index_of(self.base) == index_of(self.written_at_once())

    def written_at_once(self) -> Store:
        base = MemoryEngine().open("app", "counts", "topic")
        advances = {group: Advance(START, position) for group, position in self.positions.items()}
        IndexedStore(base, self.of).apply(Batch(sorted(self.model.items()), [], advances))
        return base


def _after(pieces: int | None) -> Iterator[bool]:
    for _ in range(10**6 if pieces is None else pieces):
        yield False
    while True:
        yield True


def index_of(base: Store) -> list[tuple[bytes, bytes]]:
    snapshot = base.snapshot()
    found = [entry for group in range(KEY_GROUPS) for entry in snapshot.items(INDEX_GROUPS + group)]
    snapshot.close()
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "of",
    [
        pytest.param(descriptor(), id="plain"),
        pytest.param(descriptor(ttl_ms=1000), id="ttl"),
        pytest.param(descriptor(index=("n",)), id="index"),
        pytest.param(descriptor(index=("n",), ttl_ms=1000, order_by="n", keep_deleted_ms=1000), id="all"),
    ],
)
@given(
    first=epochs,
    then=epochs,
    compacted=st.sampled_from(["", "", "first", "then"]),
    broken_off=st.none() | st.integers(0, 12),
    at_once=st.builds(AtOnce, *[st.sampled_from([1, 100, 10_000])] * 4),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3)),
    # Several pieces of a key group, which end at a marker or anywhere.
    pieces=st.builds(PieceLimits, records=st.integers(1, 5), unmarked_records=st.integers(2, 6)),
)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_restored_store_and_its_index_equal_a_model(
    engine: str,
    of: StateDescriptor,
    first: list[dict[bytes, Any]],
    then: list[dict[bytes, Any]],
    compacted: str,
    broken_off: int | None,
    at_once: AtOnce,
    lengths: tuple[int, int, int],
    pieces: PieceLimits,
) -> None:
    run, block, together = lengths
    root = Path(tempfile.mkdtemp(prefix="keyhole-test-restored-"))
    engine_of_it = ENGINES[engine](StoreLimits(root / "stores", 1 << 30))
    try:
        with (
            mock.patch.multiple(packed, RUN_CHANGES=run, BLOCK_CHANGES=block, _MERGED_BLOCKS=together),
            mock.patch("keyhole.stores.pieces._MERGED_TOGETHER", together),
            mock.patch("keyhole.testing.changelog.PIECE_LIMITS", pieces),
        ):
            bench = Bench(of, engine_of_it)
            for written, when in ((first, "first"), (then, "then")):
                for changes in written:
                    bench.write(changes)
                if compacted == when:
                    bench.kafka.compact(of.topic)
                if broken_off is not None:
                    with contextlib.suppress(NotReady):
                        bench.restore(at_once, broken_off)
                bench.restore(at_once, None)
                bench.check()
    finally:
        engine_of_it.close()
        shutil.rmtree(root)

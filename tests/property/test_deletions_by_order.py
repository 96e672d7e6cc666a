"""With `order_by` and deletions by order, a key is what its highest row says, whatever comes in between.

Against a dict of what is remembered of each entry: any rows in any order, of equal and of null orders, split into
epochs and into chunks, with epochs that are run again, time that passes, stores that are lost, a changelog that is
compacted, and a standby that reads it in pieces; in all stores.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.envelope import Moment, deletion
from keyhole.encoding.key_codec import encode_integer, end_of_prefix
from keyhole.encoding.row_codec import encode_row
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.stores.base import Store, StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.clock import ManualClock
from services.state_server.read.standing import Standing
from services.state_server.read.table import Table
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import merge_of
from services.state_server.write.staged import StagedAttempt
from services.state_server.write.ttl_gc import SweepLimits
from tests.support.bench import Bench
from tests.support.examples import examples
from tests.support.states import KEY_GROUPS, content, descriptor, hosted, names_in, table

ENGINES: dict[str, Callable[[StoreLimits], StoreEngine]] = {
    "memory": lambda limits: MemoryEngine(),
    "lmdb": LmdbEngine,
    "rocksdb": RocksdbEngine,
}
NAMES = [*names_in(0, 2), *names_in(1, 1)]
KEEP_MS, TTL_MS = 40, 60
# So that a round takes several epochs, whose deletions it must know of; and as many epochs as two rounds can take.
A_FEW = SweepLimits(entries=7, partitions=1)
ROUNDS = 20
ORDERED: dict[str, object] = {
    "value": ValueSchema(1, (ValueField("at", "bigint"), ValueField("v", "string"))),
    "order_by": "at",
    "keep_deleted_ms": KEEP_MS,
}
MAP: dict[str, object] = {"kind": StateKind.MAP, "map_key": (KeyColumn("m", KeyType.INT),)}
STATES: dict[str, dict[str, object]] = {
    "value": {},
    "map": MAP,
    "value with a ttl": {"ttl_ms": TTL_MS},
    "map by the watermark": {**MAP, "ttl_ms": TTL_MS, "ttl_clock": TtlClock.EVENT_TIME},
}


class Row(NamedTuple):
    """Of an epoch. `entry`: of a map; None: of the whole key. `v`: None: it deletes."""

    name: str
    entry: int | None
    at: int | None
    v: str | None


class Said(NamedTuple):
    """What is remembered of an entry, or of a whole key: the last that counted."""

    at: int
    v: str | None
    expires_ms: int | None

    def lives(self, now_ms: int) -> bool:
        return self.expires_ms is None or self.expires_ms > now_ms


def level(at: int | None) -> int:
    return -1 if at is None else at


class Remembered:
    """The dict."""

    def __init__(self, of: StateDescriptor) -> None:
        self._of = of
        self.said: dict[tuple[str, int | None], Said] = {}

    def take(self, rows: list[Row], now_ms: int) -> None:
        """An epoch. What clears a map's keys comes first, and of equal orders a deletion comes last."""
        for row in sorted(rows, key=lambda row: (not self._clears(row), level(row.at), row.v is None, row.v or "")):
            self._take(row, now_ms)

    def _clears(self, row: Row) -> bool:
        return bool(self._of.map_key) and row.entry is None

    def _take(self, row: Row, now_ms: int) -> None:
        at = level(row.at)
        over = [(row.name, row.entry), (row.name, None)]
        if any(said.at > at for name in over if (said := self.said.get(name)) and said.lives(now_ms)):
            return
        if self._clears(row):
            gone = [name for name, said in self.said.items() if name[0] == row.name and said.at <= at]
            for name in gone:
                del self.said[name]
        lives_ms = self._of.keep_deleted_ms if row.v is None else self._of.ttl_ms
        self.said[row.name, row.entry] = Said(at, row.v, now_ms + lives_ms if lives_ms else None)

    def shown(self, now_ms: int) -> dict[tuple[str, int | None], str]:
        return {name: said.v for name, said in self.said.items() if said.v is not None and said.lives(now_ms)}


class Owner:
    """Of such a state in a store; beside it a standby in another one."""

    def __init__(self, of: StateDescriptor, stores: list[Store], seed: int) -> None:
        self.of = of
        self.codec = StateCodec(of)
        self.bench = Bench(of, stores[0])
        self.standby = hosted((), of, stores[1])
        self.model = Remembered(of)
        self.random = random.Random(seed)
        self.now = Moment(1000, 1000)
        self.number = 0
        self._grants = 1

    @property
    def now_ms(self) -> int:
        return self.now.watermark_ms if self.of.ttl_clock is TtlClock.EVENT_TIME else self.now.time_ms

    def commit(self, rows: list[Row], *, passed_ms: int, replays: int) -> None:
        self.number += 1
        # By one of the two clocks alone, so that it matters which.
        event_time = self.of.ttl_clock is TtlClock.EVENT_TIME
        time_ms, watermark_ms = (1, passed_ms) if event_time else (passed_ms, 1)
        self.now = Moment(self.now.time_ms + time_ms, self.now.watermark_ms + watermark_ms)
        for _ in range(replays + 1):
            attempt = self._staged(rows)
            states = {"counts": StateToCommit([attempt], attempt.receipts(), replace=False)}
            part = EpochToCommit(EpochStamp(self.number, 1, *self.now), 0, states)
            assert not any(item.differs for item in self.bench.commit(part).values())
        self.model.take(rows, self.now_ms)

    def _staged(self, rows: list[Row]) -> StagedAttempt:
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(self.of))
        staged = [self._encoded(row) for row in self.random.sample(rows, len(rows))]
        while staged:
            size = self.random.randint(1, 3)
            attempt.add(*map(list, zip(*staged[:size], strict=True)))
            del staged[:size]
        return attempt

    def _encoded(self, row: Row) -> tuple[bytes, bytes]:
        key = self.codec.prefix(row.name) + (b"" if row.entry is None else encode_integer(row.entry, 4))
        return key, deletion(row.at) if row.v is None else encode_row(1, [row.at, row.v])

    def lose_store(self) -> None:
        self._grants += 1
        self.bench.state.forget(range(KEY_GROUPS), "the test says so")
        self.bench.restore_under(f"grant-{self._grants}")

    def compact(self) -> None:
        self.bench.kafka.compact(self.of.topic)

    def check(self) -> None:
        expected = self.model.shown(self.now_ms)
        assert self.shown(self.bench.state) == expected
        self.standby.groups.lose_grant()
        self.bench.read_into(self.standby)
        assert content(self.standby.store) == content(self.bench.state.store)
        assert self.shown(self.standby) == expected

    def shown(self, of: StateReplica) -> dict[tuple[str, int | None], str]:
        """What readers get: by keys, or by scans."""
        view = self._published(of)
        decode = self.codec.decode_row
        if not self.of.map_key:
            rows = view.lookup([self.codec.storage_key(name) for name in NAMES]).rows
            return {(name, None): decode(row)["v"] for name, row in zip(NAMES, rows, strict=True) if row is not None}
        found: dict[tuple[str, int | None], str] = {}
        for name in NAMES:
            prefix = self.codec.prefix(name)
            scanned = view.scan(EntryRange(prefix, prefix, end_of_prefix(prefix)))
            for key, row in scanned.entries:
                if row is not None:
                    ((entry,),) = (self.codec.entries.decode(key[len(prefix) :]),)
                    assert view.lookup([key]).rows == [row]
                    found[name, entry] = decode(row)["v"]
            scanned.close()
        view.close()
        return found

    def _published(self, of: StateReplica) -> Table:
        view = table(self.of, of.store, ManualClock(0))
        view.publish(of.store.snapshot(), frozenset(range(KEY_GROUPS)), self._standing(), {})
        return view

    def _standing(self) -> Standing:
        return Standing(EpochStamp(self.number, 1, *self.now), assignment_version=1)


names, orders = st.sampled_from(NAMES), st.none() | st.integers(0, 4)
values = st.none() | st.sampled_from(["x", "y"])


def rows_of(of: StateDescriptor) -> st.SearchStrategy[list[Row]]:
    entry = st.builds(Row, names, st.integers(0, 1) if of.map_key else st.none(), orders, values)
    clearing = st.builds(Row, names, st.none(), orders, st.none())
    return st.lists(st.one_of(entry, entry, clearing), max_size=6)


@contextmanager
def stores(engine: str) -> Iterator[list[Store]]:
    with tempfile.TemporaryDirectory() as directory:
        engines = [ENGINES[engine](StoreLimits(Path(directory) / name, 1 << 26)) for name in ("owner", "standby")]
        try:
            yield [each.open("app", "counts", "topic") for each in engines]
        finally:
            for each in engines:
                each.close()


@pytest.mark.parametrize("kind", STATES)
@given(data=st.data(), seed=st.integers(0, 999))
@settings(max_examples=examples(50), deadline=None)
def test_each_entry_is_what_the_highest_row_says(kind: str, data: st.DataObject, seed: int) -> None:
    each_entry_is_what_the_highest_row_says("memory", kind, data, seed)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "memory"])
@pytest.mark.parametrize("kind", STATES)
@given(data=st.data(), seed=st.integers(0, 999))
@settings(max_examples=examples(10), deadline=None)
def test_so_it_is_in_stores_on_disk(engine: str, kind: str, data: st.DataObject, seed: int) -> None:
    """Which take longer to open."""
    each_entry_is_what_the_highest_row_says(engine, kind, data, seed)


def each_entry_is_what_the_highest_row_says(engine: str, kind: str, data: st.DataObject, seed: int) -> None:
    of = descriptor(**ORDERED, **STATES[kind])
    with stores(engine) as opened:
        owner = Owner(of, opened, seed)
        assert owner.bench.state.sweeper is not None
        # In memory, as it takes many epochs: what is swept when does not depend on the store.
        limits = data.draw(st.sampled_from([SweepLimits(), A_FEW])) if engine == "memory" else SweepLimits()
        owner.bench.state.sweeper.limits = limits
        for _ in range(data.draw(st.integers(1, 6))):
            rows = data.draw(rows_of(of))
            owner.commit(rows, passed_ms=data.draw(st.integers(0, 30)), replays=data.draw(st.integers(0, 1)))
            for happens in data.draw(st.sets(st.sampled_from(["compact", "lose", "check"]))):
                {"compact": owner.compact, "lose": owner.lose_store, "check": owner.check}[happens]()
        owner.check()
        # What is due is swept by the epochs that come, and no deletion is left.
        for number in range(2 + (ROUNDS if limits is A_FEW else 0)):
            owner.commit([], passed_ms=KEEP_MS if number < 2 else 0, replays=0)
        owner.check()
        kept = len(owner.model.shown(owner.now_ms))
        assert len(content(owner.bench.state.store)) == kept
        owner.compact()
        owner.lose_store()
        owner.check()

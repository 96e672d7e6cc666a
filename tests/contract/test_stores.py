"""Our own stores keep the contract that third parties' are held to."""

from __future__ import annotations

from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.stores import StoreContract


class TestMemoryStore(StoreContract):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return MemoryEngine(limits.bytes)


class TestLmdbStore(StoreContract):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return LmdbEngine(limits)


class TestRocksdbStore(StoreContract):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return RocksdbEngine(limits)

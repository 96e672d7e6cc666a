"""Any sequence of batches, drops, snapshots, crashes and restarts leaves a store equal to a dict."""

from __future__ import annotations

from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.stores.machine import SETTINGS, StoreMachine


class MemoryMachine(StoreMachine):
    survives = False

    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return MemoryEngine(limits.bytes)


class LmdbMachine(StoreMachine):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return LmdbEngine(limits)


class RocksdbMachine(StoreMachine):
    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        return RocksdbEngine(limits)


TestAMemoryStoreEqualsADict = MemoryMachine.TestCase
TestAnLmdbStoreEqualsADict = LmdbMachine.TestCase
TestARocksdbStoreEqualsADict = RocksdbMachine.TestCase

TestAMemoryStoreEqualsADict.settings = SETTINGS
TestAnLmdbStoreEqualsADict.settings = SETTINGS
TestARocksdbStoreEqualsADict.settings = SETTINGS

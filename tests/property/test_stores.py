"""Any sequence of batches, drops, snapshots, crashes and restarts leaves a store equal to a dict."""

from __future__ import annotations

from hypothesis import settings

from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.stores.machine import SETTINGS, StoreMachine
from tests.support.examples import examples


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

_SETTINGS = settings(SETTINGS, max_examples=examples(SETTINGS.max_examples))
TestAMemoryStoreEqualsADict.settings = _SETTINGS
TestAnLmdbStoreEqualsADict.settings = _SETTINGS
TestARocksdbStoreEqualsADict.settings = _SETTINGS

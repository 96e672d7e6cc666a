"""The contract of a store, for pytest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.stores.base import Store, StoreEngine, StoreLimits
from keyhole.testing.stores.contents import ContentsContract
from keyhole.testing.stores.lifetimes import LifetimesContract, MakeEngine

LIMIT_BYTES = 1 << 30


class StoreContract(ContentsContract, LifetimesContract):
    """What every store engine must keep, as tests: subclass it, say `make_engine`, and run it with pytest."""

    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        """A new engine; the directory is not there yet. It is closed after the test."""
        raise NotImplementedError

    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[MakeEngine]:
        """Makes an engine with a limit in bytes; each in a directory of its own."""
        engines: list[StoreEngine] = []

        def made(limit_bytes: int) -> StoreEngine:
            engine = self.make_engine(StoreLimits(tmp_path / str(len(engines)), limit_bytes))
            engines.append(engine)
            return engine

        yield made
        for engine in engines:
            engine.close()

    @pytest.fixture
    def engine(self, make: MakeEngine) -> StoreEngine:
        return make(LIMIT_BYTES)

    @pytest.fixture
    def store(self, engine: StoreEngine) -> Store:
        return engine.open("application", "state", "topic")

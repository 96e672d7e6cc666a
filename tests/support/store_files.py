"""What the tests of stores on disk share: batches that tell where a store is, killed processes."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Store, StoreEngine, StoreLimits
from keyhole.stores.disk.store_directory import directory_name
from keyhole.stores.rocksdb.engine import RocksdbEngine

ROWS_PER_BATCH = 50
MIB = 1 << 20

MakeEngine = Callable[[StoreLimits], StoreEngine]


def position(epoch: int) -> Position:
    return Position(epoch, epoch, 1, epoch, epoch, 0) if epoch else START


def batch(epoch: int, row_bytes: int = 8, rows: int = ROWS_PER_BATCH) -> Batch:
    """Epoch n writes rows that name it, one more key every epoch, and deletes one key of the epoch before."""
    row = str(epoch).encode().ljust(row_bytes)
    puts = [(b"\x00\x01" + f"{i:08}".encode(), row) for i in range(epoch, epoch + rows)]
    deletes = [b"\x00\x01" + f"{epoch - 1:08}".encode()]
    return Batch(puts, deletes, {1: Advance(position(epoch - 1), position(epoch))})


def contents(store: Store) -> tuple[Position, dict[bytes, bytes]]:
    snapshot = store.snapshot()
    try:
        return snapshot.positions().get(1, START), dict(snapshot.items(1))
    finally:
        snapshot.close()


def fill(make_engine: MakeEngine, limits: StoreLimits) -> Path:
    """Makes a store, closed after epoch 3: the directory of its files."""
    engine = make_engine(limits)
    store = engine.open("application", "state", "topic")
    for epoch in (1, 2, 3):
        store.apply(batch(epoch))
    engine.close()
    return limits.directory / directory_name("application", "state")


def opened(make_engine: MakeEngine, limits: StoreLimits) -> tuple[Position, dict[bytes, bytes]]:
    """What an engine finds there."""
    engine = make_engine(limits)
    try:
        return contents(engine.open("application", "state", "topic"))
    finally:
        engine.close()


def assert_is_emptied(
    make_engine: MakeEngine, limits: StoreLimits, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store in the directory has nothing any more, and a warning says why."""
    with caplog.at_level(logging.WARNING):
        assert opened(make_engine, limits) == (START, {})
    (record,) = caplog.records
    assert record.getMessage() == "emptied a store; it is rebuilt from the changelog"
    assert record.__dict__["store_path"] == str(directory)
    assert record.__dict__["why"].startswith(("damaged:", "it was written for another"))


def small_rocksdb(limits: StoreLimits) -> StoreEngine:
    """Writes files often."""
    return RocksdbEngine(limits, block_cache_bytes=MIB, memtable_bytes=MIB)


def expected_entries(epoch: int, row_bytes: int = 8) -> dict[bytes, bytes]:
    """What a store holds after all batches up to that epoch."""
    entries: dict[bytes, bytes] = {}
    for n in range(1, epoch + 1):
        made = batch(n, row_bytes)
        for key in made.deletes:
            entries.pop(key, None)
        entries.update(made.puts)
    return entries


def _apply_until_killed(make_engine: MakeEngine, limits: StoreLimits, row_bytes: int, applied: Connection) -> None:
    store = make_engine(limits).open("application", "state", "topic")
    epoch = contents(store)[0].epoch
    while True:
        epoch += 1
        store.apply(batch(epoch, row_bytes))
        applied.send(epoch)


def kill_while_it_applies(
    make_engine: MakeEngine,
    limits: StoreLimits,
    milliseconds: Sequence[float],
    row_bytes: int = 8,
) -> None:
    """Kills a process that applies batch after batch, and looks at what it left; once per entry of `milliseconds`."""
    spawn = multiprocessing.get_context("spawn")
    for wait in milliseconds:
        hear, tell = spawn.Pipe(duplex=False)
        process = spawn.Process(target=_apply_until_killed, args=(make_engine, limits, row_bytes, tell))
        process.start()
        tell.close()
        committed = hear.recv()
        time.sleep(wait / 1000)  # so that the kills fall into different moments of an `apply`
        process.kill()
        process.join()
        try:
            while True:
                committed = hear.recv()
        except EOFError:
            pass
        hear.close()

        engine = make_engine(limits)
        stored, entries = contents(engine.open("application", "state", "topic"))
        engine.close()
        # The one that was under way may be there as well, but then all of it.
        assert stored in (position(committed), position(committed + 1))
        assert entries == expected_entries(stored.epoch, row_bytes)

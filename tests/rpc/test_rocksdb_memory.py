"""A state five times the memory that a RocksDB store is given is written and served within a bounded memory."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, StoreLimits
from keyhole.stores.disk.store_directory import directory_name
from keyhole.stores.rocksdb.engine import RocksdbEngine

MIB = 1 << 20
CACHE_BYTES = 16 * MIB
MEMTABLE_BYTES = 16 * MIB
LIMIT_BYTES = CACHE_BYTES + MEMTABLE_BYTES
KEY_GROUPS = 8
ROW_BYTES = 1000
ENTRIES = 5 * LIMIT_BYTES // ROW_BYTES + 1
ROWS_PER_BATCH = 1000
FRAME_KEYS = 128
# The batch that is written, a piece of a scan, RocksDB's buffers for the files that it merges, and what malloc keeps.
ALLOWED_BYTES = LIMIT_BYTES + 32 * MIB


def key(number: int) -> bytes:
    return (number % KEY_GROUPS).to_bytes(2, "big") + f"{number:08}".encode()


def row(number: int, version: int) -> bytes:
    """Doesn't compress, and can be made again."""
    return hashlib.shake_128(f"{number} {version}".encode()).digest(ROW_BYTES)


def version_of(number: int) -> int:
    """Every third row is replaced once."""
    return 2 if number % 3 == 0 else 1


def open_engine(directory: Path) -> RocksdbEngine:
    return RocksdbEngine(StoreLimits(directory), block_cache_bytes=CACHE_BYTES, memtable_bytes=MEMTABLE_BYTES)


@dataclass
class Outcome:
    grew_bytes: int
    right: int
    wrong: int


class Growth:
    """How much more memory this process took at its worst than when this was made."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss
        self.bytes = 0

    def look(self) -> None:
        self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)


def batches() -> Iterator[Batch]:
    position = START
    replaced = [(n, 2) for n in range(ENTRIES) if version_of(n) == 2]
    written = [(n, 1) for n in range(ENTRIES)] + replaced
    for epoch, first in enumerate(range(0, len(written), ROWS_PER_BATCH), start=1):
        after = Position(epoch, epoch, 1, 0, epoch, 0)
        puts = sorted((key(n), row(n, version)) for n, version in written[first : first + ROWS_PER_BATCH])
        yield Batch(puts, [], dict.fromkeys(range(KEY_GROUPS), Advance(position, after)))
        position = after


def write(directory: Path, outcomes: Connection) -> None:
    engine = open_engine(directory)
    store = engine.open("application", "state", "topic")
    growth = Growth()
    for batch in batches():
        store.apply(batch)
        growth.look()
    outcomes.send(Outcome(growth.bytes, ENTRIES, 0))
    engine.close()


def get(directory: Path, outcomes: Connection) -> None:
    engine = open_engine(directory)
    snapshot = engine.open("application", "state", "topic").snapshot()
    growth = Growth()
    numbers = list(range(ENTRIES))
    random.Random(1).shuffle(numbers)
    right = 0
    for first in range(0, ENTRIES, FRAME_KEYS):
        frame = numbers[first : first + FRAME_KEYS]
        found = snapshot.get_many([key(n) for n in frame])
        right += sum(stored == row(n, version_of(n)) for n, stored in zip(frame, found, strict=True))
        growth.look()
    outcomes.send(Outcome(growth.bytes, right, ENTRIES - right))
    engine.close()


def scan(directory: Path, outcomes: Connection) -> None:
    engine = open_engine(directory)
    snapshot = engine.open("application", "state", "topic").snapshot()
    growth = Growth()
    right = wrong = 0
    for key_group in range(KEY_GROUPS):
        for storage_key, stored in snapshot.items(key_group, descending=key_group % 2 == 1):
            number = int(storage_key[2:])
            good = number % KEY_GROUPS == key_group and stored == row(number, version_of(number))
            right, wrong = right + good, wrong + (not good)
        growth.look()
    outcomes.send(Outcome(growth.bytes, right, wrong))
    engine.close()


def test_a_state_five_times_its_memory_limit_is_written_and_served_within_it(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    for work in (write, get, scan):  # each in a process of its own, which begins with nothing in memory
        hear, tell = spawn.Pipe(duplex=False)
        process = spawn.Process(target=work, args=(tmp_path / "stores", tell))
        process.start()
        tell.close()
        outcome: Outcome = hear.recv()
        process.join()
        assert (outcome.right, outcome.wrong) == (ENTRIES, 0), work.__name__
        assert outcome.grew_bytes < ALLOWED_BYTES, f"{work.__name__} took {outcome.grew_bytes / MIB:.0f} MiB"
    files = (tmp_path / "stores" / directory_name("application", "state")).glob("*.sst")
    assert sum(path.stat().st_size for path in files) > 5 * LIMIT_BYTES

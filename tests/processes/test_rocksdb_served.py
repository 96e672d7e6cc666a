"""A state five times the memory that its RocksDB store is given, behind a real server: its memory stays bounded."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from keyhole import Client
from keyhole.config import JobConfig
from keyhole.encoding.columnar import encode
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_state_server
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.disk.store_directory import directory_name
from tests.support import states
from tests.support.feeding import Feed
from tests.support.peak_memory import PeakMemory
from tests.support.waiting import LONG_SECONDS

MIB = 1 << 20
CACHE_BYTES = MEMTABLE_BYTES = 16 * MIB
LIMIT_BYTES = CACHE_BYTES + MEMTABLE_BYTES
KEYS, ROW_BYTES, EPOCHS = 8, 1000, 42
PER_EPOCH = 5 * LIMIT_BYTES // ROW_BYTES // EPOCHS + 1
ENTRIES = EPOCHS * PER_EPOCH
CHUNK_ROWS = 1000
GETS, FRAME_KEYS = 20_000, 128
# Beside the store's: an epoch that is staged and committed, RocksDB's buffers for the files that it merges, the pages
# of a scan, and what malloc keeps.
ALLOWED_BYTES = LIMIT_BYTES + 64 * MIB


def row(number: int) -> bytes:
    """Doesn't compress, and can be made again."""
    return random.Random(number).randbytes(ROW_BYTES)


def at(number: int) -> tuple[int, int]:
    """Key and map key."""
    return number % KEYS, number // KEYS


def descriptor(application: str) -> StateDescriptor:
    return states.descriptor(
        application=application,
        state="blobs",
        query="blobs",
        kind=StateKind.MAP,
        key_groups=4,
        key=(KeyColumn("k", KeyType.BIGINT),),
        value=ValueSchema(1, (ValueField("blob", "binary"),)),
        map_key=(KeyColumn("m", KeyType.BIGINT),),
    )


def rows(of: StateDescriptor, epoch: int) -> Iterator[pa.RecordBatch]:
    first = (epoch - 1) * PER_EPOCH
    for start in range(first, first + PER_EPOCH, CHUNK_ROWS):
        numbers = range(start, min(start + CHUNK_ROWS, first + PER_EPOCH))
        keys, map_keys = zip(*map(at, numbers), strict=True)
        batch = {
            "k": pa.array(keys, pa.int64()),
            "m": pa.array(map_keys, pa.int64()),
            "blob": pa.array(map(row, numbers), pa.binary()),
        }
        yield encode(pa.record_batch(batch), of)


@pytest.fixture
def server(kafka: str, tmp_path: Path) -> Iterator[tuple[Child, str]]:
    (port,) = free_ports(1)
    stores = tmp_path / "stores.toml"
    stores.write_text(f"""
        [[stores]]
        states = ["*/blobs"]
        store = "rocksdb"
        directory = "{tmp_path / "blobs"}"
        options = {{ block_cache_bytes = {CACHE_BYTES}, memtable_bytes = {MEMTABLE_BYTES} }}
    """)
    environ = {**os.environ, "KEYHOLE_STATE_SERVER_STORES": str(stores)}
    child = start_state_server("server-0", port, bootstrap_servers=kafka, directory=tmp_path, environ=environ)
    yield child, f"127.0.0.1:{port}"
    child.kill()


def get_some(client: Client, of: StateDescriptor) -> None:
    """By chance, from all of it."""
    numbers = random.Random(1).sample(range(ENTRIES), GETS)
    for start in range(0, GETS, FRAME_KEYS):
        frame = numbers[start : start + FRAME_KEYS]
        answers = client.get_many(of.application, of.state, [at(number) for number in frame])
        assert [answer.value.blob for answer in answers] == [row(number) for number in frame]


def scan_all(client: Client, of: StateDescriptor) -> None:
    """Half of the keys from their end."""
    for key in range(KEYS):
        expected = range(key, ENTRIES, KEYS)
        found = client.scan(of.application, of.state, key, descending=key % 2 == 1)
        numbers = expected[::-1] if key % 2 else expected
        assert [entry.map_key for entry in found] == [at(number)[1] for number in numbers]
        assert all(entry.value.blob == row(number) for entry, number in zip(found, numbers, strict=True))


def test_a_state_five_times_its_memory_limit_is_served_by_a_server_of_bounded_memory(
    kafka: str, server: tuple[Child, str], application: str, tmp_path: Path
) -> None:
    child, address = server
    of = descriptor(application)
    config = JobConfig(application, (address,), kafka, epoch_deadline_seconds=10 * LONG_SECONDS)
    with Feed(config, of, lambda epoch: rows(of, epoch)) as feed, Client(address, timeout=LONG_SECONDS) as client:
        feed.epoch()
        with PeakMemory(child.pid) as fed:
            for _ in range(EPOCHS - 1):
                feed.epoch()
        with PeakMemory(child.pid) as read:
            get_some(client, of)
            scan_all(client, of)
    grown = {"fed": fed.bytes - fed.before, "read": read.bytes - fed.before}
    assert max(grown.values()) < ALLOWED_BYTES < ENTRIES * ROW_BYTES, {w: n // MIB for w, n in grown.items()}
    files = (tmp_path / "blobs" / directory_name(application, of.state)).glob("*.sst")
    assert sum(path.stat().st_size for path in files) > 4 * LIMIT_BYTES, "the rest is in the memtable and the log"

"""What only RocksDB stores do: files that are damaged or foreign, killed processes, full disks, old snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, WriteBatch

from keyhole.errors import InternalError, InvalidConfiguration, NotReady, StoreFormat, StoreFull
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Store, StoreLimits
from keyhole.stores.disk.store_directory import directory_name
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine, RocksdbStore
from keyhole.testing.stores.samples import key, puts
from tests.support.disks import small_disk
from tests.support.store_files import (
    MIB,
    assert_is_emptied,
    batch,
    contents,
    expected_entries,
    fill,
    kill_while_it_applies,
    opened,
    position,
    small_rocksdb,
)

LIMIT_BYTES = 1 << 30


@pytest.fixture
def limits(tmp_path: Path) -> StoreLimits:
    return StoreLimits(tmp_path / "stores", LIMIT_BYTES)


@pytest.fixture
def filled(limits: StoreLimits) -> Path:
    return fill(RocksdbEngine, limits)


def open_filled(limits: StoreLimits) -> tuple[Position, dict[bytes, bytes]]:
    return opened(RocksdbEngine, limits)


def put(directory: Path, name: bytes, value: bytes) -> None:
    options = Options(raw_mode=True)
    database = Rdict(str(directory), options, {"default": options})
    write = WriteBatch(raw_mode=True)
    write.put(name, value)
    database.write(write)
    database.close()


def table_file(directory: Path) -> Path:
    return next(iter(sorted(directory.glob("*.sst"))))


# --- files that are not what they should be ---


def cut_a_table(directory: Path) -> None:
    data = table_file(directory).read_bytes()
    table_file(directory).write_bytes(data[: len(data) // 2])


def flip_bytes_of_the_identity(directory: Path) -> None:
    with table_file(directory).open("r+b") as file:
        file.seek(10)
        file.write(b"\xa5" * 50)


def remove_a_table(directory: Path) -> None:
    table_file(directory).unlink()


def remove_the_manifest(directory: Path) -> None:
    next(directory.glob("MANIFEST-*")).unlink()


def overwrite_the_manifest(directory: Path) -> None:
    next(directory.glob("MANIFEST-*")).write_bytes(b"\xa5" * 500)


def remove_current(directory: Path) -> None:
    (directory / "CURRENT").unlink()


def break_a_position(directory: Path) -> None:
    put(directory, b"p\x00\x01", b"short")


def name_another_state(directory: Path) -> None:
    put(directory, b"mstate", b"another")


def take_the_identity(directory: Path) -> None:
    put(directory, b"mformat", b"")


@pytest.mark.parametrize(
    "damage",
    [
        cut_a_table,
        flip_bytes_of_the_identity,
        remove_a_table,
        remove_the_manifest,
        overwrite_the_manifest,
        remove_current,
        break_a_position,
        name_another_state,
        take_the_identity,
    ],
)
def test_a_damaged_store_is_emptied_with_a_warning_that_says_why(
    filled: Path, limits: StoreLimits, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(filled)
    assert_is_emptied(RocksdbEngine, limits, filled, caplog)


def test_bytes_that_flipped_among_the_rows_end_a_scan_with_an_error(limits: StoreLimits) -> None:
    engine = small_rocksdb(limits)
    store = engine.open("application", "state", "topic")
    store.apply(Batch(puts(1, 3000, row_bytes=1000), [], {1: Advance(START, position(1))}))
    engine.close()
    largest = max(limits.directory.rglob("*.sst"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(b"\xa5" * 5000)

    engine = small_rocksdb(limits)
    snapshot = engine.open("application", "state", "topic").snapshot()
    keys = [key for key, _ in puts(1, 3000, row_bytes=1)]
    reads: list[Callable[[], object]] = [
        lambda: list(snapshot.items(1)),
        lambda: list(snapshot.items(1, descending=True)),
        lambda: snapshot.get_many(keys),
        lambda: [snapshot.get(key) for key in keys],
    ]
    for read in reads:
        with pytest.raises(InternalError, match="can't be read or written"):
            read()
    engine.close()


def test_a_store_of_another_format_version_is_refused(filled: Path, limits: StoreLimits) -> None:
    put(filled, b"mformat", b"2")
    engine = RocksdbEngine(limits)
    with pytest.raises(StoreFormat, match="format version 2 and this server writes 1"):
        engine.open("application", "state", "another topic")
    engine.close()


def test_a_directory_of_another_engine_is_refused_either_way(filled: Path, limits: StoreLimits, tmp_path: Path) -> None:
    with pytest.raises(StoreFormat, match="'keyhole rocksdb 1' and this server writes 'keyhole lmdb 1'"):
        LmdbEngine(limits)
    LmdbEngine(StoreLimits(tmp_path / "lmdb")).close()
    with pytest.raises(StoreFormat, match="'keyhole lmdb 1' and this server writes 'keyhole rocksdb 1'"):
        RocksdbEngine(StoreLimits(tmp_path / "lmdb"))
    assert open_filled(limits)[0] == position(3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"block_cache_bytes": 1000},
            "block_cache_bytes is 1000; it must be a whole number of bytes, at least",
        ),
        ({"memtable_bytes": "64 MB"}, "memtable_bytes is '64 MB'; it must be a whole number of bytes"),
        ({"memtable_bytes": True}, "memtable_bytes is True; it must be a whole number of bytes"),
        ({"compression": "zip"}, "compression is 'zip'; it must be one of none, lz4, zstd"),
    ],
)
def test_an_option_that_is_none_is_refused_before_anything_is_made(
    limits: StoreLimits, options: dict[str, int], says: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        RocksdbEngine(limits, **options)
    assert not limits.directory.exists()


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_files_of_any_compression_are_read_whatever_the_engine_writes_now(
    limits: StoreLimits, compression: str
) -> None:
    engine = RocksdbEngine(limits, compression=compression)
    engine.open("application", "state", "topic").apply(batch(1, row_bytes=10_000))
    engine.close()
    assert open_filled(limits) == (position(1), expected_entries(1, row_bytes=10_000))


def test_a_store_that_is_opened_again_takes_what_memory_the_engine_is_given_now(limits: StoreLimits) -> None:
    """rocksdict reads a column family's options from the files where it isn't told otherwise."""
    engine = RocksdbEngine(limits, memtable_bytes=64 * MIB)
    engine.open("application", "state", "topic")
    engine.close()
    engine = small_rocksdb(limits)
    store = engine.open("application", "state", "topic")
    tables = set()  # all that there ever were: some are merged meanwhile
    for epoch in range(1, 9):
        store.apply(batch(epoch, row_bytes=10_000))
        tables |= set((limits.directory / directory_name("application", "state")).glob("*.sst"))
    assert len(tables) > 1  # 4 MB of rows did not fit a memtable
    engine.close()


# --- processes that are killed ---


def test_a_process_that_is_killed_while_files_are_written_and_merged_loses_nothing(limits: StoreLimits) -> None:
    kill_while_it_applies(small_rocksdb, limits, milliseconds=(50, 130, 210, 290), row_bytes=5000)


# --- readers ---


def test_snapshots_of_many_epochs_each_answer_with_theirs_while_files_are_written_and_merged(
    limits: StoreLimits,
) -> None:
    engine = small_rocksdb(limits)
    store = engine.open("application", "state", "topic")
    snapshots = []
    for epoch in range(1, 31):
        store.apply(batch(epoch, row_bytes=5000))
        snapshots.append(store.snapshot())
    for epoch, snapshot in enumerate(snapshots, start=1):
        expected = expected_entries(epoch, row_bytes=5000)
        assert dict(snapshot.items(1)) == expected
        asked = [*expected, key(1, "absent")]
        assert snapshot.get_many(asked) == [expected.get(key) for key in asked]
        assert snapshot.positions() == {1: position(epoch)}
    engine.close()


def test_a_reader_at_any_moment_of_a_write_sees_all_of_its_snapshot(limits: StoreLimits) -> None:
    """`get_many` asks the newest data where nothing was written since: that must not change under it."""
    engine = small_rocksdb(limits)
    store = engine.open("application", "state", "topic")
    keys = [key(1, f"{n:03}") for n in range(200)]
    done = threading.Event()
    torn: list[int] = []

    def read() -> None:
        while not done.is_set():
            snapshot = store.snapshot()
            epoch = snapshot.positions().get(1, START).epoch
            for _ in range(5):
                rows = set(snapshot.get_many(keys))
                if rows != ({str(epoch).encode()} if epoch else {None}):
                    torn.append(epoch)
            snapshot.close()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for epoch in range(1, 301):
        advance = Advance(position(epoch - 1), position(epoch))
        store.apply(Batch([(k, str(epoch).encode()) for k in keys], [], {1: advance}))
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
    engine.close()


def test_a_scan_that_is_under_way_does_not_keep_the_store_from_being_closed_and_opened(limits: StoreLimits) -> None:
    engine = RocksdbEngine(limits)
    store = engine.open("application", "state", "topic")
    store.apply(batch(1))
    forgotten = store.snapshot().items(1)  # nobody closes its snapshot
    next(forgotten)
    store.close()
    again = engine.open("application", "state", "topic")
    assert contents(again) == (position(1), expected_entries(1))
    with pytest.raises(NotReady):
        next(forgotten)
    engine.close()


# --- sizes and room ---


def test_a_store_counts_its_entries_exactly_while_they_are_few(limits: StoreLimits) -> None:
    engine = RocksdbEngine(limits)
    store = engine.open("application", "state", "topic")
    for epoch in range(1, 21):
        store.apply(batch(epoch))
        assert store.size().entries == len(expected_entries(epoch))
    store.drop_key_group(1)
    assert store.size().entries == 0
    engine.close()


def test_what_was_replaced_does_not_count_towards_the_limit(tmp_path: Path) -> None:
    engine = small_rocksdb(StoreLimits(tmp_path / "stores", 4 * MIB))
    store = engine.open("application", "state", "topic")
    last = START
    for epoch in range(1, 41):  # 40 MB in all, 1 MB of it alive
        store.apply(Batch(puts(1, 1000, row_bytes=1000), [], {1: Advance(last, position(epoch))}))
        last = position(epoch)
    assert dict(store.snapshot().items(1)) == dict(puts(1, 1000, row_bytes=1000))
    engine.close()


def all_entries(store: Store) -> dict[bytes, bytes]:
    snapshot = store.snapshot()
    try:
        return {key: row for key_group in snapshot.positions() for key, row in snapshot.items(key_group)}
    finally:
        snapshot.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", mebibytes=8) as path:
        yield path


def test_a_disk_that_is_filled_by_the_store_itself_loses_nothing(disk: Path) -> None:
    limits = StoreLimits(disk / "stores", LIMIT_BYTES)
    engine = small_rocksdb(limits)
    store = engine.open("application", "state", "topic")
    entries: dict[bytes, bytes] = {}

    def fill() -> None:
        for key_group in range(100):
            made = puts(key_group, 100, row_bytes=1000)
            store.apply(Batch(made, [], {key_group: Advance(START, position(1))}))
            entries.update(made)

    with pytest.raises(StoreFull, match="no room for the store at"):
        fill()
    assert len(entries) > 2000
    assert all_entries(store) == entries
    engine.close()

    engine = small_rocksdb(limits)
    assert all_entries(engine.open("application", "state", "topic")) == entries
    engine.close()


def test_a_store_is_closed_once(limits: StoreLimits) -> None:
    engine = RocksdbEngine(limits)
    store = engine.open("application", "state", "topic")
    assert isinstance(store, RocksdbStore)
    store.close()
    store.close()
    engine.close()
    engine.close()

"""What only LMDB stores do: files that are damaged, foreign, locked or full, and processes that are killed."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from keyhole.errors import InvalidConfiguration, Overloaded, StoreFormat, StoreFull
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, StoreLimits
from keyhole.stores.disk.identity import Identity
from keyhole.stores.disk.store_directory import directory_name
from keyhole.stores.lmdb.engine import LmdbEngine, LmdbSnapshot
from keyhole.stores.lmdb.environment import open_environment
from tests.support.disks import fill_disk, small_disk
from tests.support.store_files import (
    assert_is_emptied,
    batch,
    contents,
    expected_entries,
    fill,
    opened,
    position,
)

LIMIT_BYTES = 1 << 30


@pytest.fixture
def limits(tmp_path: Path) -> StoreLimits:
    return StoreLimits(tmp_path / "stores", LIMIT_BYTES)


@pytest.fixture
def filled(limits: StoreLimits) -> Path:
    return fill(LmdbEngine, limits)


def open_filled(limits: StoreLimits) -> tuple[Position, dict[bytes, bytes]]:
    return opened(LmdbEngine, limits)


def meta_put(path: Path, name: bytes, value: bytes) -> None:
    with lmdb.open(str(path), max_dbs=3, map_size=LIMIT_BYTES) as env, env.begin(write=True) as txn:
        txn.put(name, value, db=env.open_db(b"meta", txn=txn))


# --- files that are not what they should be ---


def cut_in_half(data: Path) -> None:
    os.truncate(data, data.stat().st_size // 2)


def cut_the_last_page(data: Path) -> None:
    os.truncate(data, data.stat().st_size - 4096)


def cut_into_the_first_page(data: Path) -> None:
    os.truncate(data, 100)


def overwrite_the_head(data: Path) -> None:
    with data.open("r+b") as file:
        file.write(b"\xa5" * 8192)


def drop_the_databases(data: Path) -> None:
    with lmdb.open(str(data.parent), max_dbs=3, map_size=LIMIT_BYTES) as env, env.begin(write=True) as txn:
        txn.drop(env.open_db(b"positions", txn=txn))


def break_a_position(data: Path) -> None:
    with lmdb.open(str(data.parent), max_dbs=3, map_size=LIMIT_BYTES) as env, env.begin(write=True) as txn:
        txn.put(b"\x00\x01", b"short", db=env.open_db(b"positions", txn=txn))


def name_another_state(data: Path) -> None:
    meta_put(data.parent, b"state", b"another")


@pytest.mark.parametrize(
    "damage",
    [
        cut_in_half,
        cut_the_last_page,
        cut_into_the_first_page,
        overwrite_the_head,
        drop_the_databases,
        break_a_position,
        name_another_state,
    ],
)
def test_a_damaged_store_is_emptied_with_a_warning_that_says_why(
    filled: Path, limits: StoreLimits, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(filled / "data.mdb")
    assert_is_emptied(LmdbEngine, limits, filled, caplog)


def test_a_data_file_that_lmdb_left_short_is_filled_up_and_not_taken_for_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity = Identity("application", "state", "topic")
    opened = open_environment(tmp_path / "store", identity, LIMIT_BYTES)
    for _ in range(4):
        with opened.env.begin(db=opened.entries, write=True) as txn:
            txn.put(b"stays", b"row")
            txn.put(b"goes", b"x" * 90_000)
            txn.delete(b"goes")
    pages_bytes = (opened.env.info()["last_pgno"] + 1) * opened.env.stat()["psize"]
    assert opened.data_file.stat().st_size < pages_bytes  # LMDB never wrote the pages that it took and freed

    opened.fill_up()
    opened.env.close()
    again = open_environment(tmp_path / "store", identity, LIMIT_BYTES)
    with again.env.begin(db=again.entries) as txn:
        assert list(txn.cursor()) == [(b"stays", b"row")]
    again.env.close()
    assert caplog.records == []


def test_a_store_of_another_format_version_is_refused_and_not_touched(filled: Path, limits: StoreLimits) -> None:
    meta_put(filled, b"format", b"2")
    before = (filled / "data.mdb").read_bytes()
    engine = LmdbEngine(limits)
    with pytest.raises(StoreFormat, match="format version 2 and this server writes 1"):
        engine.open("application", "state", "another topic")
    assert (filled / "data.mdb").read_bytes() == before
    engine.close()


@pytest.mark.parametrize("mark", ["keyhole lmdb 2\n", "keyhole rocksdb 1\n", "", "\x00\xff"])
def test_a_directory_of_another_format_is_refused_and_not_touched(filled: Path, limits: StoreLimits, mark: str) -> None:
    (limits.directory / "FORMAT").write_text(mark, encoding="utf-8")
    before = sorted(str(path) for path in limits.directory.rglob("*"))
    with pytest.raises(StoreFormat, match="this server writes 'keyhole lmdb 1'"):
        LmdbEngine(limits)
    assert sorted(str(path) for path in limits.directory.rglob("*")) == before
    assert (limits.directory / "FORMAT").read_text(encoding="utf-8") == mark


def test_a_directory_with_other_files_is_refused_and_not_touched(limits: StoreLimits) -> None:
    limits.directory.mkdir()
    (limits.directory / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreFormat, match="is not a store directory"):
        LmdbEngine(limits)
    assert [path.name for path in limits.directory.iterdir()] == ["thesis.txt"]


def test_the_root_of_a_new_volume_is_taken(limits: StoreLimits) -> None:
    (limits.directory / "lost+found").mkdir(parents=True)
    LmdbEngine(limits).close()


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfiguration, match="KEYHOLE_STATE_SERVER_DIRECTORY"):
        LmdbEngine(StoreLimits(tmp_path / "file" / "stores"))


def test_directory_names_are_short_safe_and_one_to_one() -> None:
    names = ["", "a", "A", "a/b", "..", "ä", "\x00", "x" * 300, "x" * 301, "\ud800", "a b", "1 a"]
    made = {directory_name(application, state) for application in names for state in names}
    assert len({name.lower() for name in made}) == len(names) ** 2
    assert all(
        len(name.encode()) <= 143 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-.") for name in made
    )
    assert directory_name("temperature-monitor", "max_temperature").startswith("temperature-monitor.max_temperature.")


# --- one process ---


# --- room ---


def test_the_files_of_a_new_store_take_little_of_their_limit(tmp_path: Path) -> None:
    engine = LmdbEngine(StoreLimits(tmp_path / "stores", 1 << 40))
    store = engine.open("application", "state", "topic")
    files = list((tmp_path / "stores").rglob("*.mdb"))
    assert sum(path.stat().st_blocks * 512 for path in files) < 256 << 10
    assert store.size().bytes < 64 << 10
    engine.close()


def test_a_map_that_is_full_of_old_pages_works_again_when_the_snapshot_is_closed(tmp_path: Path) -> None:
    engine = LmdbEngine(StoreLimits(tmp_path / "stores", 1 << 20))
    store = engine.open("application", "state", "topic")
    store.apply(batch(1, row_bytes=10_000))
    snapshot = store.snapshot()
    before = dict(snapshot.items(1))

    def apply_from(epoch: int) -> None:
        while True:
            store.apply(batch(epoch, row_bytes=10_000))
            epoch += 1

    with pytest.raises(StoreFull, match="snapshots"):
        apply_from(2)

    epoch = contents(store)[0].epoch
    assert epoch > 10
    assert contents(store)[1] == {key: row.ljust(10_000) for key, row in expected_entries(epoch).items()}
    assert dict(snapshot.items(1)) == before
    snapshot.close()
    store.apply(batch(epoch + 1, row_bytes=10_000))
    assert contents(store)[0] == position(epoch + 1)
    engine.close()


def test_too_many_snapshots_are_refused_as_overload_and_leave_the_rest_alone(limits: StoreLimits) -> None:
    engine = LmdbEngine(limits)
    store = engine.open("application", "state", "topic")
    snapshots: list[LmdbSnapshot] = []
    with pytest.raises(Overloaded, match="snapshots"):
        snapshots.extend(store.snapshot() for _ in range(2000))
    store.apply(batch(1))
    snapshots.pop().close()
    assert contents(store)[0] == position(1)
    engine.close()


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    engine = LmdbEngine(StoreLimits(tmp_path / "stores", LIMIT_BYTES))
    store = engine.open("application", "state", "topic")
    store.apply(batch(1))
    before, (soft, hard) = contents(store), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StoreFull, match="no room for the store at"):
            store.apply(batch(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(store) == before
    store.apply(batch(2))
    assert contents(store)[0] == position(2)
    engine.close()


def test_what_is_committed_is_not_refused_by_a_file_that_may_not_be_filled_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who gets an error applies the batch again; its position would be refused then."""
    engine = LmdbEngine(StoreLimits(tmp_path / "stores", LIMIT_BYTES))
    store = engine.open("application", "state", "topic")
    for epoch in range(1, 9):  # leaves free pages: only the large row needs new ones
        store.apply(batch(epoch))
    (data,) = (tmp_path / "stores").rglob("data.mdb")
    short, (soft, hard) = data.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    goes = b"\x00\x01goes"
    resource.setrlimit(resource.RLIMIT_FSIZE, (short, hard))
    try:
        store.apply_parts([([(goes, b"x" * 90_000)], []), ([], [goes])], batch(9).advances)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(store)[0] == position(9)
    assert [record.getMessage()[:25] for record in caplog.records] == ["a store's file could not "]

    store.apply(batch(10))
    assert data.stat().st_size > short
    engine.close()
    assert opened(LmdbEngine, StoreLimits(tmp_path / "stores", LIMIT_BYTES))[0] == position(10)


def test_a_store_is_opened_and_read_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=2) as disk:
        limits = StoreLimits(disk / "stores", LIMIT_BYTES)
        fill(LmdbEngine, limits)
        fill_disk(disk / "ballast")
        assert open_filled(limits) == (position(3), expected_entries(3))


def test_rows_of_no_size_are_read_beyond_what_was_asked_for(tmp_path: Path) -> None:
    """Also about where LMDB begins to give a row pages of its own, before which bytes are not counted."""
    engine = LmdbEngine(StoreLimits(tmp_path, 64 << 20))
    store = engine.open("app", "state", "topic")
    page = os.sysconf("SC_PAGESIZE")
    at = START
    for number, size in enumerate((1, page // 2 - 60, *range(page // 2 - 40, page // 2 + 20, 7), 3 * page), 1):
        after = Position(number, number, 1, 0)
        key = b"\0\0" + number.to_bytes(2, "big")
        store.apply(Batch([(key, bytes(size))], advances={0: Advance(at, after)}))
        at = after
        snapshot = store.snapshot()
        for most in (10 * (page // 2), 10 * size):
            rows, alone = snapshot.get_first([key] * 12, most)
            assert (len(rows), alone) == (min(12, most // size), False)
        assert snapshot.get_first([key] * 3, size - 1) == ([bytes(size)], True)
        snapshot.close()
    engine.close()

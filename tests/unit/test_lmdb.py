"""What only LMDB stores do: files that are damaged, foreign, locked or full, and processes that are killed."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from keyhole.errors import InvalidConfiguration, Overloaded, StoreFormat, StoreFull, StoreLocked
from keyhole.stores.base import Advance, Batch, StoreLimits
from keyhole.stores.directory import directory_name
from keyhole.stores.lmdb import LmdbEngine, LmdbSnapshot
from keyhole.stores.lmdb_environment import open_environment
from keyhole.stores.on_disk import Identity
from keyhole.types import START, Position
from tests.support.store_files import (
    batch,
    contents,
    expected_entries,
    fill_disk,
    kill_while_it_applies,
    position,
    small_disk,
)

LIMIT_BYTES = 1 << 30


@pytest.fixture
def limits(tmp_path: Path) -> StoreLimits:
    return StoreLimits(tmp_path / "stores", LIMIT_BYTES)


@pytest.fixture
def filled(limits: StoreLimits) -> Path:
    """A closed store after epoch 3: the directory of its files."""
    engine = LmdbEngine(limits)
    store = engine.open("application", "state", "topic")
    for epoch in (1, 2, 3):
        store.apply(batch(epoch))
    engine.close()
    return limits.directory / directory_name("application", "state")


def open_filled(limits: StoreLimits) -> tuple[Position, dict[bytes, bytes]]:
    engine = LmdbEngine(limits)
    try:
        return contents(engine.open("application", "state", "topic"))
    finally:
        engine.close()


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
    with caplog.at_level(logging.WARNING):
        assert open_filled(limits) == (START, {})
    (record,) = caplog.records
    assert record.getMessage() == "emptied a store; it is rebuilt from the changelog"
    assert record.__dict__["store_path"] == str(filled)
    assert record.__dict__["why"].startswith(("damaged:", "it was written for another"))


def test_an_undamaged_store_is_opened_without_a_warning(
    filled: Path, limits: StoreLimits, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_filled(limits)[0] == position(3)
    assert caplog.records == []


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


def test_a_second_engine_is_refused_with_the_holder_until_the_first_is_closed(limits: StoreLimits) -> None:
    first = LmdbEngine(limits)
    with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()} on"):
        LmdbEngine(limits)
    first.close()
    first.close()
    LmdbEngine(limits).close()


def test_another_process_is_refused(limits: StoreLimits) -> None:
    engine = LmdbEngine(limits)
    code = (
        "import sys, pathlib\n"
        "from keyhole.errors import StoreLocked\n"
        "from keyhole.stores.base import StoreLimits\n"
        "from keyhole.stores.lmdb import LmdbEngine\n"
        "try: LmdbEngine(StoreLimits(pathlib.Path(sys.argv[1])))\n"
        "except StoreLocked as error: print(error.facts['holder'])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(limits.directory)], capture_output=True, text=True, check=True, timeout=60
    )
    assert f"process {os.getpid()} on" in found.stdout
    engine.close()


def test_a_killed_process_loses_nothing_that_was_committed(limits: StoreLimits) -> None:
    kill_while_it_applies(LmdbEngine, limits, milliseconds=(1, 7, 20))


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


def test_a_store_beyond_a_lowered_limit_can_be_read_and_shrunk(filled: Path, limits: StoreLimits) -> None:
    engine = LmdbEngine(StoreLimits(limits.directory, 4096))
    store = engine.open("application", "state", "topic")
    entries = contents(store)[1]
    assert len(entries) > 0
    with pytest.raises(StoreFull):
        store.apply(batch(4, row_bytes=100_000))
    store.apply(Batch([], sorted(entries), {1: Advance(position(3), position(4))}))
    assert contents(store) == (position(4), {})
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", mebibytes=2) as path:
        yield path


def test_a_full_disk_is_told_with_its_path_loses_nothing_and_ends_when_room_is_made(disk: Path) -> None:
    engine = LmdbEngine(StoreLimits(disk / "stores", LIMIT_BYTES))
    store = engine.open("application", "state", "topic")
    store.apply(batch(1))
    before = contents(store)
    fill_disk(disk / "ballast")

    for _ in range(3):
        with pytest.raises(StoreFull, match=r"no room for the store at .*application.state.*\d+ bytes free") as full:
            store.apply(batch(2, row_bytes=10_000))
        assert full.value.facts["path"].startswith(str(disk))
        assert contents(store) == before

    (disk / "ballast").unlink()
    store.apply(batch(2, row_bytes=10_000))
    assert contents(store)[0] == position(2)
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


def test_a_store_cannot_be_made_on_a_full_disk_and_can_when_room_is_made(disk: Path) -> None:
    engine = LmdbEngine(StoreLimits(disk / "stores", LIMIT_BYTES))
    fill_disk(disk / "ballast")
    with pytest.raises(StoreFull, match="no room for the store at"):
        engine.open("application", "state", "topic")
    (disk / "ballast").unlink()
    store = engine.open("application", "state", "topic")
    store.apply(batch(1))
    assert contents(store)[0] == position(1)
    engine.close()


def test_a_store_is_opened_and_read_on_a_full_disk(disk: Path) -> None:
    limits = StoreLimits(disk / "stores", LIMIT_BYTES)
    engine = LmdbEngine(limits)
    engine.open("application", "state", "topic").apply(batch(1))
    engine.close()
    fill_disk(disk / "ballast")
    assert open_filled(limits) == (position(1), expected_entries(1))

"""LMDB stores that other processes read while one writes them: real processes, some of them killed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from keyhole.errors import InternalError, NotReady, StoreFull
from keyhole.stores.base import StoreFiles, StoreLimits, commit_of, shared_store
from keyhole.stores.lmdb.engine import LmdbEngine, LmdbReader, LmdbStore
from keyhole.stores.memory import MemoryEngine
from tests.support.store_files import batch, contents, expected_entries
from tests.support.waiting import LONG_SECONDS

LIMIT_BYTES = 1 << 30
ROW_BYTES, ROWS = 2_000, 500


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    engine = LmdbEngine(StoreLimits(tmp_path / "stores", LIMIT_BYTES))
    yield engine.open("application", "state", "topic")
    engine.close()


def _read(files: StoreFiles, asked: Connection) -> None:
    """Takes a view when it is asked for one, and tells of the one that it holds."""
    reader = LmdbReader(files)
    snapshot = reader.snapshot()
    while True:
        match asked.recv():
            case "view":
                snapshot.close()
                snapshot = reader.snapshot()
                asked.send(snapshot.commit)
            case "entries":
                asked.send((snapshot.positions(), dict(snapshot.items(1))))
            case _:
                reader.close()
                return


@contextmanager
def reading(files: StoreFiles) -> Iterator[tuple[Connection, SpawnProcess]]:
    spawn = multiprocessing.get_context("spawn")
    asks, asked = spawn.Pipe()
    process = spawn.Process(target=_read, args=(files, asked))
    process.start()
    asked.close()
    try:
        yield asks, process
    finally:
        process.kill()
        process.join(LONG_SECONDS)
        asks.close()


def answer_of(asks: Connection, what: str) -> Any:
    asks.send(what)
    assert asks.poll(LONG_SECONDS)
    return asks.recv()


def test_another_process_sees_the_commits_by_the_numbers_that_the_writer_gives_them(store: LmdbStore) -> None:
    store.apply(batch(1))
    with reading(store.files) as (asks, _):
        for epoch in (2, 3, 4):
            snapshot = store.snapshot()
            assert answer_of(asks, "view") == commit_of(snapshot)
            snapshot.close()
            before = contents(store)
            store.apply(batch(epoch))
            # Its view is as old as it was, whatever is written.
            positions, entries = answer_of(asks, "entries")
            assert (positions[1], entries) == before
            assert entries == expected_entries(epoch - 1)
        held = store.snapshot()
        store.drop_key_group(1)
        assert answer_of(asks, "view") == held.commit + 1
        held.close()


def test_what_a_killed_reader_held_is_given_up_once_it_is_looked_for(store: LmdbStore) -> None:
    def grown(epochs: range) -> int:
        before = store.files.path.joinpath("data.mdb").stat().st_size
        for epoch in epochs:
            store.apply(batch(epoch, ROW_BYTES, ROWS))
        return store.files.path.joinpath("data.mdb").stat().st_size - before

    grown(range(1, 8))
    with reading(store.files) as (asks, process):
        answer_of(asks, "view")
        assert store.forget_ended_readers() == 0  # it lives
        process.kill()
        process.join(LONG_SECONDS)
        # What is written now finds no page free: the view of the killed one might still need them.
        pinned = grown(range(8, 16))
        assert pinned > 8 * ROWS * ROW_BYTES / 2
        assert store.forget_ended_readers() == 1
        assert store.forget_ended_readers() == 0
        assert grown(range(16, 24)) == 0


def test_the_writer_opens_its_store_again_beside_a_reader(tmp_path: Path) -> None:
    limits = StoreLimits(tmp_path / "stores", LIMIT_BYTES)
    engine = LmdbEngine(limits)
    first = engine.open("application", "state", "topic")
    first.apply(batch(1))
    with reading(first.files) as (asks, _):
        answer_of(asks, "view")
        engine.close()
        again = LmdbEngine(limits)
        store = again.open("application", "state", "topic")
        store.apply(batch(2))
        snapshot = store.snapshot()
        assert answer_of(asks, "view") == snapshot.commit
        snapshot.close()
        # Made anew, it has other files; the reader keeps those that it has open.
        store.close()
        again.destroy("application", "state")
        again.open("application", "state", "another topic").apply(batch(1))
        _, entries = answer_of(asks, "entries")
        assert entries == expected_entries(2)
        again.close()


def test_a_reader_makes_nothing_and_says_that_there_is_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(NotReady, match=r"can't be read.*ask its owner"):
            LmdbReader(StoreFiles(path, LIMIT_BYTES))
    assert list(tmp_path.iterdir()) == []


def test_a_reader_says_of_a_store_that_cant_be_read_why_not_and_not_that_it_comes_later(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "damaged", LIMIT_BYTES)
    files.path.mkdir()
    for name in ("data.mdb", "lock.mdb"):
        (files.path / name).write_bytes(b"no store" * 1024)
    with pytest.raises(InternalError, match=r"damaged can't be read or written .*not an LMDB file"):
        LmdbReader(files)
    engine = LmdbEngine(StoreLimits(tmp_path / "stores", LIMIT_BYTES))
    path = engine.open("application", "state", "topic").files.path
    engine.close()
    with pytest.raises(StoreFull, match="no address space"):
        LmdbReader(StoreFiles(path, 1 << 60))


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    engine = LmdbEngine(StoreLimits(tmp_path / "stores", LIMIT_BYTES))
    store = engine.open("application", "state", "topic")
    store.apply(batch(1))
    files = store.files
    engine.close()
    reader = LmdbReader(files)
    snapshot = reader.snapshot()
    reader.close()
    for use in (lambda: snapshot.get_many([b"a"]), reader.snapshot):
        with pytest.raises(NotReady, match="was closed"):
            use()
    assert store.forget_ended_readers() == 0


def test_what_can_t_be_shared_says_so() -> None:
    store = MemoryEngine().open("application", "state", "topic")
    assert shared_store(store) is None
    assert commit_of(store.snapshot()) is None

"""What all stores on disk do alike: one process each, killed processes, full disks, lowered limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from keyhole.errors import StoreFull, StoreLocked
from keyhole.stores.base import Advance, Batch, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from tests.support.disks import fill_disk, small_disk
from tests.support.store_files import (
    MakeEngine,
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


@dataclass(frozen=True)
class Kind:
    """`small`: for a disk of so many MiB. `name`: of its class, which is in the module keyhole.stores.NAME."""

    engine: MakeEngine
    module: str
    name: str
    small: MakeEngine
    disk_mebibytes: int


KINDS = {
    "lmdb": Kind(LmdbEngine, "keyhole.stores.lmdb.engine", "LmdbEngine", LmdbEngine, 2),
    "rocksdb": Kind(RocksdbEngine, "keyhole.stores.rocksdb.engine", "RocksdbEngine", small_rocksdb, 8),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def limits(tmp_path: Path) -> StoreLimits:
    return StoreLimits(tmp_path / "stores", LIMIT_BYTES)


@pytest.fixture
def disk(kind: Kind, tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", kind.disk_mebibytes) as path:
        yield path


def test_an_undamaged_store_is_opened_without_a_warning(
    kind: Kind, limits: StoreLimits, caplog: pytest.LogCaptureFixture
) -> None:
    fill(kind.engine, limits)
    assert opened(kind.engine, limits) == (position(3), expected_entries(3))
    assert caplog.records == []


# --- one process ---


def test_a_second_engine_is_refused_with_the_holder_until_the_first_is_closed(kind: Kind, limits: StoreLimits) -> None:
    first = kind.engine(limits)
    with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()} on"):
        kind.engine(limits)
    first.close()
    first.close()
    kind.engine(limits).close()


def test_another_process_is_refused(kind: Kind, limits: StoreLimits) -> None:
    engine = kind.engine(limits)
    code = (
        "import sys, pathlib\n"
        "from keyhole.errors import StoreLocked\n"
        "from keyhole.stores.base import StoreLimits\n"
        f"from {kind.module} import {kind.name} as Engine\n"
        "try: Engine(StoreLimits(pathlib.Path(sys.argv[1])))\n"
        "except StoreLocked as error: print(error.facts['holder'])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(limits.directory)], capture_output=True, text=True, check=True, timeout=60
    )
    assert f"process {os.getpid()} on" in found.stdout
    engine.close()


def test_a_killed_process_loses_nothing_that_was_committed(kind: Kind, limits: StoreLimits) -> None:
    kill_while_it_applies(kind.engine, limits, milliseconds=(1, 7, 20))


# --- room ---


def test_a_store_beyond_a_lowered_limit_can_be_read_and_shrunk(kind: Kind, limits: StoreLimits) -> None:
    fill(kind.engine, limits)
    engine = kind.engine(StoreLimits(limits.directory, 1000))
    store = engine.open("application", "state", "topic")
    entries = contents(store)[1]
    assert len(entries) > 0
    with pytest.raises(StoreFull, match="KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES"):
        store.apply(batch(4, row_bytes=100_000))
    store.apply(Batch([], sorted(entries), {1: Advance(position(3), position(4))}))
    assert contents(store) == (position(4), {})
    engine.close()


def test_a_full_disk_is_told_with_its_path_loses_nothing_and_ends_when_room_is_made(kind: Kind, disk: Path) -> None:
    engine = kind.small(StoreLimits(disk / "stores", LIMIT_BYTES))
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


def test_a_store_cannot_be_made_on_a_full_disk_and_can_when_room_is_made(kind: Kind, disk: Path) -> None:
    engine = kind.small(StoreLimits(disk / "stores", LIMIT_BYTES))
    fill_disk(disk / "ballast")
    with pytest.raises(StoreFull, match="no room for the store at"):
        engine.open("application", "state", "topic")
    (disk / "ballast").unlink()
    store = engine.open("application", "state", "topic")
    store.apply(batch(1))
    assert contents(store)[0] == position(1)
    engine.close()

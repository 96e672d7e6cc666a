"""SQL over savepoints: of states of every kind, with nothing that runs, and with the refusals of live states."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fsspec.implementations.local import LocalFileSystem

from keyhole.cli.main import main
from keyhole.errors import (
    DeadlineExceeded,
    InvalidConfiguration,
    KeyholeError,
    MalformedRequest,
    SavepointDamaged,
    SavepointMismatch,
    TooLarge,
    UnknownApplication,
    UnknownState,
)
from keyhole.model.predicates import field
from keyhole.model.state import StateKind
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder, check_file, copy_file
from keyhole.savepoint.listing import load
from keyhole.savepoint.row_files import read_rows
from keyhole.sql import entry_dataset, queries, query_savepoint
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from tests.support import every_kind
from tests.support.applications import Application
from tests.support.every_kind import MAIN, STATES, write_application
from tests.support.states import descriptor, row
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Epoch 4 of an application with a state of every kind."""
    folder, changelog = tmp_path_factory.mktemp("saved"), MemoryChangelog(MemoryKafka(), "shop")
    write_application(changelog, "shop", folder / "checkpoint")
    create("shop", changelog, Folder(str(folder / "one")), {MAIN: Folder(str(folder / "checkpoint"))}, ManualClock())
    return str(folder / "one")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a query over a savepoint connects to nothing")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def _expected(name: str) -> set[tuple[Any, ...]]:
    """The rows of epoch 4 as `select *` has them: of each state but its first key."""
    found = set()
    first = next(iter(every_kind.entries(name, 4)))
    places: dict[Any, int] = {}
    for number, key in enumerate(key for key in every_kind.entries(name, 4)):
        place = places[key[0]] = places.get(key[0], -1) + 1
        if key == first:
            continue
        of_key = len(places) - 1
        value = 400.0 + 10 * of_key + place
        more = () if name != "evolved" else (4,) if number % 2 else (None,)
        found.add((*key, value, *more))
    return found


@pytest.mark.usefixtures("no_network")
def test_states_of_every_kind_are_what_was_saved(saved: str) -> None:
    assert {of.kind for of in STATES.values()} == set(StateKind)
    for name in STATES:
        result = query_savepoint(saved, f"select * from 'shop/{name}'")
        assert set(result) == _expected(name), name
        assert len(result) == len(_expected(name))
    # The application need not be named, and states are joined.
    (counts,) = query_savepoint(saved, "select count(*), sum(s.n) from sums s join 'shop/values' v using (k)")
    assert counts == (5, sum(value for _, value in _expected("sums")))
    big = "select * from maps where hour > '2026-11-21 10:30:00+00'"
    with_cte = f"with big as ({big}) select count(*), min(place) from big"
    assert list(query_savepoint(saved, with_cte, application="shop")) == [(6, "c")]


@pytest.mark.usefixtures("no_network")
def test_columns_and_comparisons_are_pushed_down_to_the_files(saved: str) -> None:
    result = query_savepoint(saved, "select n from maps where k > 'key-2' and place = 'c'", explain=True)
    (scan,) = result.scans
    assert (scan.state, scan.epoch, set(scan.columns)) == ("shop/maps", 4, {"n"})
    assert scan.where == (field("k") > "key-2") & (field("place") == "c")
    assert scan.entries == len(result) == 3
    assert "Scan" in result.plan or "SCAN" in result.plan


@pytest.mark.parametrize(
    ("query", "kind", "why"),
    [
        ("selec", MalformedRequest, "syntax error"),
        ("drop table sums", MalformedRequest, "one SELECT"),
        ("copy (select 1) to 'x.csv'", MalformedRequest, "one SELECT"),
        ("select * from nothing", MalformedRequest, "nothing"),
        ("select * from 'shop/nothing'", UnknownState, "has no state shop/nothing; it has aggregates, evolved"),
        ("select * from 'other/sums'", UnknownApplication, "is of application shop, and not of other"),
        ("select * from read_csv('/etc/passwd')", MalformedRequest, "file system operations are disabled"),
        ("select * from read_text('/etc/passwd')", MalformedRequest, "disabled"),
        ("select * from '/etc/passwd'", InvalidConfiguration, "names no state"),
    ],
)
def test_what_a_query_can_not_do_is_refused(saved: str, query: str, kind: type[KeyholeError], why: str) -> None:
    with pytest.raises(kind, match=why):
        query_savepoint(saved, query)


def test_a_query_that_takes_too_long_or_too_much_is_ended(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "select count(*) from range(1000000) a, range(1000000) b where a.range * b.range = 7"
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.3 s"):
        query_savepoint(saved, endless, timeout=0.3)
    with pytest.raises(TooLarge, match="more memory"):
        query_savepoint(saved, "select a.n from sums a, range(100000000) order by random()", memory="50MB")
    # Also one whose files take the time, of which nothing passes.
    monkeypatch.setattr(entry_dataset.QueryReading, "left", lambda _: -1.0)
    with pytest.raises(DeadlineExceeded):
        query_savepoint(saved, "select * from sums where n < 0")


def test_a_statement_that_begins_just_behind_the_deadline_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB forgets, as a statement begins, that its connection was interrupted."""
    interrupts = threading.Semaphore(0)

    class Connection:
        def interrupt(self) -> None:
            interrupts.release()

    def fetched(*_: object) -> Any:
        for _first_is_forgotten in range(2):
            assert interrupts.acquire(timeout=PATIENCE_SECONDS)
        raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")

    monkeypatch.setattr(queries, "_fetched", fetched)
    connection: Any = Connection()
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.01 s"):
        queries._ran(connection, "select 1", entry_dataset.QueryReading(0.01), explain=False)


def test_what_is_no_savepoint_or_is_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SavepointMismatch, match="there is no savepoint at"):
        query_savepoint(str(tmp_path / "nothing"), "select 1")
    made, target = Application(), Folder(str(tmp_path / "one"))
    made.run(3, {f"key-{number}": float(number) for number in range(1000)})
    savepoint = create("app", made.changelog, target, {}, ManualClock())
    assert list(query_savepoint(target.path, "select count(*), sum(n) from counts")) == [(1000, 499_500.0)]
    (file,) = savepoint.states[0].files
    path = tmp_path / "one" / file.path
    sound = path.read_bytes()
    # Behind the rows: which can be read, and nobody would notice.
    path.write_bytes(sound + b"\0")
    with pytest.raises(SavepointDamaged, match="another checksum"):
        query_savepoint(target.path, "select count(*) from counts")
    for damaged in (sound[: len(sound) // 2], b"nothing", sound + b"\0"):
        path.write_bytes(damaged)
        for query in ("select count(*) from counts", "select * from counts"):
            with pytest.raises(SavepointDamaged):
                query_savepoint(target.path, query)
    path.unlink()
    with pytest.raises(SavepointDamaged, match="is missing"):
        query_savepoint(target.path, "select count(*) from counts")
    assert list(query_savepoint(target.path, "select 1")) == [(1,)]


@pytest.mark.parametrize("good_bytes", [None, 0, 1000])
def test_a_disk_or_a_store_that_does_not_answer_is_told_as_that_and_not_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_bytes: int | None
) -> None:
    made, target = Application(), Folder(str(tmp_path / "one"))
    made.run(3, {f"key-{number}": float(number) for number in range(1000)})
    (file,) = create("app", made.changelog, target, {}, ManualClock()).states[0].files
    opened = LocalFileSystem.open

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if not size or size < 0 or self.tell() + size > (good_bytes or 0):
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    def failing(self: LocalFileSystem, path: str, mode: str = "rb", **options: Any) -> Any:
        if not path.endswith(file.path) or mode != "rb":
            return opened(self, path, mode, **options)
        if good_bytes is None:
            raise PermissionError(errno.EACCES, "Permission denied")
        return Failing(Path(path).read_bytes())

    monkeypatch.setattr(LocalFileSystem, "open", failing)
    calls: tuple[Callable[[], object], ...] = (
        lambda: list(read_rows(target, [file])),
        lambda: list(read_rows(target, [file], checksums=True)),
        lambda: check_file(target, file),
        lambda: copy_file(target, file.path, Folder(str(tmp_path / "two")), "copy"),
        lambda: query_savepoint(target.path, "select count(*) from counts"),
    )
    for call in calls:
        with pytest.raises(InvalidConfiguration, match=f"at {file.path}: .*is no damage of the file: try again"):
            call()


def test_what_had_expired_when_it_was_taken_is_not_shown(tmp_path: Path) -> None:
    made, target = Application(of=descriptor(ttl_ms=1000)), Folder(str(tmp_path / "one"))
    clock = ManualClock()
    rows = {
        key: (clock.now_ms() + lives).to_bytes(8, "big") + row(1.0)
        for key, lives in (("gone", -1), ("lives", 1), ("late", 2_000))
    }
    made.commit_rows(3, {made.codec.storage_key(key): stored for key, stored in rows.items()})
    made.complete(3)
    create("app", made.changelog, target, {}, clock)
    assert load(target).created_ms == clock.now_ms()
    assert list(query_savepoint(target.path, "select k from counts order by k")) == [("late",), ("lives",)]


def test_the_command_prints_rows_or_what_was_read(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select count(*) n from sums where k > 'key-3'"
    assert main(["sql", "--savepoint", saved, query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 2}]
    assert main(["sql", "--savepoint", saved, query, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "shop/sums, epoch 4: 2 entries" in shown
    assert "read where    k > 'key-3'" in shown
    assert main(["sql", "--savepoint", saved + "-not", query]) == 1
    assert "there is no savepoint at" in capsys.readouterr().err


def test_what_is_missing_is_told_by_its_extras(
    saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fsspec" else find(name))
    with pytest.raises(InvalidConfiguration, match=r"needs fsspec: install keyhole-spark\[sql,savepoint\]"):
        query_savepoint(saved, "select 1")
    assert main(["sql", "--savepoint", saved, "select 1"]) == 1
    assert "keyhole sql --savepoint needs fsspec: install keyhole-spark[cli,sql,savepoint]" in capsys.readouterr().err

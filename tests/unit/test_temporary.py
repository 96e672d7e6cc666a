"""A temporary directory is removed though its process was killed, and never that of a process that lives."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keyhole.temporary import remove_abandoned, temporary_directory

HOLDS = """
import sys
from keyhole.temporary import temporary_directory
with temporary_directory() as directory:
    (directory / "kafka" / "data").mkdir(parents=True)
    (directory / "kafka" / "data" / "log").write_text("much")
    (directory / "job.log").write_text("more")
    (directory / "elsewhere").symlink_to(sys.argv[1])
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "base"
    base.mkdir()
    monkeypatch.setenv("TMPDIR", str(base))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return base


@contextmanager
def holding(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a directory, which has a link to `tmp_path / "precious"`."""
    (tmp_path / "precious").mkdir(exist_ok=True)
    (tmp_path / "precious" / "file").write_text("kept")
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "precious")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_it_is_gone_at_the_end(base: Path) -> None:
    with temporary_directory() as directory:
        assert directory.parent == base
        (directory / "some" / "folder").mkdir(parents=True)
    assert list(base.iterdir()) == []


def test_it_is_gone_after_an_error_too(base: Path) -> None:
    with pytest.raises(ZeroDivisionError), temporary_directory():
        raise ZeroDivisionError
    assert list(base.iterdir()) == []


def test_of_a_killed_process_it_is_removed_by_the_next_one_and_nothing_that_it_links_to(
    base: Path, tmp_path: Path
) -> None:
    with holding(tmp_path) as (process, abandoned):
        with temporary_directory():
            assert (abandoned / "kafka" / "data" / "log").read_text() == "much", "its process lives"
        process.kill()
        process.wait()
        assert abandoned.exists()
        with temporary_directory() as directory:
            assert list(base.iterdir()) == [directory]
    assert (tmp_path / "precious" / "file").read_text() == "kept"


def test_what_is_only_called_like_it_is_let_be(base: Path) -> None:
    (base / "keyhole-savepoint").mkdir()
    (base / "keyhole-savepoint" / "rows").write_text("precious")
    (base / "other" / "x").mkdir(parents=True)
    (base / "other" / ".in-use").write_text("")
    (base / "keyhole-link").symlink_to(base / "other")
    remove_abandoned(base)
    assert sorted(path.name for path in base.iterdir()) == ["keyhole-link", "keyhole-savepoint", "other"]
    assert (base / "other" / "x").is_dir()
    assert (base / "keyhole-savepoint" / "rows").exists()


def test_what_can_not_be_removed_now_is_removed_later(base: Path, tmp_path: Path) -> None:
    with holding(tmp_path) as (process, abandoned):
        process.kill()
        process.wait()
    (abandoned / "kafka").chmod(0o500)  # nothing in it can go
    (abandoned / "kafka" / "data").chmod(0o500)
    remove_abandoned(base)
    if abandoned.exists():  # whoever may do everything could remove it
        assert (abandoned / "kafka" / "data" / "log").exists()
        (abandoned / "kafka").chmod(0o700)
        (abandoned / "kafka" / "data").chmod(0o700)
        remove_abandoned(base)
    assert list(base.iterdir()) == []


def test_where_a_file_system_has_no_locks_it_is_made_and_goes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with temporary_directory(tmp_path, "fetching-") as directory:
        (directory / "half").write_text("of it")
        with temporary_directory(tmp_path, "fetching-"):
            assert (directory / "half").exists()
    assert list(tmp_path.iterdir()) == []


_USED_BY = {
    "keyhole-spark-": """
from keyhole.spark import session
session.start_session = lambda *_: None
session._started("shop", {}, cores=1, partitions=1)
""",
    "keyhole-scratch-": """
from keyhole.stores.replayed import scratch_stores
import atexit
stores = scratch_stores()
stores.__enter__()
atexit.register(stores.__exit__, None, None, None)
""",
}


@pytest.mark.parametrize("prefix", _USED_BY)
def test_what_a_killed_job_or_savepoint_leaves_goes_with_the_next_one(base: Path, prefix: str) -> None:
    """A job's shuffle files and state, or as much as a whole state."""
    program = f"import sys\n{_USED_BY[prefix]}\nprint('there', flush=True)\nsys.stdin.read()\n"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.kill()
    assert [path.name.startswith(prefix) for path in base.iterdir()] == [True]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, capture_output=True)
    assert list(base.iterdir()) == []

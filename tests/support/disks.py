"""Small file systems in memory, for what happens on a disk that is full."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

# Waits for its standard input to end, which it does with the process that holds the other side, however that ends: a
# mount that stayed behind would keep pytest from removing the directory, now or in a later run. Lazily: a test that
# failed may have left files open.
_UNMOUNTS = 'cat >/dev/null; exec umount --lazy "$1"'


class NoDiskError(Exception):
    """Nobody may mount a file system on this machine; the message says why."""


@contextmanager
def mounted(path: Path, size_bytes: int) -> Iterator[None]:
    """A file system of that size at the directory `path`, as long as the context and this process last.

    Raises:
        NoDiskError: None can be had here.
    """
    mount = shutil.which("mount")
    if mount is None:
        raise NoDiskError("no `mount` on this machine: a full disk can't be had")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size_bytes}", "keyhole-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if made.returncode:
        raise NoDiskError(f"a tmpfs can't be mounted here (a full disk needs root): {made.stderr.strip()}")
    # A session of its own: what ends this process's group leaves it alone.
    with subprocess.Popen(
        ["sh", "-c", _UNMOUNTS, "sh", str(path)], stdin=subprocess.PIPE, start_new_session=True
    ) as guard:
        yield
    assert guard.returncode == 0, f"{path} is still mounted"


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path]:
    """As `mounted`, at `path`, which is made. Skips the test where none can be had."""
    path.mkdir()
    with ExitStack() as ending:
        try:
            ending.enter_context(mounted(path, mebibytes << 20))
        except NoDiskError as error:
            pytest.skip(str(error))
        yield path


def fill_disk(path: Path) -> None:
    """Writes to the file `path` until nothing more fits."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass

"""A temporary directory that goes even where its process is killed: the next one like it removes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "keyhole-"
# Held by the process that the directory belongs to, for as long as it lives.
_LOCK = ".in-use"


@contextmanager
def temporary_directory(base: Path | None = None, prefix: str = _PREFIX) -> Iterator[Path]:
    """A new one; gone at the end, with all in it. First, those of dead processes are removed.

    Args:
        base: Where it is made, and others are looked for; None: in the system's.
        prefix: What its name begins with, and that of the others.
    """
    base = base or Path(tempfile.gettempdir())
    remove_abandoned(base, prefix)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    # Nobody sees a lock that is not held: it gets its name afterwards.
    unnamed = directory / f"{_LOCK}.new"
    with unnamed.open("w") as lock:
        # On a file system without locks it stays unnamed, and nobody takes the directory for abandoned.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(directory / _LOCK)
        try:
            yield directory
        finally:
            _remove(directory)


def remove_abandoned(base: Path, prefix: str = _PREFIX) -> None:
    """Removes what this user's processes have left in the folder, and left as those that were killed do. Idempotent.

    Those of processes that live are let be, and so is whatever else is called like them.
    """
    for lock in base.glob(f"{prefix}*/{_LOCK}"):
        directory = lock.parent
        with contextlib.suppress(OSError):  # gone by now, not ours to open, or held
            if directory.is_symlink() or lock.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with lock.open() as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(directory)


def _remove(directory: Path) -> None:
    """Errors are for nobody: what could still write there is being killed. The lock stays until all else is gone, so
    that what is left is found again."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.name == _LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    with contextlib.suppress(OSError):
        if {path.name for path in directory.iterdir()} <= {_LOCK}:
            (directory / _LOCK).unlink(missing_ok=True)
            directory.rmdir()

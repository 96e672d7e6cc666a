"""RocksDB's errors as Keyhole's. rocksdict raises bare `Exception`s, which only differ by the text of RocksDB's
status.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keyhole.errors import InternalError, KeyholeError, StoreFull, StoreLocked
from keyhole.stores.disk.store_directory import disk_error

_ABSENT = "key not found"
_STALLED = "Result incomplete"
_LOCKED = "lock hold by current process"
# A log that could not be written takes nothing more until RocksDB has made a new one.
_LOG_BROKEN = "Writer has previous error"
_DAMAGED = ("Corruption", "Invalid argument", "Not implemented", "NotFound")
_OF_THE_MACHINE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
)


def says_absent(error: Exception) -> bool:
    """Whether a snapshot says with it that it doesn't have the key."""
    return str(error) == _ABSENT


def says_stalled(error: Exception) -> bool:
    """Whether a write was refused because it would have had to wait."""
    return str(error).startswith(_STALLED)


def says_damaged(error: Exception) -> bool:
    """Whether a database can't be opened because of what is in its files, or because some are missing."""
    text = str(error)
    return _of_the_machine(error) is None and (text.startswith(_DAMAGED) or os.strerror(errno.ENOENT) in text)


def error_of(error: Exception, path: Path) -> KeyholeError:
    """What an error of rocksdict's means to the operator."""
    if isinstance(error, KeyholeError):
        return error
    machine = _of_the_machine(error)
    if machine is not None:
        return disk_error(machine, path)
    text = str(error)
    if _LOCKED in text:
        return StoreLocked(f"the store at {path} is still open in this process; close it first", path=path)
    if _LOG_BROKEN in text:
        return StoreFull(
            f"the disk failed while the store at {path} was written; see the system's log, then restart the server",
            path=path,
        )
    return InternalError(
        f"the store at {path} can't be read or written ({text}); stop the server and delete that directory: it "
        "is only a cache, and is rebuilt from the changelog",
        path=path,
    )


@contextmanager
def errors_translated(path: Path) -> Iterator[None]:
    """Raises RocksDB's and the operating system's errors as what they mean to the operator.

    Raises:
        StoreFull: No room on the disk, or the disk fails.
        InvalidConfiguration: The directory can't be used.
        InternalError: The files are damaged, or anything else.
    """
    try:
        yield
    except Exception as error:  # rocksdict raises nothing narrower
        raise error_of(error, path) from error


def _of_the_machine(error: Exception) -> OSError | None:
    if isinstance(error, OSError):
        return error
    code = next((code for code in _OF_THE_MACHINE if os.strerror(code) in str(error)), None)
    return None if code is None else OSError(code, os.strerror(code))

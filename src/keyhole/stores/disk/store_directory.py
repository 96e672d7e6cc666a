"""The directory that stores on disk live in: whose it is, and which file belongs to which state.

<directory>/FORMAT     "keyhole <engine> <format version>": this directory is ours, and in this format
<directory>/LOCK       locked while a process uses the directory; names that process
<directory>/<name>/    one state's store, in the engine's own files
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
from pathlib import Path
from typing import IO

from keyhole.errors import InvalidConfiguration, KeyholeError, StoreFormat, StoreFull, StoreLocked

_FORMAT, _NEW_FORMAT, _LOCK = "FORMAT", "FORMAT.new", "LOCK"
# What may be there before we are: file systems put lost+found into the root of a new volume.
_NOT_FOREIGN = frozenset({_NEW_FORMAT, _LOCK, "lost+found"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_READABLE_CHARACTERS = 60
_HASH_CHARACTERS = 20


def directory_name(application: str, state: str) -> str:
    """A file name for any pair of strings: readable, at most 143 bytes, of `a-z 0-9 _ - .` only, one to one.

    The hash (80 bits of SHA-256 over both names) makes it one to one, also on file systems to which upper and lower
    case are the same; the rest is for the reader.
    """
    readable = [re.sub("[^a-z0-9_-]", "_", name.lower())[:_READABLE_CHARACTERS] for name in (application, state)]
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    identity = f"{len(application)} {application}{state}".encode("utf-8", "surrogatepass")
    return f"{'.'.join(readable)}.{hashlib.sha256(identity).hexdigest()[:_HASH_CHARACTERS]}"


def disk_error(error: OSError, path: Path) -> KeyholeError:
    """What an operating system's error on a store's file means to the operator."""
    if error.errno in _FULL:
        return StoreFull(
            f"no room for the store at {path}: {error.strerror} ({free_bytes(path)} bytes free); free some, or move "
            "the store directory (KEYHOLE_STATE_SERVER_DIRECTORY). What was committed is unharmed",
            path=path,
            free_bytes=free_bytes(path),
        )
    return InvalidConfiguration(
        f"the store directory can't be used: {path}: {error.strerror}; give the server another one "
        "(KEYHOLE_STATE_SERVER_DIRECTORY), or the right to write there",
        path=path,
    )


def at_limit(path: Path, limit_bytes: int) -> StoreFull:
    """The live rows take as much as a state may take."""
    return StoreFull(
        f"the store at {path} has reached its limit of {limit_bytes} bytes; restart the server with a higher "
        "KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES (or limit_bytes in KEYHOLE_STATE_SERVER_STORES), or with more servers. "
        "Nothing was changed",
        path=path,
        limit_bytes=limit_bytes,
    )


def free_bytes(path: Path) -> int:
    """The bytes that are free on the path's file system, for this user; 0 where that isn't known."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


class StoreDirectory:
    """A store directory that is ours, and this process's alone until `close`. One thread.

    Args:
        path: Made if absent.
        engine: The kind of stores in it.
        version: The format version of their files.

    Raises:
        StoreFormat: It holds something else: other files, another engine, another version. Nothing was touched.
        StoreLocked: Another process, or another engine of this one, uses it.
        StoreFull: No room.
        InvalidConfiguration: It can't be made, or not be written to.
    """

    def __init__(self, path: Path, engine: str, version: int) -> None:
        self.path = path
        self._mark = f"keyhole {engine} {version}\n"
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._is_new()  # before a lock file is written into a directory that isn't ours
            self._lock: IO[str] | None = self._take_lock()
            try:
                if self._is_new():
                    self._write_format()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise disk_error(error, path) from error

    def state_path(self, application: str, state: str) -> Path:
        """Where the store of a state is, or is to be."""
        return self.path / directory_name(application, state)

    def remove(self, application: str, state: str) -> None:
        """Removes the store of a state, which must be closed. An unknown one is no error."""
        path = self.state_path(application, state)
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error(error, path) from error

    def close(self) -> None:
        """Lets others use the directory. Idempotent."""
        if self._lock is not None:
            # The file stays: removing it would let two others lock two files of that name.
            self._lock.close()
            self._lock = None

    def _is_new(self) -> bool:
        """Whether the directory has no mark yet. Raises StoreFormat where it is not ours."""
        try:
            mark = (self.path / _FORMAT).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            foreign = sorted({entry.name for entry in self.path.iterdir()} - _NOT_FOREIGN)
            if foreign:
                raise StoreFormat(
                    f"{self.path} is not a store directory: it holds other files; give the server an empty directory "
                    "of its own (KEYHOLE_STATE_SERVER_DIRECTORY)",
                    path=self.path,
                ) from None
            return True
        if mark != self._mark:
            raise StoreFormat(
                f"the stores in {self.path} are of format {mark.strip()[:80]!r} and this server writes "
                f"{self._mark.strip()!r}; run the version that wrote them, or delete the directory: it is only a "
                "cache, and is rebuilt from the changelog",
                path=self.path,
            )
        return False

    def _take_lock(self) -> IO[str]:
        lock = (self.path / _LOCK).open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}")
            lock.flush()
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read(200) or "another process"
            lock.close()
            raise StoreLocked(
                f"the store directory {self.path} is in use by {holder}; stop that one, or give this server its own "
                "(KEYHOLE_STATE_SERVER_DIRECTORY)",
                path=self.path,
                holder=holder,
            ) from error
        except OSError:
            lock.close()
            raise
        return lock

    def _write_format(self) -> None:
        # Renamed into place: a crash leaves a new directory, never one with half a mark.
        new = self.path / _NEW_FORMAT
        new.write_text(self._mark, encoding="utf-8")
        new.replace(self.path / _FORMAT)

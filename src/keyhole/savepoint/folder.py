"""A folder of files, on this machine's disk or wherever fsspec reaches; and files that are written with their checksum.

Names are relative, with slashes. Errors of the disk or the service come as InvalidConfiguration, with the path.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO

import fsspec
import msgspec
from fsspec.implementations.local import LocalFileSystem

from keyhole.errors import InvalidConfiguration, SavepointDamaged

_CHUNK_BYTES = 4 << 20


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a savepoint: `path` relative to it, the SHA-256 of its bytes in hexadecimal digits."""

    path: str
    bytes: int
    sha256: str
    rows: int = 0


def part_of(name: str) -> str:
    """What a file that readers see whole or not at all is called until it is whole."""
    return posixpath.join(posixpath.dirname(name), f".{posixpath.basename(name)}.part")


class FileRead(io.RawIOBase):
    """A file of a folder, open for reading, from its first byte on. What its disk or service says comes as
    InvalidConfiguration: it is nothing that is wrong with the file.
    """

    def __init__(self, file: BinaryIO, failures_named: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._failures_named = failures_named

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with self._failures_named():
            return self._file.read(size)


class Folder:
    """See the module's text. Whether it exists shows when it is used; writing makes it. One thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fs, self._root = fsspec.core.url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise InvalidConfiguration(f"no folder can be at {path}: {error}", path=path) from error

    def check_there(self) -> None:
        """Raises InvalidConfiguration where the folder doesn't exist; an object store knows none without a file."""
        with self._failures_named("listed"):
            self._fs.invalidate_cache()
            if self._fs.isdir(self._root):
                return
            what = "; it is a file" if self._fs.isfile(self._root) else ""
        raise InvalidConfiguration(
            f"there is no folder {self.path}{what}; name a savepoint, or the folder that has them", path=self.path
        )

    def files(self) -> dict[str, int]:
        """The size of every file below, by name; empty where the folder is missing."""
        with self._failures_named("listed"):
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True) if self._fs.isdir(self._root) else {}
        # In object stores Hadoop leaves an empty object for each folder: it would be copied as a file of that name.
        of_files = {path: about for path, about in found.items() if not path.endswith("/")}
        return {posixpath.relpath(path, self._root): int(about["size"] or 0) for path, about in of_files.items()}

    def folders(self) -> list[str]:
        """The names of the folders directly below."""
        with self._failures_named("listed"):
            self._fs.invalidate_cache()
            found = self._fs.ls(self._root, detail=True) if self._fs.isdir(self._root) else []
        return sorted(posixpath.basename(about["name"].rstrip("/")) for about in found if about["type"] == "directory")

    def below(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(f"{self.path.rstrip('/')}/{name}")

    def exists(self, name: str) -> bool:
        with self._failures_named("read"):
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(self._at(name)))

    @contextmanager
    def reading(self, name: str) -> Iterator[FileRead]:
        """The file, open for reading. Raises FileNotFoundError where it doesn't exist, also while it is read."""
        with self._failures_named_of(name):
            file = self._fs.open(self._at(name), "rb")
        with file:
            yield FileRead(file, lambda: self._failures_named_of(name))

    @contextmanager
    def _failures_named_of(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except _failures() as error:
            raise InvalidConfiguration(
                f"{self.path} can't be read, at {name}: {error}. That is no damage of the file: try again once its "
                "disk or object store answers, and lets this process read",
                path=self.path,
                file=name,
            ) from error

    def read(self, name: str) -> bytes:
        """The file's bytes. Raises FileNotFoundError where it doesn't exist."""
        with self.reading(name) as file:
            return file.read()

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A new file, or one in place of another; on this machine's disk it is safe there at the end."""
        with self._failures_named("written"):
            path = self._at(name)
            self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
            with self._fs.open(path, "wb") as file:
                yield file
                if isinstance(self._fs, LocalFileSystem):
                    file.flush()
                    os.fsync(file.fileno())

    def write_whole(self, name: str, data: bytes) -> None:
        """A file that readers see whole or not at all."""
        part = part_of(name)
        with self.writing(part) as file:
            file.write(data)
        with self._failures_named("written"):
            self._fs.mv(self._at(part), self._at(name))

    def remove(self, name: str) -> None:
        """A file; one that is missing is no error."""
        with self._failures_named("written"):
            if self._fs.exists(self._at(name)):
                self._fs.rm_file(self._at(name))

    def clear(self, but: str = "") -> None:
        """Removes all that is in it, except the file of this name directly in it."""
        with self._failures_named("written"):
            self._fs.invalidate_cache()
            for path in self._fs.ls(self._root, detail=False) if self._fs.isdir(self._root) else []:
                if posixpath.basename(path.rstrip("/")) != but:
                    self._fs.rm(path, recursive=True)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _failures_named(self, done: str) -> Iterator[None]:
        try:
            yield
        except _failures() as error:
            raise self._failed(done, error) from error

    def _failed(self, done: str, error: Exception) -> InvalidConfiguration:
        return InvalidConfiguration(f"{self.path} can't be {done}: {error}", path=self.path)


def _failures() -> tuple[type[Exception], ...]:
    """Of disks and services. Amazon's client, where it is used, has some that are no OSErrors: no connection, no
    credentials."""
    client: Any = sys.modules.get("botocore.exceptions")
    return (OSError,) if client is None else (OSError, client.BotoCoreError)


class HashingFile:
    """What is written to it goes on to a file, and is counted and hashed. For Arrow it looks like a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hash.update(view)
        self.bytes += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Whoever opened the file flushes it."""

    def saved(self, path: str, rows: int = 0) -> SavedFile:
        """What was written so far, as it stands in the manifest."""
        return SavedFile(path, self.bytes, self._hash.hexdigest(), rows)


def copy_file(source: Folder, name: str, target: Folder, path: str) -> SavedFile:
    """Copies the file. Raises FileNotFoundError where the source doesn't have it."""
    with source.reading(name) as file, target.writing(path) as written:
        hashing = HashingFile(written)
        while data := file.read(_CHUNK_BYTES):
            hashing.write(data)
    return hashing.saved(path)


def check_file(folder: Folder, saved: SavedFile) -> None:
    """Reads it whole.

    Raises:
        SavepointDamaged: It is missing, or other bytes than were written.
    """
    size, digest = 0, hashlib.sha256()
    try:
        with folder.reading(saved.path) as file:
            while data := file.read(_CHUNK_BYTES):
                size += len(data)
                digest.update(data)
    except FileNotFoundError:
        raise damaged(folder, saved.path, "is missing") from None
    if size != saved.bytes:
        raise damaged(folder, saved.path, f"has {size} bytes, {saved.bytes} were written")
    if digest.hexdigest() != saved.sha256:
        raise damaged(folder, saved.path, "has another checksum than when it was written")


def damaged(folder: Folder, name: str, how: str) -> SavepointDamaged:
    """The error for a file that isn't as it was."""
    return SavepointDamaged(
        f"the savepoint at {folder.path} is damaged: {name} {how}. Restore another one, or a copy of this one",
        path=folder.path,
        file=name,
    )

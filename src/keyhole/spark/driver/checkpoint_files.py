"""Small files beside a query's checkpoint: each there whole, or not at all."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

# Hadoop's name for a file that is made where there is none, and not at all where there is one.
_UNLESS_THERE = "fs.option.create.conditional.overwrite"
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"


class CheckpointFiles(Protocol):
    """The files of one folder, by name. Driver only; blocks. Raises what the file system raises."""

    def names(self) -> list[str]: ...

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes | None:
        """The file's content; None: it doesn't exist."""

    def create(self, name: str, content: bytes) -> bool:
        """Whether the file was made; False: there is one, which stays as it is."""

    def delete(self, name: str) -> None:
        """Deletes a file; one that isn't there is no error."""


def checkpoint_files(session: SparkSession, folder: str) -> CheckpointFiles:
    """The files of a folder, which is made.

    Args:
        folder: As Spark knows it: in the file system of its scheme, else in the default one.
    """
    path, scheme, in_file_system = _located(session.sparkContext, folder)
    return LocalFiles(Path(in_file_system)) if scheme == "file" else HadoopFiles(session, path)


@functools.lru_cache(maxsize=64)
def _located(context: SparkContext, folder: str) -> tuple[JavaObject, str | None, str]:
    """Hadoop's path of a folder, its scheme, and the folder by itself: each batch has the same."""
    jvm = context._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(folder)
    uri = path.toUri()
    return path, uri.getScheme(), uri.getPath()


class LocalFiles:
    """On this machine, which is also where the driver's JVM is.

    Not through Hadoop, which starts a process to set a file's mode, twice for each file that it writes (50 ms). As
    there, and so with Spark's own logs, it is left to the system when a file is on the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()]

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> bool:
        if self.has(name):
            return False
        # Of a name that no other process has, in whichever container.
        part = self._folder / f".{name}.{uuid.uuid4().hex}.part"
        try:
            part.write_bytes(content)
            # Hadoop's checksum of a file that was deleted is not this one's; without one it is read unchecked.
            self._checksum(name).unlink(missing_ok=True)
            return _named(part, self._folder / name)
        finally:
            part.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        for path in (self._folder / name, self._checksum(name)):
            path.unlink(missing_ok=True)

    def _checksum(self, name: str) -> Path:
        return self._folder / f".{name}.crc"


def _named(part: Path, path: Path) -> bool:
    """Gives what is written its name; False: that is taken, perhaps since a moment ago."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return False
    except OSError:  # not every file system has links: then as Spark does for its own logs, by looking before
        if path.exists():
            return False
        part.replace(path)
    return True


class HadoopFiles:
    """In any file system that Spark can have checkpoints in."""

    def __init__(self, session: SparkSession, folder: JavaObject) -> None:
        jvm = session._jvm
        assert jvm is not None
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        manager = jvm
        for part in _MANAGER.split("."):
            manager = getattr(manager, part)
        self._path = jvm.org.apache.hadoop.fs.Path
        self._folder = folder
        self._files = manager.create(folder, configuration)
        self._files.mkdirs(folder)
        # An object store that decides by itself, when it takes a file, whether there was one of that name.
        self._store = folder.getFileSystem(configuration)
        self._decides = bool(self._store.hasPathCapability(folder, _UNLESS_THERE))
        self._streams = jvm.org.apache.commons.io.IOUtils

    def names(self) -> list[str]:
        return [status.getPath().getName() for status in self._files.list(self._folder)]

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._of(name)))

    def read(self, name: str) -> bytes | None:
        if not self.has(name):
            return None
        with contextlib.closing(self._files.open(self._of(name))) as stream:
            return bytes(self._streams.toByteArray(stream))

    def create(self, name: str, content: bytes) -> bool:
        if self.has(name):
            return False
        if self._decides:
            return self._put(name, content)
        # What another process has made meanwhile stays as well: where the file system notices, this fails then.
        stream = self._files.createAtomic(self._of(name), False)
        _write(stream, content, stream.cancel)
        return True

    def _put(self, name: str, content: bytes) -> bool:
        try:
            stream = self._store.createFile(self._of(name)).must(_UNLESS_THERE, True).build()
            _write(stream, content, stream.abort)
        except Py4JJavaError:
            # Another's, or ours, where the store had it and its answer was lost.
            if not self.has(name):
                raise
            return False
        return True

    def delete(self, name: str) -> None:
        self._files.delete(self._of(name))

    def _of(self, name: str) -> JavaObject:
        return self._path(self._folder, name)


def _write(stream: JavaObject, content: bytes, give_up: Callable[[], object]) -> None:
    """All of it, and closes the stream; else none."""
    try:
        stream.write(bytearray(content))
        stream.close()
    except BaseException:
        give_up()
        raise

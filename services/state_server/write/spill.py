"""Room for staged rows: so much memory, and then so much disk, of a whole server.

Rows on disk are in files without names. They take their room from the directory's file system, but are not listed
there, and are gone when they are closed or when the process ends, however it ends. A server that was killed leaves
nothing to clean up.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import msgspec

from keyhole.errors import Overloaded, StageLost
from services.state_server.write.merging import EntryChange

# What is in memory of a file at a time; one row can be larger.
_BLOCK_BYTES = 1 << 20


class Spillable(Protocol):
    """Staged rows that can be moved to disk. `memory_bytes`: what that would free, about."""

    @property
    def memory_bytes(self) -> int: ...

    def spill(self) -> None:
        """Moves its rows from memory to disk. Raises Overloaded where there is no room."""


class StagingRoom:
    """What a server has for staged rows, and what is taken of it, by all queries together. Any thread.

    Args:
        memory_bytes: Beyond it, rows are moved to disk.
        disk_bytes: Beyond it, they are refused.
        directory: Where the files are made; made itself when the first one is needed.
    """

    def __init__(self, memory_bytes: int, disk_bytes: int, directory: Path) -> None:
        self._memory_limit = memory_bytes
        self._disk_limit = disk_bytes
        self._directory = directory
        self._lock = threading.Lock()
        self.memory_bytes = 0
        self.disk_bytes = 0

    def take_memory(self, bytes_: int) -> None:
        """Counts it; negative: it was freed."""
        with self._lock:
            self.memory_bytes += bytes_

    def take_disk(self, bytes_: int, *, limited: bool = True) -> None:
        """Counts it; negative: it was freed.

        Raises:
            Overloaded: There isn't so much. Not where it isn't limited.
        """
        with self._lock:
            if limited and bytes_ > 0 and self.disk_bytes + bytes_ > self._disk_limit:
                raise Overloaded(
                    f"{self.disk_bytes:,} bytes of staged rows are on this server's disk, beside those in memory, and "
                    f"{self._disk_limit:,} is the limit (KEYHOLE_STATE_SERVER_MAX_SPILLED_BYTES). Bound the epochs, "
                    "for example with maxOffsetsPerTrigger",
                    limit=self._disk_limit,
                )
            self.disk_bytes += bytes_

    def make_room(self, held: Sequence[Spillable]) -> None:
        """Moves the largest of them to disk until all fit, or none of these are left in memory.

        Raises:
            Overloaded: The disk has no room either.
        """
        while self.memory_bytes > self._memory_limit:
            largest = max(held, key=lambda item: item.memory_bytes, default=None)
            if largest is None or largest.memory_bytes == 0:
                return  # others hold it, whose own turn comes
            largest.spill()

    def file(self) -> IO[bytes]:
        """A new file. Raises Overloaded."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=self._directory, buffering=0)
        except OSError as error:
            raise self.no_room(error) from error

    def no_room(self, error: OSError) -> Overloaded:
        """What an error of the disk means to those who wait for their rows to be staged."""
        return Overloaded(
            f"staged rows beyond KEYHOLE_STATE_SERVER_MAX_STAGED_BYTES can't be written to {self._directory}: "
            f"{error.strerror}. Make room there, or bound the epochs",
            path=self._directory,
        )


class Extent(NamedTuple):
    """A run of rows in a spool."""

    offset: int
    length: int


class Spool:
    """Rows in one file, in runs. One thread at a time.

    Args:
        limited: Whether the room's limit holds for it.
    """

    def __init__(self, room: StagingRoom, *, limited: bool = True) -> None:
        self._room = room
        self._limited = limited
        self._file = room.file()
        self._end = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode

    def write(self, rows: Iterable[EntryChange]) -> list[Extent]:
        """Writes the rows behind those before. Raises Overloaded: none of them counts then, those before are
        unharmed.
        """
        return [self._write(self._encode(block)) for block in _blocks(rows)]

    def _write(self, data: bytes) -> Extent:
        self._room.take_disk(len(data), limited=self._limited)
        at, self._end = self._end, self._end + len(data)
        try:
            self._file.seek(at)
            left = memoryview(data)
            while left:  # a raw file may take less than it is given
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._room.no_room(error) from error
        return Extent(at, len(data))

    def read(self, extents: Iterable[Extent]) -> Iterator[EntryChange]:
        """The rows, in the order in which they were written.

        Raises:
            StageLost: The disk does not give them back.
        """
        for offset, length in extents:
            try:
                self._file.seek(offset)
                data = bytearray()
                while len(data) < length and (part := self._file.read(length - len(data))):
                    data += part
                rows = self._decode(data)
            except (OSError, msgspec.MsgspecError) as error:
                raise StageLost("rows that were staged here can't be read back from disk; stage them again") from error
            yield from rows

    def keep(self, rows: Iterable[EntryChange]) -> SpooledRows:
        """Writes rows, to be read as often as needed until the spool is closed."""
        extents = self.write(rows)
        return SpooledRows(self, extents)

    def for_changes(self) -> Spool:
        """Another one, for what is made of these rows to commit them. It takes at most as much again, and not for long.

        Were it limited, an epoch that has just found room could never be committed.
        """
        return Spool(self._room, limited=False)

    def close(self) -> None:
        """Closes the file, which gives its room back. Idempotent."""
        if not self._file.closed:
            self._file.close()
            self._room.take_disk(-self._end)


class ChangesRoom:
    """Where the changes of an epoch are until they are committed: in memory, or on disk where rows of it are there.

    Then memory holds the changes of one key group at a time.
    """

    def __init__(self) -> None:
        self._spool: Spool | None = None

    def make(self, spools: Iterable[Spool | None]) -> None:
        """On disk from now on, if some of these are the rows' spools. None: rows in memory."""
        if self._spool is None:
            self._spool = next((spool.for_changes() for spool in spools if spool is not None), None)

    def keep(self, changes: list[EntryChange], *, in_memory: bool) -> Iterable[EntryChange]:
        """The changes of a key group. `in_memory`: the rows are there of which they were made."""
        return changes if self._spool is None or in_memory else self._spool.keep(changes)

    def close(self) -> None:
        """The epoch is committed, or not. Idempotent."""
        if self._spool is not None:
            self._spool.close()


class SpooledRows:
    """Rows of a spool as something to iterate over, any number of times. `bytes`: about what they take in memory."""

    def __init__(self, spool: Spool, extents: Sequence[Extent]) -> None:
        self._spool = spool
        self._extents = extents
        self.bytes = sum(extent.length for extent in extents)

    def __iter__(self) -> Iterator[EntryChange]:
        return self._spool.read(self._extents)


def _blocks(rows: Iterable[EntryChange]) -> Iterator[list[EntryChange]]:
    block: list[EntryChange] = []
    size = 0
    for key, row in rows:
        block.append((key, row))
        size += len(key) + len(row or b"")
        if size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block

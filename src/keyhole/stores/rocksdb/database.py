"""One RocksDB database as a store needs it: rocksdict's calls with Keyhole's errors, which never wait for a compaction
while they hold the interpreter's lock.

One column family, in three parts by the first byte, so that one batch, one snapshot and one log hold all of it:

    "m" name           "format", "topic_id", "application", "state": the identity
    "p" key group      2 bytes, big-endian -> position
    "e" storage key    -> row
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rocksdict import Rdict, RdictIter, Snapshot, WriteBatch, WriteOptions

from keyhole.errors import StoreFull
from keyhole.stores.rocksdb.errors import error_of, errors_translated, says_absent, says_stalled

_log = logging.getLogger(__name__)

META, POSITIONS, ENTRIES = b"m", b"p", b"e"

_WORTH_A_BATCH = 8
_STALL_LOOK_SECONDS = 0.002
# Longer than compactions of a disk that works keep a writer waiting.
_STALL_SECONDS = 120.0


def end_of(kind: bytes) -> bytes:
    """The first key that is beyond all of that kind."""
    return bytes([kind[0] + 1])


@dataclass(frozen=True, slots=True)
class DatabaseView:
    """A database as of one write. Let go of it to close it. One thread at a time.

    Attributes:
        snapshot: For single keys. Its iterators don't read what it holds, but what is newest (rocksdict 0.3.29).
        cursor: For scans: an iterator of the database stays at what was there when it was made.
        sequence: The number of that write.
    """

    snapshot: Snapshot
    cursor: RdictIter
    sequence: int


class Database:
    """An open database. Made by rocksdb_opening.

    Threads: one writes and closes; any may read. Who closes it sees to it that no call is under way, and that nobody
    holds a snapshot any more: RocksDB keeps its files open as long as anything of it is in use.
    """

    def __init__(self, path: Path, rdict: Rdict) -> None:
        self.path = path
        self._rdict = rdict
        self._no_slowdown = WriteOptions()
        self._no_slowdown.no_slowdown = True

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of many keys as they are now, None where there is none. Gives the interpreter's lock up once, for
        all of them.
        """
        with errors_translated(self.path):
            return cast("list[bytes | None]", self._rdict.get(cast("list[Any]", keys)))

    def view(self) -> DatabaseView:
        """The database as it is now, unchanged by later writes. Never waits for one."""
        with errors_translated(self.path):
            while True:
                sequence = self._rdict.latest_sequence_number()
                view = DatabaseView(self._rdict.snapshot(), self._rdict.iter(), sequence)
                if self._rdict.latest_sequence_number() == sequence:
                    return view

    def get_many_of(self, view: DatabaseView, keys: list[bytes]) -> list[bytes | None]:
        """The values of many keys as of the view. As long as nothing was written since, RocksDB looks for all of them
        at once.

        Else one by one: rocksdict has no more for snapshots. That, and few keys, is the faster way where the blocks are
        in memory; but it holds the interpreter's lock where they are not.
        """
        now = self._rdict.latest_sequence_number
        try:
            if len(keys) >= _WORTH_A_BATCH and now() == view.sequence:
                rows = cast("list[bytes | None]", self._rdict.get(cast("list[Any]", keys)))
                # What was written meanwhile may have been read.
                if now() == view.sequence:
                    return rows
            return [_get(view.snapshot, key) for key in keys]
        except Exception as error:  # rocksdict raises nothing narrower
            raise error_of(error, self.path) from error

    def entries(
        self,
        view: DatabaseView,
        first: bytes,
        end: bytes,
        *,
        descending: bool = False,
        at_most: int,
        at_most_bytes: int,
    ) -> list[tuple[bytes, bytes]]:
        """The first ones from `first` (inclusive) to `end` (exclusive), or the last ones in reverse.

        Args:
            at_most: So many.
            at_most_bytes: No more once their rows take as much; at least one all the same.
        """
        found: list[tuple[bytes, bytes]] = []
        room = at_most_bytes
        cursor = view.cursor
        with errors_translated(self.path):
            step = cursor.prev if descending else cursor.next
            if descending:
                cursor.seek_for_prev(end)
                if cursor.key() == end:
                    cursor.prev()
            else:
                cursor.seek(first)
            while cursor.valid() and len(found) < at_most and room > 0:
                key = cursor.key()
                if not first <= key < end:
                    return found
                row = cursor.value()
                found.append((key, row))
                room -= len(row)
                step()
            # It is also at its end where a block can't be read.
            cursor.status()
        return found

    def count(self, view: DatabaseView, first: bytes, end: bytes, *, at_most: int) -> int:
        """How many are from `first` (inclusive) to `end` (exclusive); no more than `at_most` are counted."""
        counted = 0
        cursor = view.cursor
        with errors_translated(self.path):
            cursor.seek(first)
            while counted < at_most and cursor.valid() and cursor.key() < end:
                counted += 1
                cursor.next()
            cursor.status()
        return counted

    def sequence(self) -> int:
        """That of the last write. A read that begins and ends at the same one has read at this one."""
        with errors_translated(self.path):
            return self._rdict.latest_sequence_number()

    def write(self, fill: Callable[[WriteBatch], None]) -> None:
        """Writes one batch, all or nothing, and waits until it is on the disk.

        rocksdict holds the interpreter's lock while it writes, not while it syncs. So it may never be RocksDB that
        waits for a flush or a compaction (for seconds, and every thread with it): the wait is here.

        Args:
            fill: Puts what is to be written into the empty batch that it is given; may be called more than once.
        """
        until = time.monotonic() + _STALL_SECONDS
        while not self._written(fill):
            if time.monotonic() > until:
                raise StoreFull(
                    f"the store at {self.path} could not be written to for {_STALL_SECONDS:.0f} s: its disk is full, "
                    "fails, or is too slow for what is written; see the system's log. Nothing was changed",
                    path=self.path,
                )
            time.sleep(_STALL_LOOK_SECONDS)
        with errors_translated(self.path):
            self._rdict.flush_wal(sync=True)

    def _written(self, fill: Callable[[WriteBatch], None]) -> bool:
        """False where RocksDB would wait. A batch that is refused is lost, so it is asked before."""
        if self.number("is-write-stopped") or self.number("actual-delayed-write-rate"):
            return False
        batch = WriteBatch(raw_mode=True)
        fill(batch)
        try:
            self._rdict.write(batch, self._no_slowdown)
        except Exception as error:  # rocksdict raises nothing narrower
            if says_stalled(error):
                return False
            raise error_of(error, self.path) from error
        return True

    def compact(self) -> None:
        """Rewrites all of it without what was replaced and deleted, but for what snapshots need. Takes its time."""
        with errors_translated(self.path):
            self._rdict.flush(wait=True)
            self._rdict.compact_range(None, None)

    def taken_bytes(self) -> int:
        """The bytes that it takes in files and in memory."""
        return self.number("total-sst-files-size") + self.number("size-all-mem-tables")

    def number(self, property_name: str) -> int:
        """A property of RocksDB's, without its prefix."""
        with errors_translated(self.path):
            return self._rdict.property_int_value(f"rocksdb.{property_name}") or 0

    def close(self) -> None:
        """Closes the files. What can't be written into a file any more is in the log. Idempotent."""
        try:
            self._rdict.close()
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing narrower
            _log.warning(
                "a store was closed without writing its memory into files; its log has it",
                extra={"store_path": str(self.path), "why": str(error_of(error, self.path))},
            )


def _get(snapshot: Snapshot, key: bytes) -> bytes | None:
    try:
        return cast(bytes, snapshot[key])
    except Exception as error:  # rocksdict raises nothing narrower
        if says_absent(error):
            return None
        raise

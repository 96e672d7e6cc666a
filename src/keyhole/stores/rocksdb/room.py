"""Whether a batch still fits a RocksDB store, without looking for what it replaces."""

from __future__ import annotations

import errno
import os

from keyhole.stores.base import Batch
from keyhole.stores.disk.store_directory import at_limit, disk_error, free_bytes
from keyhole.stores.rocksdb.database import Database

# A limit may be exceeded by this part of it: a store that is nearly full is not rewritten for every batch.
_SLACK = 16


class Room:
    """What a store takes at most: what it took when that was last looked up, and all that was written since.

    Only where that reaches the limit it is looked up again, and only where the files then hold too much as well, they
    are rewritten without what was replaced and deleted. One thread.

    Args:
        limit_bytes: Of files and memory.
        reserved_bytes: What must stay free on the disk: RocksDB stops, and takes seconds to go on, where it runs out.
    """

    def __init__(self, database: Database, limit_bytes: int, reserved_bytes: int) -> None:
        self._database = database
        self._limit_bytes = limit_bytes
        self._reserved_bytes = reserved_bytes
        self._at_most = database.taken_bytes()
        self._ceiling = limit_bytes
        self._rewritten_at: tuple[int, int] | None = None

    def check(self, batch: Batch) -> None:
        """To be called before each write; `wrote` after it. A batch that only deletes always fits the limit.

        Raises:
            StoreFull: The limit is reached, or the disk is about to be full.
        """
        wanted = _bytes(batch)
        if not wanted:
            return
        if free_bytes(self._database.path) < wanted + self._reserved_bytes:
            raise disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), self._database.path)
        if self._at_most + wanted <= self._ceiling:
            return
        self._at_most = self._database.taken_bytes()
        if self._at_most + wanted <= self._limit_bytes:
            return
        self._rewrite()
        if self._at_most + wanted > self._limit_bytes:
            raise at_limit(self._database.path, self._limit_bytes)

    def wrote(self, batch: Batch) -> None:
        """The batch is in the store."""
        self._at_most += _bytes(batch)

    def _rewrite(self) -> None:
        # Nothing was written since, and the oldest snapshot is the same: the files would become what they are.
        if self._rewritten_at != self._version():
            self._database.compact()
            self._rewritten_at = self._version()
            self._at_most = self._database.taken_bytes()
            self._ceiling = max(self._limit_bytes, self._at_most + self._limit_bytes // _SLACK)

    def _version(self) -> tuple[int, int]:
        return self._database.sequence(), self._database.number("oldest-snapshot-sequence")


def _bytes(batch: Batch) -> int:
    return sum(len(key) + len(row) for key, row in batch.puts)

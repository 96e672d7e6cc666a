"""Stores in RocksDB: for states that are larger than memory and much written to.

A batch is appended to a log and kept in memory; files are written, and merged, in the background. So a write never
looks for what it replaces, which makes it cheap. It also makes the number of entries and the bytes estimates: what was
replaced or deleted counts until RocksDB has merged it away.

rocksdict holds the interpreter's lock in every call but `get` for a list of keys, syncs, flushes and compactions. A
scan, or a read of an older snapshot, of blocks that must come from the disk keeps other threads waiting as long.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rocksdict import Cache, WriteBatch

from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import InvalidConfiguration, NotReady
from keyhole.model.epoch import START, Position
from keyhole.stores import rules
from keyhole.stores.base import Batch, StoreLimits, StoreSize
from keyhole.stores.disk.engine_on_disk import EngineOnDisk
from keyhole.stores.disk.identity import Identity, decode_position, encode_position
from keyhole.stores.rocksdb.database import ENTRIES, POSITIONS, Database, DatabaseView, end_of
from keyhole.stores.rocksdb.opening import COMPRESSIONS, FORMAT_VERSION, Tuning, open_database
from keyhole.stores.rocksdb.room import Room

# Of the keys of a frame, of whose rows nothing is known: what is read of them in vain is not much, also where they are
# large.
_FIRST_PIECE_KEYS, _GROWTH = 32, 8
_FIRST_PIECE_ENTRIES = 16
_PIECE_ENTRIES = 1024
_PIECE_BYTES = 1 << 20
_MIN_CACHE_BYTES = 1 << 20
_MIN_MEMTABLE_BYTES = 1 << 20
# Up to so many entries are counted one by one when the size is asked for (about 5 ms).
_COUNTED_ENTRIES = 20_000


class _CallsUnderWay:
    """The calls that are under way on a store. Closing waits for them, and lets no others begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self.closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self.closed:
                raise NotReady("the store was closed; ask again")
            self._under_way += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._under_way -= 1
            if self.closed:
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.wait_for(lambda: self._under_way == 0)


class RocksdbSnapshot:
    """See base.Snapshot. One thread at a time, not always the same."""

    def __init__(self, calls: _CallsUnderWay, database: Database) -> None:
        self._calls = calls
        self._database = database
        self._view: DatabaseView | None = database.view()

    def get(self, storage_key: bytes) -> bytes | None:
        return self.get_many((storage_key,))[0]

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        keys = [ENTRIES + key for key in storage_keys]
        with self._calls:
            return self._database.get_many_of(self._open(), keys)

    def get_first(self, storage_keys: Sequence[bytes], most_bytes: int) -> tuple[list[bytes | None], bool]:
        keys = [ENTRIES + key for key in storage_keys]
        with self._calls:
            return rules.first_rows(self._pieces(self._open(), keys, most_bytes), most_bytes)

    def _pieces(self, view: DatabaseView, keys: list[bytes], most_bytes: int) -> Iterator[bytes | None]:
        """Many keys at once are faster, and must not be many large rows: piece by piece, as large as rows have been."""
        at, piece, largest = 0, _FIRST_PIECE_KEYS, 1
        while at < len(keys):
            rows = self._database.get_many_of(view, keys[at : at + piece])
            yield from rows
            at += piece
            largest = max(largest, *(len(row) for row in rows if row is not None), 0)
            piece = min(_GROWTH * piece, max(1, most_bytes // largest))

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        first, end = rules.bounds(key_group, start, stop)
        low, high = ENTRIES + first, end_of(ENTRIES) if end is None else ENTRIES + end
        piece = _FIRST_PIECE_ENTRIES
        # Piece by piece: a reader may hold nothing of RocksDB's between two calls, or the store could not close.
        while low < high:
            found = self._read(low, high, descending=descending, at_most=piece)
            for key, row in found:
                self._open()
                yield key[len(ENTRIES) :], row
            if not found:
                return
            low, high = (low, found[-1][0]) if descending else (found[-1][0] + b"\0", high)
            piece = min(2 * piece, _PIECE_ENTRIES)

    def positions(self) -> Mapping[int, Position]:
        found: dict[int, Position] = {}
        low = POSITIONS
        while piece := self._read(low, end_of(POSITIONS), descending=False, at_most=_PIECE_ENTRIES):
            found |= {int.from_bytes(key[len(POSITIONS) :], "big"): decode_position(value) for key, value in piece}
            low = piece[-1][0] + b"\0"
        return found

    def close(self) -> None:
        self._view = None

    def _read(self, low: bytes, high: bytes, *, descending: bool, at_most: int) -> list[tuple[bytes, bytes]]:
        with self._calls:
            return self._database.entries(
                self._open(), low, high, descending=descending, at_most=at_most, at_most_bytes=_PIECE_BYTES
            )

    def _open(self) -> DatabaseView:
        if self._view is None:
            raise NotReady("the store, or this view of it, was closed while it was used; ask again")
        return self._view


class RocksdbStore:
    """See base.Store. Made by RocksdbEngine."""

    def __init__(self, database: Database, limit_bytes: int, memtable_bytes: int) -> None:
        self._database = database
        self._room = Room(database, limit_bytes, memtable_bytes)
        self._calls = _CallsUnderWay()
        self._snapshots: weakref.WeakSet[RocksdbSnapshot] = weakref.WeakSet()
        # Of the sequence number that it was counted at.
        self._counted: tuple[int, int] = (-1, 0)

    @property
    def closed(self) -> bool:
        return self._calls.closed

    @property
    def max_key_bytes(self) -> int:
        # RocksDB takes longer ones; but a state may have a copy in a store of another kind.
        return rules.MAX_KEY_BYTES

    def snapshot(self) -> RocksdbSnapshot:
        with self._calls:
            snapshot = RocksdbSnapshot(self._calls, self._database)
            self._snapshots.add(snapshot)
            return snapshot

    def apply(self, batch: Batch) -> None:
        rules.check_batch(batch, self.max_key_bytes)
        with self._calls:
            rules.check_advances(batch.advances, self._stored(batch.advances).__getitem__)

            def fill(write: WriteBatch) -> None:
                for key in batch.deletes:
                    write.delete(ENTRIES + key)
                for key, row in batch.puts:
                    write.put(ENTRIES + key, row)
                for key_group, advance in batch.advances.items():
                    write.put(POSITIONS + prefix_of(key_group), encode_position(advance.after))

            self._room.check(batch)
            self._database.write(fill)
            self._room.wrote(batch)

    def drop_key_group(self, key_group: int) -> None:
        first, end = rules.bounds(key_group, b"", None)

        def fill(write: WriteBatch) -> None:
            write.delete(POSITIONS + prefix_of(key_group))
            write.delete_range(ENTRIES + first, end_of(ENTRIES) if end is None else ENTRIES + end)

        with self._calls:
            self._database.write(fill)

    def size(self) -> StoreSize:
        with self._calls:
            return StoreSize(self._entries(), self._database.taken_bytes())

    def close(self) -> None:
        if self._calls.closed:
            return
        self._calls.close()
        for snapshot in list(self._snapshots):
            snapshot.close()
        self._database.close()

    def _stored(self, key_groups: Mapping[int, object]) -> dict[int, Position]:
        keys = [POSITIONS + prefix_of(key_group) for key_group in key_groups]
        found = self._database.get_many(keys)
        return {
            key_group: START if value is None else decode_position(value)
            for key_group, value in zip(key_groups, found, strict=True)
        }

    def _entries(self) -> int:
        estimated = self._database.number("estimate-num-keys")
        if estimated > _COUNTED_ENTRIES:
            return estimated
        view = self._database.view()
        if view.sequence != self._counted[0]:
            counted = self._database.count(view, ENTRIES, end_of(ENTRIES), at_most=_COUNTED_ENTRIES)
            self._counted = (view.sequence, counted)
        return self._counted[1]


class RocksdbEngine(EngineOnDisk[RocksdbStore]):
    """See base.StoreEngine. One thread opens, destroys and closes.

    Args:
        limits: Of one state; the directory is of all.
        block_cache_bytes: What of the files is kept in memory, of all states of this engine together.
        memtable_bytes: What is kept in memory of what was written last, of each state.
        compression: Of the files: "lz4", "zstd" or "none".

    Raises:
        StoreLocked: Another process, or another engine of this one, uses the directory.
        StoreFormat: It holds something else than RocksDB stores of this format. Nothing was touched.
        StoreFull, InvalidConfiguration: It can't be made, or an option is none.
    """

    def __init__(
        self,
        limits: StoreLimits,
        *,
        block_cache_bytes: int = 256 << 20,
        memtable_bytes: int = 64 << 20,
        compression: str = "lz4",
    ) -> None:
        _at_least("block_cache_bytes", block_cache_bytes, _MIN_CACHE_BYTES)
        _at_least("memtable_bytes", memtable_bytes, _MIN_MEMTABLE_BYTES)
        if compression not in COMPRESSIONS:
            raise InvalidConfiguration(f"compression is {compression!r}; it must be one of {', '.join(COMPRESSIONS)}")
        super().__init__(limits.directory, "rocksdb", FORMAT_VERSION)
        self._limits = limits
        self._tuning = Tuning(Cache(block_cache_bytes), memtable_bytes, compression)

    def _opened(self, path: Path, identity: Identity) -> RocksdbStore:
        database = open_database(path, identity, self._tuning)
        return RocksdbStore(database, self._limits.bytes, self._tuning.memtable_bytes)


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise InvalidConfiguration(f"{name} is {value!r}; it must be a whole number of bytes, at least {least}")

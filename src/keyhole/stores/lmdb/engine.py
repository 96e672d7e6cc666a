"""Stores in LMDB: readers never block and are never blocked, a snapshot is a read transaction.

Every call of py-lmdb releases the GIL, `get` for each single key. A frame of 128 keys therefore offers it 128 times to
any thread that computes in Python, and may wait a switch interval for it each time. Measured: 2,000,000 gets/s alone,
2,000 beside a busy thread at Python's interval of 5 ms, 800,000 at 0.1 ms. A server that reads here must call
`sys.setswitchinterval(0.0001)`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb

from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import InternalError, KeyholeError, NotReady
from keyhole.model.epoch import START, Position
from keyhole.stores import rules
from keyhole.stores.base import Advance, Batch, BatchPart, StoreFiles, StoreLimits, StoreSize
from keyhole.stores.disk.engine_on_disk import EngineOnDisk
from keyhole.stores.disk.identity import Identity, NotUsableError, decode_position, encode_position
from keyhole.stores.lmdb.environment import FORMAT_VERSION, OpenEnvironment, open_environment, open_to_read
from keyhole.stores.lmdb.errors import errors_translated

# Puts, from which on it pays to make room for them where they go.
_FILLS_PAGES = 256


class LmdbSnapshot:
    """See base.Snapshot. One thread at a time, not always the same.

    Attributes:
        commit: The number of the commit that it sees, in whichever process; see base.commit_of.
    """

    def __init__(self, store: LmdbStore | LmdbReader, opened: OpenEnvironment) -> None:
        self._store = store
        self._opened = opened
        self._closed = False
        self._txn = opened.env.begin(db=opened.entries)
        self._get = self._txn.get
        self.commit: int = self._txn.id()
        # Larger rows have pages of their own. Where there are none, frames are read without counting bytes.
        stat = self._txn.stat(opened.entries)
        self._most_row_bytes = sys.maxsize if stat["overflow_pages"] else stat["psize"] // 2

    def get(self, storage_key: bytes) -> bytes | None:
        return self.get_many((storage_key,))[0]

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        # The fastest of those measured, for frames of 128 of 100,000 keys. `map` over Transaction.get 2.0 M/s, a
        # comprehension 1.9, Cursor.get 1.7, sorted keys 1.5, Cursor.getmulti 1.4 (which releases the GIL three times
        # for a key).
        try:
            return list(map(self._get, storage_keys))
        except lmdb.Error as error:
            raise self._error_of(error) from error

    def get_first(self, storage_keys: Sequence[bytes], most_bytes: int) -> tuple[list[bytes | None], bool]:
        try:
            if len(storage_keys) * self._most_row_bytes <= most_bytes:
                return list(map(self._get, storage_keys)), False
            return rules.first_rows(map(self._get, storage_keys), most_bytes)
        except lmdb.Error as error:
            raise self._error_of(error) from error

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        first, end = rules.bounds(key_group, start, stop)
        try:
            with self._txn.cursor() as cursor:
                yield from _down(cursor, first, end) if descending else _up(cursor, first, end)
        except lmdb.Error as error:
            raise self._error_of(error) from error

    def positions(self) -> Mapping[int, Position]:
        try:
            with self._txn.cursor(self._opened.positions) as cursor:
                return {int.from_bytes(key, "big"): decode_position(value) for key, value in cursor}
        except lmdb.Error as error:
            raise self._error_of(error) from error

    def close(self) -> None:
        self._closed = True
        self._txn.abort()

    def _error_of(self, error: lmdb.Error) -> KeyholeError:
        return _error_of(error, self._opened.path, closed=self._closed or self._store.closed)


class LmdbStore:
    """See base.Store. Made by LmdbEngine."""

    def __init__(self, opened: OpenEnvironment) -> None:
        self._opened = opened
        self._max_key_bytes = opened.env.max_key_size()
        self.closed = False

    @property
    def max_key_bytes(self) -> int:
        return self._max_key_bytes

    def snapshot(self) -> LmdbSnapshot:
        with self._errors_translated():
            return LmdbSnapshot(self, self._opened)

    @property
    def files(self) -> StoreFiles:
        """What another process opens to read it. Any thread."""
        return StoreFiles(self._opened.path, self._opened.limit_bytes)

    def forget_ended_readers(self) -> int:
        """See base.SharedStore. Of a store that is closed there are none."""
        with self._errors_translated():
            return 0 if self.closed else self._opened.env.reader_check()

    @property
    def takes_parts(self) -> bool:
        return True

    def apply(self, batch: Batch) -> None:
        rules.check_batch(batch, self._max_key_bytes)
        self._apply([(batch.puts, batch.deletes)], batch.advances)

    def apply_parts(self, parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> None:
        """See base.StoreInParts. LMDB keeps the pages that change in memory, until it writes them at the end."""

        self._apply(rules.checked(parts, advances, self._max_key_bytes), advances)

    def _apply(self, parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> None:
        positions = self._opened.positions
        with self._writing() as txn:

            def position_of(key_group: int) -> Position:
                stored = txn.get(prefix_of(key_group), db=positions)
                return START if stored is None else decode_position(stored)

            rules.check_advances(advances, position_of)
            live_bytes = self._opened.live_bytes(txn)
            page_bytes = txn.stat(self._opened.entries)["psize"]
            for puts, deletes in parts:
                for key in deletes:
                    txn.delete(key)
                with txn.cursor() as cursor:
                    _put(cursor, puts, page_bytes)
            for key_group, advance in advances.items():
                txn.put(prefix_of(key_group), encode_position(advance.after), db=positions)
            self._opened.check_room(live_bytes, self._opened.live_bytes(txn))

    def drop_key_group(self, key_group: int) -> None:
        # Entry by entry in one transaction, which uses the pages that it empties again: its memory does not grow with
        # the key group.
        prefix = prefix_of(key_group)
        with self._writing() as txn:
            txn.delete(prefix, db=self._opened.positions)
            with txn.cursor() as cursor:
                found = cursor.set_range(prefix)
                while found and cursor.key().startswith(prefix):
                    found = cursor.delete()  # and stands on the next entry

    def size(self) -> StoreSize:
        with self._errors_translated():
            with self._opened.env.begin() as txn:
                entries: int = txn.stat(self._opened.entries)["entries"]
            return StoreSize(entries, self._opened.taken_bytes())

    def close(self) -> None:
        # py-lmdb aborts the transactions that are still open, and waits for the calls that other threads are in.
        self.closed = True
        self._opened.env.close()

    @contextmanager
    def _writing(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A write transaction: committed at the end, aborted if anything is raised."""
        with self._errors_translated():
            with self._opened.env.begin(db=self._opened.entries, write=True) as txn:
                yield txn
            self._opened.fill_up()

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            with errors_translated(self._opened.path, self._opened.limit_bytes):
                yield
        except lmdb.Error as error:
            raise _error_of(error, self._opened.path, closed=self.closed) from error


class LmdbReader:
    """A store that another process writes, open to be read. It keeps old pages only by its snapshots.

    Raises:
        NotReady: It is not there: its owner has closed it since, and removed it, or is still making it.
        StoreFull, Overloaded: See errors_translated: there is no address space for it, say.
        InternalError: It can't be read for another reason: it is damaged, say.
    """

    def __init__(self, files: StoreFiles) -> None:
        try:
            self._opened = open_to_read(*files)
        except NotUsableError as error:
            raise NotReady(f"the store can't be read: {error}; ask its owner") from error
        except lmdb.Error as error:
            raise _error_of(error, files.path, closed=False) from error
        self.max_key_bytes: int = self._opened.env.max_key_size()
        self.closed = False

    def snapshot(self) -> LmdbSnapshot:
        """A view of the last commit. Its number says whether it is the one that is meant."""
        try:
            with errors_translated(self._opened.path, self._opened.limit_bytes):
                return LmdbSnapshot(self, self._opened)
        except lmdb.Error as error:
            raise _error_of(error, self._opened.path, closed=self.closed) from error

    def close(self) -> None:
        """Closes it, and its snapshots. Idempotent."""
        self.closed = True
        self._opened.env.close()


def _put(cursor: lmdb.Cursor[bytes], puts: Sequence[tuple[bytes, bytes]], page_bytes: int) -> None:
    if not puts:
        return
    if not cursor.set_range(puts[0][0]):
        # Behind all that there is nothing is looked for: a restore's key groups come so.
        taken, added = cursor.putmulti(puts, append=True)
        if added < taken:
            cursor.putmulti(puts)  # they are not in order, and LMDB has passed some over
        return
    if len(puts) < _FILLS_PAGES or cursor.key() <= puts[-1][0]:
        cursor.putmulti(puts)
        return
    # All of them go before one entry. LMDB would halve the page where they meet it, again and again, and leave half of
    # each empty. So the rest of that page gives way, and comes back behind them.
    moved: list[tuple[bytes, bytes]] = []
    room = page_bytes
    while cursor.key() and (room := room - len(cursor.key()) - len(cursor.value())) > 0:
        moved.append(cursor.item())
        cursor.delete()  # and stands on the next one, or nowhere, where the key is empty
    cursor.putmulti(puts)
    cursor.putmulti(moved, overwrite=False)  # were they not in order, a put of the same key would be the later one


def _up(cursor: lmdb.Cursor[bytes], first: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if not cursor.set_range(first):
        return
    for key, row in cursor:
        if end is not None and key >= end:
            return
        yield key, row


def _down(cursor: lmdb.Cursor[bytes], first: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    # `set_range` finds the first entry that is not below `end`; the one before it is the highest that is.
    if end == b"" or not (cursor.prev() if end is not None and cursor.set_range(end) else cursor.last()):
        return
    for key, row in cursor.iterprev():
        if key < first:
            return
        yield key, row


def _error_of(error: lmdb.Error, path: Path, *, closed: bool) -> KeyholeError:
    """What an error of LMDB means that is not about room."""
    if closed:
        return NotReady("the store, or this view of it, was closed while it was used; ask again")
    return InternalError(
        f"the store at {path} can't be read or written ({error}); stop the server and delete that directory: it "
        "is only a cache, and is rebuilt from the changelog",
        path=path,
    )


class LmdbEngine(EngineOnDisk[LmdbStore]):
    """See base.StoreEngine. One thread opens, destroys and closes.

    Raises:
        StoreLocked: Another process, or another engine of this one, uses the directory.
        StoreFormat: It holds something else than LMDB stores of this format. Nothing was touched.
        StoreFull, InvalidConfiguration: It can't be made.
    """

    def __init__(self, limits: StoreLimits) -> None:
        super().__init__(limits.directory, "lmdb", FORMAT_VERSION)
        self._limits = limits

    def _opened(self, path: Path, identity: Identity) -> LmdbStore:
        return LmdbStore(open_environment(path, identity, self._limits.bytes))

"""Opening the LMDB environment of one state: whether what is there is ours, whole, and of the right changelog.

Three named databases:

    meta        "format", "topic_id", "application", "state": the identity
    positions   key group (2 bytes, big-endian) -> position (six 8-byte integers, big-endian)
    entries     storage key -> row
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import lmdb

from keyhole.errors import InvalidConfiguration
from keyhole.stores.disk.identity import Identity, NotUsableError, check_described, described
from keyhole.stores.disk.open_or_make import check_positions, open_or_make
from keyhole.stores.disk.store_directory import at_limit
from keyhole.stores.lmdb.errors import MAX_READERS, errors_translated

DATA_FILE, LOCK_FILE = "data.mdb", "lock.mdb"

FORMAT_VERSION = 1

_log = logging.getLogger(__name__)

_READER_BYTES = 64
_MIN_HEADROOM_BYTES = 64 << 20
# The engine of LMDB 0.9, named so that neither a later py-lmdb nor LMDB_DEFAULT_LIB_VERSION changes the files' format.
_LIB_VERSION = 0
_DAMAGED = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.NotFoundError,
    lmdb.IncompatibleError,
    lmdb.VersionMismatchError,
)


@dataclass(frozen=True, slots=True)
class OpenEnvironment:
    """An environment and the handles of its databases."""

    path: Path
    limit_bytes: int
    env: lmdb.Environment
    positions: lmdb._Database
    entries: lmdb._Database

    def live_bytes(self, txn: lmdb.Transaction[bytes]) -> int:
        """What the pages take that hold something, as `txn` sees them."""
        stats = [txn.stat(database) for database in (self.positions, self.entries)]
        return sum((s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"]) * s["psize"] for s in stats)

    def check_room(self, live_bytes_before: int, live_bytes: int) -> None:
        """Refuses growth beyond the limit. What takes less than before, or the same, may be written."""
        if live_bytes > max(live_bytes_before, self.limit_bytes):
            raise at_limit(self.path, self.limit_bytes)

    @property
    def data_file(self) -> Path:
        return self.path / DATA_FILE

    def taken_bytes(self) -> int:
        """What the data file takes on disk: the map is sparse, and so may the file be."""
        return self.data_file.stat().st_blocks * 512

    def fill_up(self) -> None:
        """Makes the data file as long as its last page says (sparse). Called after every commit.

        LMDB doesn't write pages that a transaction both took and freed; where these are the last ones, the file ends
        before them. A file that is too short would then look like one that was cut off.

        A disk that refuses it is logged and not raised: the commit before it holds, and who is told of an error would
        apply the same batch again. The next commit tries again; until then a restart makes the store anew.
        """
        try:
            expected = _expected_bytes(self.env)
            if self.data_file.stat().st_size < expected:
                os.truncate(self.data_file, expected)
        except OSError as error:
            _log.warning(
                "a store's file could not be made as long as it should be; what was written is there, but a restart "
                "before the next write would rebuild the store from the changelog",
                extra={"store_path": str(self.path), "why": str(error)},
            )


def open_environment(path: Path, identity: Identity, limit_bytes: int) -> OpenEnvironment:
    """The environment at `path`, made if absent, emptied (and logged) where it is damaged or of another changelog.

    Raises:
        StoreFormat: Another format version; nothing was touched.
        StoreFull: No room to make it.
    """
    with errors_translated(path, limit_bytes):
        return open_or_make(
            path,
            identity,
            there=(path / DATA_FILE).exists(),
            open_existing=lambda: _open_existing(path, identity, limit_bytes),
            create=lambda: _create(path, identity, limit_bytes),
        )


def open_to_read(path: Path, limit_bytes: int) -> OpenEnvironment:
    """The environment at `path`, which another process has opened and may write. Nothing is written here.

    Raises:
        NotUsableError: It is gone, or its owner is still making it.
        StoreFull, Overloaded: See errors_translated.
        lmdb.Error: Anything else: the files are damaged, say.
    """
    with errors_translated(path, limit_bytes):
        try:
            # Never before LMDB has opened it, nor by hand: whoever closes the lock file gives up its locks.
            env = _open_lmdb(path, limit_bytes, readonly=True)
        except lmdb.Error as error:
            if error.code == errno.ENOENT:
                raise NotUsableError(f"{path} is not there") from error
            raise
        try:
            positions, entries = (env.open_db(name, create=False) for name in (b"positions", b"entries"))
        except lmdb.NotFoundError as error:
            env.close()
            raise NotUsableError(f"{path} has no state's databases: {error}") from error
        except BaseException:
            env.close()
            raise
    return OpenEnvironment(path, limit_bytes, env, positions, entries)


def _create(path: Path, identity: Identity, limit_bytes: int) -> OpenEnvironment:
    path.mkdir()
    env = _open_lmdb(path, limit_bytes)
    try:
        # One transaction: see open_or_make.
        with env.begin(write=True) as txn:
            meta = env.open_db(b"meta", txn=txn)
            for name, value in described(identity, FORMAT_VERSION).items():
                txn.put(name, value, db=meta)
            positions = env.open_db(b"positions", txn=txn)
            entries = env.open_db(b"entries", txn=txn)
        opened = OpenEnvironment(path, limit_bytes, env, positions, entries)
        opened.fill_up()
    except BaseException:
        env.close()
        raise
    return opened


def _open_existing(path: Path, identity: Identity, limit_bytes: int) -> OpenEnvironment:
    try:
        env = _open_lmdb(path, limit_bytes)
    except _DAMAGED as error:
        raise NotUsableError("damaged: not an LMDB file") from error
    try:
        _check_length(env, path)
        with env.begin() as txn:
            meta = env.open_db(b"meta", txn=txn, create=False)
            check_described(path, dict(txn.cursor(meta)), identity, FORMAT_VERSION)
        # Not in the transaction above: only a committed one leaves its handles behind, and that one reads.
        positions = env.open_db(b"positions", create=False)
        entries = env.open_db(b"entries", create=False)
        with env.begin() as txn:
            check_positions(value for _, value in txn.cursor(positions))
        # Slots of processes that were killed would keep old pages alive.
        env.reader_check()
    except _DAMAGED as error:
        env.close()
        raise NotUsableError("damaged: a database is missing or broken") from error
    except BaseException:
        env.close()
        raise
    return OpenEnvironment(path, limit_bytes, env, positions, entries)


def _check_length(env: lmdb.Environment, path: Path) -> None:
    # Before any page is read: beyond the end of a file that was cut off the map has nothing, and the process would die.
    if (path / DATA_FILE).stat().st_size < _expected_bytes(env):
        raise NotUsableError("damaged: the data file is cut off")


def _expected_bytes(env: lmdb.Environment) -> int:
    return (env.info()["last_pgno"] + 1) * env.stat()["psize"]


def _open_lmdb(path: Path, limit_bytes: int, *, readonly: bool = False) -> lmdb.Environment:
    """Durability, measured here on ext4 (median of 30 commits of 10,000 / 100 rows into 100,000 entries):

        sync, the default           8.2 ms / 1.3 ms
        metasync=False              7.8 ms / 1.3 ms    chosen
        sync=False                  4.5 ms / 0.2 ms
        writemap                   10.3 ms / 1.1 ms
        writemap, map_async         3.4 ms / 0.1 ms

    All of them lose nothing when the process is killed. When the machine dies, sync=False and map_async may leave a
    corrupt file that reads as a whole one, for at most 4 ms of an epoch that waits tens of ms for Kafka. metasync=False
    always leaves a state that was committed: at worst the one before the last, whose successor the changelog has; and
    it waits once for the disk, not twice. writemap kills the process (SIGBUS) where the disk is full.
    """
    if not readonly:
        _reserve_lock_file(path)
    try:
        return lmdb.Environment(
            str(path),
            map_size=_map_bytes(limit_bytes),
            metasync=False,
            readahead=False,  # lookups are random: neighbouring pages would only push others out of memory
            max_readers=MAX_READERS,
            max_dbs=3,
            readonly=readonly,
            create=not readonly,
            lib_version=_LIB_VERSION,
        )
    except OverflowError as error:
        raise InvalidConfiguration(
            f"a store limit of {limit_bytes} bytes is none; set KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES to what a state "
            "may take at most"
        ) from error


def _map_bytes(limit_bytes: int) -> int:
    """The map is made once, sparse: growing it under a snapshot would end that snapshot.

    It is larger than the limit, because also deleting and replacing take new pages before they free old ones: in a map
    without any, nothing could be deleted any more.
    """
    return limit_bytes + max(limit_bytes // 16, _MIN_HEADROOM_BYTES)


def _reserve_lock_file(path: Path) -> None:
    """LMDB makes the lock file sparse and writes it through a map: on a full disk that would kill the process."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, (MAX_READERS + 4) * _READER_BYTES)
    finally:
        os.close(descriptor)

"""Opening the RocksDB database of one state: whether what is there is ours, whole, and of the right changelog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from keyhole.errors import InternalError
from keyhole.stores.disk.identity import Identity, NotUsableError, check_described, described
from keyhole.stores.disk.open_or_make import check_positions, open_or_make
from keyhole.stores.rocksdb.database import META, POSITIONS, Database, end_of
from keyhole.stores.rocksdb.errors import errors_translated, says_damaged

FORMAT_VERSION = 1
COMPRESSIONS: dict[str, Callable[[], DBCompressionType]] = {
    "none": DBCompressionType.none,
    "lz4": DBCompressionType.lz4,
    "zstd": DBCompressionType.zstd,
}

_MAX_OPEN_FILES = 256
_BLOOM_BITS_PER_KEY = 10
_METADATA_BLOCK_BYTES = 4096
_LOG_BYTES = 1 << 20
_LOG_FILES = 2


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a database may take of the memory, and how its files are written.

    Attributes:
        cache: Of blocks of the files, their indexes and filters among them; several databases may share one.
        memtable_bytes: Of rows that are in no file yet (but in the log).
        compression: One of COMPRESSIONS.
    """

    cache: Cache
    memtable_bytes: int
    compression: str


def open_database(path: Path, identity: Identity, tuning: Tuning) -> Database:
    """The database at `path`, made if absent, emptied (and logged) where it is damaged or of another changelog.

    Holds the interpreter's lock while it reads the log of a process that was killed: at most `memtable_bytes`.

    Raises:
        StoreFormat: Another format version; none of its content was touched.
        StoreFull: No room to make it.
    """
    with errors_translated(path):
        return open_or_make(
            path,
            identity,
            there=path.exists() and any(path.iterdir()),
            open_existing=lambda: _open_existing(path, identity, tuning),
            create=lambda: _create(path, identity, tuning),
        )


def _create(path: Path, identity: Identity, tuning: Tuning) -> Database:
    database = Database(path, _open_rdict(path, tuning, create=True))

    def describe(batch: WriteBatch) -> None:
        for name, value in described(identity, FORMAT_VERSION).items():
            batch.put(META + name, value)

    try:
        # One batch: see open_or_make.
        database.write(describe)
    except BaseException:
        database.close()
        raise
    return database


def _open_existing(path: Path, identity: Identity, tuning: Tuning) -> Database:
    try:
        database = Database(path, _open_rdict(path, tuning, create=False))
    except Exception as error:
        if says_damaged(error):
            raise NotUsableError(f"damaged: {error}") from error
        raise
    try:
        _check(database, identity)
    except InternalError as error:
        database.close()
        raise NotUsableError(f"damaged: {error.__cause__}") from error
    except BaseException:
        database.close()
        raise
    return database


def _check(database: Database, identity: Identity) -> None:
    view = database.view()
    meta = database.entries(view, META, end_of(META), at_most=1 << 16, at_most_bytes=1 << 30)
    check_described(database.path, {key[1:]: value for key, value in meta}, identity, FORMAT_VERSION)
    positions = database.entries(view, POSITIONS, end_of(POSITIONS), at_most=1 << 17, at_most_bytes=1 << 30)
    check_positions(value for _, value in positions)


def _open_rdict(path: Path, tuning: Tuning, *, create: bool) -> Rdict:
    options = _options(tuning)
    options.create_if_missing(create)
    # Also as those of the column family: for that, rocksdict would else take what the files were written with.
    return Rdict(str(path), options, {"default": options})


def _options(tuning: Tuning) -> Options:
    """Chosen for states that are larger than the memory they are given. Measured with 1,000,000 rows in one file of 44
    MB and a cache of 8 MiB: 190,000 gets/s with indexes and filters in partitions. It was 8,000 with one of each per
    file, which push each other out of the cache.
    """
    blocks = BlockBasedOptions()
    blocks.set_block_cache(tuning.cache)
    blocks.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_metadata_block_size(_METADATA_BLOCK_BYTES)
    blocks.set_pin_top_level_index_and_filter(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(COMPRESSIONS[tuning.compression]())
    # One that is filled, and one that is written into a file meanwhile.
    options.set_write_buffer_size(tuning.memtable_bytes // 2)
    options.set_max_write_buffer_number(2)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_open_files(_MAX_OPEN_FILES)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(_LOG_FILES)
    return options

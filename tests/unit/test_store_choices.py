"""A file says which states are kept in which store; what is wrong in it is named when the server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.errors import InvalidConfiguration, StoreFull, StoreLocked
from keyhole.model.epoch import START
from keyhole.stores.base import Advance, Batch, StoreEngine, StoreLimits
from keyhole.stores.choices import EngineByState, chosen_engine, read_choices
from keyhole.stores.disk.store_directory import directory_name
from keyhole.stores.lmdb.engine import LmdbEngine, LmdbStore
from keyhole.stores.memory import MemoryStore
from keyhole.stores.rocksdb.engine import RocksdbStore
from keyhole.testing.stores import StoreContract
from keyhole.testing.stores.samples import contents, position, puts

LIMIT_BYTES = 1 << 30


def write(path: Path, text: str) -> Path:
    path.write_text(text.replace("DIR", str(path.parent)))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(
        tmp_path / "stores.toml",
        """
        [[stores]]
        states = ["shop/history_*", "*/clicks"]
        store = "rocksdb"
        directory = "DIR/rocksdb"
        limit_bytes = 1_048_576
        options = { block_cache_bytes = 1_048_576, memtable_bytes = 1_048_576 }

        [[stores]]
        states = ["shop/*_small", "shop/history_none"]
        store = "memory"
        """,
    )


@pytest.fixture
def limits(tmp_path: Path) -> StoreLimits:
    return StoreLimits(tmp_path / "others", LIMIT_BYTES)


@pytest.mark.parametrize(
    ("application", "state", "kind"),
    [
        ("shop", "history_daily", RocksdbStore),
        ("shop", "history_", RocksdbStore),
        ("shop", "histories", LmdbStore),
        ("other", "history_daily", LmdbStore),
        ("other", "clicks", RocksdbStore),
        ("shop", "very_small", MemoryStore),
        ("shop", "history_small", RocksdbStore),  # the first entry that fits
        ("shop", "Clicks", LmdbStore),
    ],
)
def test_a_state_is_kept_in_the_store_of_the_first_entry_that_fits_it_or_in_the_server_s(
    file: Path, limits: StoreLimits, application: str, state: str, kind: type
) -> None:
    engine = chosen_engine("lmdb", limits, file)
    assert type(engine.open(application, state, "topic")) is kind
    engine.close()


def test_without_a_file_all_states_are_kept_alike(limits: StoreLimits) -> None:
    engine = chosen_engine("lmdb", limits, None)
    assert type(engine) is LmdbEngine
    engine.close()


def test_files_lie_in_the_directory_of_their_entry(file: Path, limits: StoreLimits, tmp_path: Path) -> None:
    engine = chosen_engine("lmdb", limits, file)
    engine.open("shop", "history_daily", "topic")
    engine.open("shop", "orders", "topic")
    engine.close()
    assert (tmp_path / "rocksdb" / directory_name("shop", "history_daily") / "CURRENT").exists()
    assert (tmp_path / "others" / directory_name("shop", "orders") / "data.mdb").exists()


@pytest.mark.parametrize(("state", "limited"), [("history_daily", True), ("very_small", False), ("orders", False)])
def test_the_limit_of_an_entry_is_that_of_its_states_and_else_the_server_s(
    file: Path, limits: StoreLimits, state: str, limited: bool
) -> None:
    engine = chosen_engine("lmdb", limits, file)
    store = engine.open("shop", state, "topic")
    batch = Batch(puts(1, 3000, row_bytes=1000), [], {1: Advance(START, position(1))})
    if limited:
        with pytest.raises(StoreFull, match=r"its limit of 1048576 bytes.*limit_bytes in KEYHOLE_STATE_SERVER_STORES"):
            store.apply(batch)
    else:
        store.apply(batch)
    engine.close()


def test_a_state_that_is_moved_to_another_store_begins_empty_there_and_the_other_one_is_left_alone(
    file: Path, limits: StoreLimits
) -> None:
    engine = chosen_engine("lmdb", limits, None)
    batch = Batch(puts(1, 10, row_bytes=10), [], {1: Advance(START, position(1))})
    engine.open("shop", "history_daily", "topic").apply(batch)
    engine.close()

    engine = chosen_engine("lmdb", limits, file)
    assert contents(engine.open("shop", "history_daily", "topic"), 1) == {}
    engine.close()

    engine = chosen_engine("lmdb", limits, None)
    assert contents(engine.open("shop", "history_daily", "topic"), 1) == dict(batch.puts)
    engine.close()


def test_a_directory_that_another_process_uses_closes_those_that_were_opened_before(
    file: Path, limits: StoreLimits, tmp_path: Path
) -> None:
    other = LmdbEngine(StoreLimits(tmp_path / "taken"))
    entry = '[[stores]]\nstates = ["a/b"]\nstore = "lmdb"\ndirectory = "DIR/taken"\n'
    write(file, file.read_text() + entry)
    with pytest.raises(StoreLocked, match="taken is in use by process"):
        chosen_engine("lmdb", limits, file)
    other.close()
    chosen_engine("lmdb", limits, file).close()


ENTRY = 'states = ["a/b"]\nstore = "lmdb"\ndirectory = "DIR/one"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[stores]", "stores.toml .KEYHOLE_STATE_SERVER_STORES.: "),
        ("", r"missing required field `stores`.*docs/stores.md"),
        ("[[store]]\n" + ENTRY, "unknown field `store`"),
        ("[[stores]]\n" + ENTRY + "limit = 5", r"unknown field `limit`.*stores\[0\]"),
        ("[[stores]]\nstates = ['a/b']", "missing required field `store`"),
        ("[[stores]]\nstates = 'a/b'\nstore = 'memory'", "Expected `array`, got `str`"),
        ("[[stores]]\n" + ENTRY + "limit_bytes = 'many'", "Expected `int | null`, got `str`"),
        ("[[stores]]\n" + ENTRY + "limit_bytes = 0", "entry 1: limit_bytes is 0; it must be 1 or more"),
        ("[[stores]]\nstates = []\nstore = 'memory'", "entry 1: states is empty"),
        ("[[stores]]\nstates = ['b']\nstore = 'memory'", "entry 1: 'b' must be application/state"),
        ("[[stores]]\nstates = ['a/b/c']\nstore = 'memory'", "entry 1: 'a/b/c' must be application/state"),
        ("[[stores]]\nstates = ['/b']\nstore = 'memory'", "entry 1: '/b' must be application/state"),
        ("[[stores]]\nstates = ['a/b']\nstore = 'lmdb'", "entry 1: the store 'lmdb' needs a directory of its own"),
        ("[[stores]]\n" + ENTRY + "[[stores]]\n" + ENTRY, "entry 2: 'a/b' is in it twice"),
        ("[[stores]]\n" + ENTRY.replace("one", "others"), "entry 1: .*others is the directory of the states that no"),
        (
            "[[stores]]\n" + ENTRY + "[[stores]]\n" + ENTRY.replace("a/b", "c/d"),
            "entry 2: .*one is the directory of entry 1",
        ),
        (
            "[[stores]]\n" + ENTRY.replace('"lmdb"', '"papyrus"'),
            "entry 1: unknown store 'papyrus'; the stores are lmdb",
        ),
        ("[[stores]]\n" + ENTRY + "options = { colour = 1 }", "entry 1: the store 'lmdb' has no option colour"),
        (
            "[[stores]]\n" + ENTRY.replace('"lmdb"', '"rocksdb"') + "options = { memtable_bytes = 1 }",
            "entry 1: memtable_bytes is 1; it must be",
        ),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_entry(
    tmp_path: Path, limits: StoreLimits, text: str, says: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        chosen_engine("lmdb", limits, write(tmp_path / "stores.toml", text))
    # Nothing is left locked.
    chosen_engine("lmdb", limits, None).close()


def test_a_file_that_is_not_there_is_named(tmp_path: Path, limits: StoreLimits) -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"KEYHOLE_STATE_SERVER_STORES is .*absent.toml', which can't be read"
    ):
        chosen_engine("lmdb", limits, tmp_path / "absent.toml")


class TestStoresByState(StoreContract):
    """States in two stores at once keep the contract."""

    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        file = write(
            limits.directory.parent / f"{limits.directory.name}.toml",
            f'[[stores]]\nstates = ["a*/*"]\nstore = "rocksdb"\ndirectory = "{limits.directory}-rocksdb"\n',
        )
        engine = chosen_engine("lmdb", limits, file)
        assert isinstance(engine, EngineByState)
        assert read_choices(file)[0].fits("application", "state")
        return engine


def test_the_file_that_the_documentation_shows_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "stores.md").read_text()
    shown = page.split("```toml\n")[1].split("```")[0]
    first, second = read_choices(write(tmp_path / "stores.toml", shown))
    assert (first.store, first.limit_bytes, first.options) == (
        "rocksdb",
        200_000_000_000,
        {"block_cache_bytes": 1 << 30},
    )
    assert second.fits("any", "settings")

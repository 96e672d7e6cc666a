"""A store is chosen by name: ours, an installed one, or one that is named as module:Engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from keyhole.errors import InvalidConfiguration
from keyhole.stores.base import StoreLimits
from keyhole.stores.engines import OURS, make_engine
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine

THEIRS = """
from keyhole.stores.memory import MemoryEngine

class Engine(MemoryEngine):
    def __init__(self, limits, *, colour="red"):
        super().__init__(limits.bytes)
        self.limits, self.colour = limits, colour

def Demanding(limits, *, colour):
    return Engine(limits, colour=colour)

NO_ENGINE = 7
"""


@pytest.fixture
def limits(tmp_path: Path) -> StoreLimits:
    return StoreLimits(tmp_path / "stores", 1 << 30)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution of a third party with a store, as an installer leaves it behind. The name of its module."""
    site = tmp_path / "site-packages"
    metadata = site / "their_stores-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "their_stores.py").write_text(THEIRS)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-stores\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[keyhole.stores]\npapyrus = their_stores:Engine\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "their_stores", raising=False)
    return "their_stores"


@pytest.mark.parametrize(
    ("store", "kind"), [("lmdb", LmdbEngine), ("memory", MemoryEngine), ("rocksdb", RocksdbEngine)]
)
def test_our_stores_are_made_by_their_names(limits: StoreLimits, store: str, kind: type) -> None:
    engine = make_engine(store, limits, {})
    assert type(engine) is kind
    engine.close()


def test_all_of_our_stores_are_tested_above() -> None:
    assert set(OURS) == {"lmdb", "memory", "rocksdb"}


@pytest.mark.parametrize("store", ["papyrus", "their_stores:Engine"])
def test_a_store_of_a_third_party_is_made_by_its_entry_point_or_as_module_and_engine(
    limits: StoreLimits, installed: str, store: str
) -> None:
    engine = make_engine(store, limits, {"colour": "blue"})
    assert (type(engine).__module__, engine.limits, engine.colour) == (installed, limits, "blue")  # type: ignore[attr-defined]
    opened = engine.open("application", "state", "topic")
    assert opened.size().entries == 0
    engine.close()


@pytest.mark.parametrize(
    ("store", "options", "says"),
    [
        (
            "parchment",
            {},
            r"unknown store 'parchment'; the stores are lmdb, memory, papyrus, rocksdb, and any other as",
        ),
        (":Engine", {}, "unknown store ':Engine'"),
        ("their_stores:", {}, "unknown store 'their_stores:'"),
        ("no_such_module:Engine", {}, "can't be imported: No module named 'no_such_module'"),
        ("their_stores:Motor", {}, "does not exist: .*Motor"),
        ("their_stores:NO_ENGINE", {}, "can't be made: 7 is not a callable object"),
        ("their_stores:Demanding", {}, "can't be made: missing a required .*argument: 'colour'"),
        ("papyrus", {"color": "blue"}, "the store 'papyrus' has no option color; it has colour"),
        ("lmdb", {"colour": "blue"}, "the store 'lmdb' has no option colour; it has none"),
        ("memory", {"a": 1, "b": 2}, "the store 'memory' has no option a, b; it has none"),
        ("rocksdb", {"cache": 1}, "no option cache; it has block_cache_bytes, memtable_bytes, compression"),
    ],
)
def test_a_store_or_an_option_that_does_not_exist_is_named_with_those_that_do(
    limits: StoreLimits, installed: str, store: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        make_engine(store, limits, options)
    assert not limits.directory.exists()


def test_a_store_whose_library_is_not_installed_says_what_to_install(
    limits: StoreLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("keyhole.stores.rocksdb.engine")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(
        InvalidConfiguration, match=r"'rocksdb' .* can't be imported: .*rocksdict.*keyhole-spark\[server\]"
    ):
        make_engine("rocksdb", limits, {})

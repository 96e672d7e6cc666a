"""The tests that docs/store-of-your-own.md has an author of a store write, word for word: of a store that there is."""

from __future__ import annotations

import sys
import types
from typing import Any

from keyhole.stores.lmdb.engine import LmdbEngine
from tests.support.snippets import blocks


def _tests() -> dict[str, Any]:
    """What the page's module defines."""
    (code,) = blocks("docs/store-of-your-own.md")
    store = types.ModuleType("papyrus_store")
    store.__dict__["PapyrusEngine"] = LmdbEngine
    names: dict[str, Any] = {"__name__": __name__}
    sys.modules[store.__name__] = store
    try:
        exec(compile(code, "docs/store-of-your-own.md", "exec"), names)
    finally:
        del sys.modules[store.__name__]
    return names


_DEFINED = _tests()
TestPapyrus = _DEFINED["TestPapyrus"]
TestPapyrusEqualsADict = _DEFINED["TestPapyrusEqualsADict"]

"""What Spark's workers are spared, and what they are not."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterator

import pytest

from keyhole.spark import worker
from keyhole.spark.worker import spare_imports


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_imported", 0)
    yield
    gc.unfreeze()


class _Node:
    other: _Node


def test_what_is_imported_is_left_out_and_what_comes_later_is_collected() -> None:
    spare_imports()
    assert gc.get_freeze_count() > 10_000
    node = _Node()
    node.other = node
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None


def test_garbage_that_is_there_already_is_collected_first() -> None:
    node = _Node()
    node.other = node
    gone = weakref.ref(node)
    del node
    spare_imports()
    assert gone() is None


def test_it_looks_again_only_where_more_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_imports()
    before = gc.get_freeze_count()
    kept = [_Node() for _ in range(1_000)]
    spare_imports()
    assert gc.get_freeze_count() <= before
    monkeypatch.setitem(sys.modules, "imported_later", types.ModuleType("imported_later"))
    spare_imports()
    assert gc.get_freeze_count() >= before + len(kept)

"""Batches that are given to a store in parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.errors import InternalError, KeyTooLong, StageLost, StoreConflict
from keyhole.stores.base import Batch, BatchPart, StoreLimits, takes_parts
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.lmdb.engine import LmdbEngine, LmdbStore
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.stores.samples import advances, contents, key, position, positions
from tests.support.states import descriptor

A, B, C, OTHER = key(1, "a"), key(1, "b"), key(1, "c"), key(2, "a")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    engine = LmdbEngine(StoreLimits(tmp_path / "stores"))
    yield engine.open("app", "counts", "topic")
    engine.close()


def test_all_parts_are_one_batch(store: LmdbStore) -> None:
    store.apply(Batch([(A, b"1"), (C, b"1")], [], advances(1)))
    snapshot = store.snapshot()

    def parts() -> Iterator[BatchPart]:
        yield [(B, b"2")], [A]
        assert contents(store, 1) == {A: b"1", C: b"1"}
        yield [(OTHER, b"2")], [C]

    store.apply_parts(parts(), {**advances(1, epoch=2), **advances(2)})
    assert contents(store, 1, 2) == {B: b"2", OTHER: b"2"}
    assert positions(store) == {1: position(2), 2: position(1)}
    assert snapshot.get_many([A, B]) == [b"1", None]


def test_what_comes_before_what_is_there_and_behind_it_is_put_either_way(store: LmdbStore) -> None:
    store.apply(Batch([(B, b"1")], [], advances(1)))
    store.apply_parts([([(A, b"2"), (C, b"2")], ()), ([(OTHER, b"2")], ())], {**advances(1, epoch=2), **advances(2)})
    assert contents(store, 1, 2) == {A: b"2", B: b"1", C: b"2", OTHER: b"2"}


def test_puts_that_are_not_in_order_are_not_passed_over(store: LmdbStore) -> None:
    store.apply(Batch([(C, b"1"), (A, b"1"), (B, b"1")], [], advances(1)))
    assert contents(store, 1) == dict.fromkeys([A, B, C], b"1")


def failing() -> Iterator[BatchPart]:
    yield [(B, b"2")], [A]
    raise StageLost("gone")


LONG = key(1, "d" * 600)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (failing(), StageLost),
        ([([(B, b"2")], [A]), ([(LONG, b"2")], ())], KeyTooLong),
        ([([(B, b"2")], [A]), ((), [LONG])], KeyTooLong),
        ([([(B, b"2")], [A]), ([(OTHER, b"2")], ())], InternalError),
        ([([(B, b"2"), (OTHER, b"2")], [A])], InternalError),
        ([([(B, b"2")], [A]), ((), [OTHER])], InternalError),
    ],
)
def test_a_part_that_can_not_be_had_or_taken_leaves_nothing_of_the_ones_before(
    store: LmdbStore, parts: Iterator[BatchPart], error: type[Exception]
) -> None:
    store.apply(Batch([(A, b"1")], [], advances(1)))
    with pytest.raises(error):
        store.apply_parts(parts, advances(1, epoch=2))
    assert contents(store, 1, 2) == {A: b"1"}
    assert positions(store) == {1: position(1)}
    store.apply_parts([([(A, b"2")], ())], advances(1, epoch=2))
    assert contents(store, 1) == {A: b"2"}


def test_where_the_store_is_elsewhere_no_part_is_asked_for(store: LmdbStore) -> None:
    with pytest.raises(StoreConflict):
        store.apply_parts(failing(), advances(1, epoch=2))
    assert contents(store, 1) == {}


def test_a_store_with_indexes_takes_batches_as_a_whole_and_one_without_goes_on_with_any(store: LmdbStore) -> None:
    assert not takes_parts(IndexedStore(store, descriptor(index=("n",))))
    assert not takes_parts(IndexedStore(MemoryEngine().open("app", "counts", "topic"), descriptor()))
    plain = IndexedStore(store, descriptor())
    while plain.build():
        pass
    assert takes_parts(plain)
    plain.apply_parts([([(A, b"1")], ())], advances(1))
    plain.apply(Batch([(B, b"2")], [A], advances(1, epoch=2)))
    assert contents(plain, 1) == {B: b"2"}
    assert positions(plain) == {1: position(2)}

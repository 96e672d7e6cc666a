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
from keyhole.testing.stores.samples import advances, contents, key, position, positions, puts
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


def leaf_pages(store: LmdbStore) -> int:
    opened = store._opened
    with opened.env.begin() as txn:
        return int(txn.stat(opened.entries)["leaf_pages"])


def test_a_key_group_between_others_leaves_pages_no_emptier_than_one_behind_all_others(store: LmdbStore) -> None:
    """As one that is taken over where others are owned already."""
    rows = {group: puts(group, 4000, 60) for group in (1, 2, 3)}
    taken = []
    for number, group in enumerate((1, 3, 2), 1):
        before, parts = leaf_pages(store), [(rows[group][at : at + 400], ()) for at in range(0, 4000, 400)]
        store.apply_parts(parts, advances(group))
        taken.append(leaf_pages(store) - before)
        assert store.size().entries == 4000 * number
    assert taken[2] < 1.15 * taken[1], taken
    assert contents(store, 1, 2, 3) == dict(rows[1] + rows[2] + rows[3])


@pytest.mark.parametrize("row_bytes", [1, 1500, 5000])
def test_what_gives_way_to_a_key_group_before_it_is_as_it_was(store: LmdbStore, row_bytes: int) -> None:
    behind, before = puts(3, 300, row_bytes), puts(2, 300, 60)
    store.apply_parts([(behind, ())], advances(3))
    store.apply_parts([(before, ())], advances(2))
    store.apply_parts([(before, [behind[0][0]])], {**advances(2, epoch=2), **advances(3, epoch=2)})
    assert contents(store, 2, 3) == dict(before + behind[1:])


def test_puts_out_of_order_are_never_older_than_what_gave_way_to_them(store: LmdbStore) -> None:
    (first,) = puts(3, 1, 60)
    store.apply(Batch([first], [], advances(3)))
    batch = Batch(
        [*puts(2, 300, 60), (first[0], b"new"), (key(2, "last"), b"")], [], {**advances(2), **advances(3, epoch=2)}
    )
    store.apply(batch)
    assert contents(store, 3) == {first[0]: b"new"}

"""How an epoch's rows change what is stored, whatever they are: against a dict, and run again as a replay would be."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Store
from keyhole.stores.memory import MemoryEngine
from services.state_server.write.merge import changes, merge_of
from services.state_server.write.merge_rows import rank_by
from services.state_server.write.merging import EntryChange, Merge
from tests.support.states import CODEC, EPOCH, content, descriptor, key, names_in, row

KEYS = [key(name) for name in names_in(0, 5)]
UPSERT, RANKED = merge_of(descriptor()), merge_of(descriptor(order_by="n"))
RANK = rank_by("n", CODEC)
numbers = st.sampled_from([None, -math.inf, -0.0, 0.0, 1.0, 2.0, math.inf, math.nan])
rows = st.dictionaries(st.sampled_from(KEYS), numbers.map(row))
rows_and_deletions = st.dictionaries(st.sampled_from(KEYS), st.none() | numbers.map(row))


def store(stored: Mapping[bytes, bytes]) -> Store:
    made = MemoryEngine().open("app", "counts", "topic")
    write(made, sorted(stored.items()), epoch=1)
    return made


def write(to: Store, changed: list[EntryChange], epoch: int) -> None:
    before = to.snapshot().positions().get(0, START)
    to.apply(
        Batch(
            puts=[(name, value) for name, value in changed if value is not None],
            deletes=[name for name, value in changed if value is None],
            advances={0: Advance(before, Position(epoch, epoch, 1, 0))},
        )
    )


def merged(
    stored: Mapping[bytes, bytes], of: Mapping[bytes, bytes | None], merge: Merge, *, replace: bool
) -> dict[bytes, bytes]:
    """What is stored afterwards, and checked: ascending, each key once, and the same when it is run again."""
    to = store(stored)
    first = changes(of, to.snapshot(), 0, merge, EPOCH, replace=replace)
    assert [name for name, _ in first] == sorted({name for name, _ in first})
    write(to, first, epoch=2)
    after = content(to)
    write(to, changes(of, to.snapshot(), 0, merge, EPOCH, replace=replace), epoch=3)
    assert content(to) == after, "a replay changes something"
    return after


@given(rows, rows_and_deletions)
def test_an_update_upserts_and_deletes(stored: dict[bytes, bytes], of: dict[bytes, bytes | None]) -> None:
    expected = {name: value for name, value in {**stored, **of}.items() if value is not None}
    assert merged(stored, of, UPSERT, replace=False) == expected


@given(rows, rows)
def test_complete_mode_leaves_exactly_the_rows_and_writes_only_what_differs(
    stored: dict[bytes, bytes], of: dict[bytes, bytes]
) -> None:
    assert merged(stored, of, UPSERT, replace=True) == of
    written = changes(of, store(stored).snapshot(), 0, UPSERT, EPOCH, replace=True)
    assert all(stored.get(name) != value for name, value in written)


@given(rows, rows)
def test_order_by_leaves_the_row_that_ranks_highest_and_of_equals_the_new_one(
    stored: dict[bytes, bytes], of: dict[bytes, bytes]
) -> None:
    wins = {name: value for name, value in of.items() if name not in stored or RANK(value) >= RANK(stored[name])}
    assert merged(stored, of, RANKED, replace=False) == {**stored, **wins}


@pytest.mark.parametrize(("lower", "higher"), [(None, -math.inf), (1.0, 2.0), (math.inf, math.nan), (None, math.nan)])
def test_null_ranks_below_all_and_nan_above_all(lower: float | None, higher: float) -> None:
    assert RANK(row(lower)) < RANK(row(higher))
    assert RANK(row(lower)) == RANK(row(lower))


def test_a_deletion_counts_whatever_the_stored_row_ranks() -> None:
    assert merged({KEYS[0]: row(math.nan)}, {KEYS[0]: None}, RANKED, replace=False) == {}

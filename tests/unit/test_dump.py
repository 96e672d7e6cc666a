"""What `keyhole verify` is sent of a copy: chunks of a size that any message can have."""

from __future__ import annotations

import pytest

from keyhole.errors import TooLarge
from keyhole.model.epoch import START, Position
from keyhole.rpc.frames import MAX_MESSAGE_BYTES, MAX_VALUE_BYTES
from keyhole.stores.base import Advance, Batch
from services.state_server.read.dump import dump
from services.state_server.read.table import Table
from tests.support.states import key, names_in, standing, table

NAMES = names_in(0, 5)


def holding(*sizes: int) -> tuple[Table, list[tuple[bytes, bytes]]]:
    """Rows of these sizes in key group 0, and the copy that has them."""
    of = table()
    rows = sorted((key(name), bytes(size)) for name, size in zip(NAMES, sizes, strict=False))
    of.store.apply(Batch(rows, advances={0: Advance(START, Position(7, 1, 1, 0))}))
    of.publish(of.store.snapshot(), frozenset({0}), standing(1), {})
    return of, rows


def test_rows_of_all_sizes_come_in_chunks_that_are_carried() -> None:
    of, rows = holding(MAX_VALUE_BYTES, 500_000, MAX_VALUE_BYTES, 600_000, 10)
    chunks = list(dump(of, frozenset()))
    assert [row for chunk in chunks for row in zip(chunk.storage_keys, chunk.rows, strict=True)] == rows
    assert max(chunk.ByteSize() for chunk in chunks) < MAX_MESSAGE_BYTES
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {(chunk.key_group, chunk.offset, chunk.epoch) for chunk in chunks} == {(0, 7, 1)}


def test_a_row_that_is_not_carried_is_told_by_its_size() -> None:
    of, _ = holding(MAX_VALUE_BYTES + 1)
    with pytest.raises(TooLarge, match="a row of state app/counts takes 16,777,217 bytes"):
        list(dump(of, frozenset()))

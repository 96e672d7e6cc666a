"""Rows between Stage and Commit, and what they become."""

from __future__ import annotations

import math
import random
from contextlib import suppress

import pyarrow as pa
import pytest

from keyhole.coordinator.task_stream import chunks
from keyhole.errors import DuplicateKey, KeyTooLong, MalformedRequest, StageLost
from keyhole.model.epoch import START, Position
from keyhole.protocol.receipts import GroupReceipt
from keyhole.stores.base import Advance, Batch
from services.state_server.servicers.state_server import _decoder
from services.state_server.write.merge import changes, merge_of
from services.state_server.write.staged import StagedAttempt, winners
from tests.support.simulation import ipc
from tests.support.states import EPOCH, KEY_GROUPS, descriptor, group, hosted, key, names_in, row

UPSERT, RANKED = merge_of(descriptor()), merge_of(descriptor(order_by="n"))


def attempt(ordered: bool = False) -> StagedAttempt:
    return StagedAttempt("app/counts", KEY_GROUPS, 511, RANKED if ordered else UPSERT)


def test_receipts_count_rows_and_do_not_depend_on_their_order() -> None:
    names = [f"key-{number}" for number in range(50)]
    one, other = attempt(), attempt()
    one.add([key(name) for name in names], [row(1.0)] * 50)
    other.add([key(name) for name in reversed(names)], [row(1.0)] * 50)
    assert one.receipts() == other.receipts()
    assert sum(receipt.rows for receipt in one.receipts()) == 50
    assert sum(receipt.bytes for receipt in one.receipts()) == sum(len(key(name)) + len(row(1.0)) for name in names)


def test_other_rows_have_another_checksum() -> None:
    one, other = attempt(), attempt()
    one.add([key("a")], [row(1.0)])
    other.add([key("a")], [row(2.0)])
    assert one.receipts()[0].checksum != other.receipts()[0].checksum


def test_a_key_that_comes_twice_is_refused_without_order_by() -> None:
    with pytest.raises(DuplicateKey, match="order_by="):
        attempt().add([key("a"), key("a")], [row(1.0), row(1.0)])


@pytest.mark.parametrize(
    ("values", "best"),
    [([1.0, 3.0, 2.0], 3.0), ([None, 1.0], 1.0), ([1.0, math.nan, 2.0], math.nan), ([-math.inf, None], -math.inf)],
)
def test_order_by_ranks_as_spark_sorts(values: list[float | None], best: float) -> None:
    for arrangement in (values, values[::-1]):
        staged = attempt(ordered=True)
        staged.add([key("a")] * len(values), [row(value) for value in arrangement])
        assert staged.groups[key("a")[:2]].rows == {key("a"): row(best)}


@pytest.mark.parametrize("bad", [b"", b"\0", b"\0\0", KEY_GROUPS.to_bytes(2, "big") + b"x"])
def test_bytes_that_are_no_storage_key_are_refused(bad: bytes) -> None:
    with pytest.raises(MalformedRequest):
        attempt().add([bad], [row(1.0)])


def test_a_key_longer_than_the_store_takes_is_refused_with_the_limit() -> None:
    with pytest.raises(KeyTooLong, match="511"):
        attempt().add([key("x" * 600)], [row(1.0)])


def test_only_exactly_the_receipts_are_committed() -> None:
    staged = attempt()
    staged.add([key("a"), key("b")], [row(1.0), None])
    receipts = staged.receipts()
    assert set(winners([staged], receipts, "s")) == {group("a"), group("b")}
    wrong = [GroupReceipt(r.key_group, r.rows, r.bytes, r.checksum + 1) for r in receipts]
    for expected in (wrong, receipts[:-1], [*receipts, GroupReceipt(3, 1, 1, 1)]):
        with pytest.raises(StageLost):
            winners([staged], expected, "s")


def stored(rows: dict[str, float]) -> object:
    state = hosted()
    groups = {group(name) for name in rows}
    state.store.apply(
        Batch(
            puts=sorted((key(name), row(n)) for name, n in rows.items()),
            advances={g: Advance(START, Position(1, 1, 1, 0)) for g in groups},
        )
    )
    return state.store.snapshot()


def test_update_writes_all_rows_in_the_order_of_their_keys() -> None:
    first, second, _ = sorted(names_in(0), key=key)
    written = changes({key(second): row(1.0), key(first): None}, stored({}), 0, UPSERT, EPOCH, replace=False)  # type: ignore[arg-type]
    assert written == [(key(first), None), (key(second), row(1.0))]


def test_replace_deletes_what_is_absent_and_leaves_what_is_equal() -> None:
    same, changed, gone = names_in(0)
    snapshot = stored({same: 1.0, changed: 1.0, gone: 1.0})
    written = changes({key(same): row(1.0), key(changed): row(2.0)}, snapshot, 0, UPSERT, EPOCH, replace=True)  # type: ignore[arg-type]
    assert dict(written) == {key(changed): row(2.0), key(gone): None}


def test_order_by_keeps_the_stored_row_where_it_ranks_higher() -> None:
    lower, higher, new = names_in(0)
    snapshot = stored({lower: 5.0, higher: 5.0})
    rows: dict[bytes, bytes | None] = {key(lower): row(4.0), key(higher): row(6.0), key(new): row(None)}
    written = changes(rows, snapshot, 0, RANKED, EPOCH, replace=False)  # type: ignore[arg-type]
    assert dict(written) == {key(higher): row(6.0), key(new): row(None)}


def test_garbage_in_a_chunk_is_refused_or_read_and_never_ends_the_process() -> None:
    """Arrow's own reader does not look whether offsets lie inside of their buffers."""
    good = ipc({b"\0\0" + bytes([i]): bytes(i) for i in range(60)})
    choose = random.Random(2)
    for _ in range(2000):
        bad = bytearray(good[: choose.choice([len(good)] * 4 + [choose.randrange(len(good))])])
        for _ in range(choose.randint(1, 4)):
            if bad:
                bad[choose.randrange(len(bad))] = choose.randrange(256)
        with suppress(MalformedRequest):
            _decoder(bytes(bad))()


def test_large_rows_among_small_ones_do_not_meet_in_one_chunk() -> None:
    values = [b"v"] * 100_000
    values[5000:5004] = [bytes(8 << 20)] * 4
    batch = pa.record_batch({"storage_key": pa.array([b"key"] * 100_000), "value": pa.array(values, pa.binary())})
    parts = list(chunks(batch))
    assert sum(part.num_rows for part in parts) == 100_000
    assert max(part.nbytes for part in parts) < 9 << 20
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))

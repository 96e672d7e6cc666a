"""Changes that wait, as bytes, to become one write: what they are merged to, and how much is unpacked at a time."""

from __future__ import annotations

import random

import pytest

from keyhole.stores.base import Batch
from keyhole.stores.packed import BLOCK_CHANGES, RUN_CHANGES, KeyChange, PackedChanges, merged


def whole(*given: list[KeyChange]) -> Batch:
    return Batch.of_parts(merged([PackedChanges(changes) for changes in given]), {})


def test_the_last_change_of_each_key_is_left_in_the_order_of_keys() -> None:
    batch = whole(
        [(b"b", b"1"), (b"d", b"1"), (b"a", b"1"), (b"b", b"2")], [(b"c", b"2"), (b"a", None)], [(b"b", b"3")]
    )
    assert batch.puts == [(b"b", b"3"), (b"c", b"2"), (b"d", b"1")]
    assert batch.deletes == [b"a"]


def test_a_row_without_bytes_is_a_row() -> None:
    batch = whole([(b"a", b""), (b"b", None), (b"c", b"")])
    assert batch.puts == [(b"a", b""), (b"c", b"")]
    assert batch.deletes == [b"b"]


def test_nothing_is_merged_to_nothing() -> None:
    assert list(merged([])) == list(merged([PackedChanges([])])) == []


def test_they_are_a_sequence_in_an_order_in_which_the_last_one_counts() -> None:
    given = [(b"b", b"1"), (b"a", b"1"), (b"b", None), (b"a", b"2")]
    packed = PackedChanges(given)
    assert len(packed) == len(given)
    assert dict(packed) == dict(given)
    assert packed[0] == (b"a", b"1")
    assert packed[-1] == (b"b", None)


@pytest.mark.parametrize("count", [1, BLOCK_CHANGES, BLOCK_CHANGES + 1, RUN_CHANGES, 3 * RUN_CHANGES + 1])
def test_however_many_there_are_each_comes_once(count: int) -> None:
    keys = [b"%07d" % number for number in range(count)]
    changes: list[KeyChange] = [(key, b"old") for key in keys] + [(key, key) for key in keys]
    random.Random(count).shuffle(changes[:count])
    assert whole(changes[:count], changes[count:]).puts == [(key, key) for key in keys]


def test_a_key_that_fills_blocks_is_put_once_and_as_it_was_written_last() -> None:
    same: list[KeyChange] = [(b"b", b"%d" % number) for number in range(5 * BLOCK_CHANGES)]
    batch = whole([(b"a", b"1"), *same], [(b"c", b"1"), *same, (b"b", b"last")], [(b"d", b"1")])
    assert batch.puts == [(b"a", b"1"), (b"b", b"last"), (b"c", b"1"), (b"d", b"1")]


def test_they_take_what_their_bytes_take_and_are_given_up_as_they_are_merged() -> None:
    row = bytes(60)
    keys = [random.Random(number).randbytes(16) for number in range(4 * RUN_CHANGES)]
    packed = [PackedChanges([(key, row) for key in keys[at::4]]) for at in range(4)]
    bytes_each = packed[0].packed_bytes / RUN_CHANGES
    assert 76 <= bytes_each < 96
    parts = merged(packed)
    first, _ = next(parts)
    assert [(len(of), of.packed_bytes) for of in packed] == [(0, 0)] * 4
    # Neither a few, which would cost as much for each part as for each change, nor all.
    assert 10 * BLOCK_CHANGES <= len(first) <= len(keys) / 3
    assert sum(len(puts) for puts, _ in parts) == len(keys) - len(first)

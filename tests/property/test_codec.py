"""The key encoding keeps order, delimits itself and comes back; garbage never passes for a key or a row."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyhole.codec import KeyCodec, StateCodec, encode_row
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.types import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.key_strategies import COLUMNS, keys, order

COLUMNS_AND_TWO_KEYS = COLUMNS.flatmap(lambda columns: st.tuples(st.just(columns), keys(columns), keys(columns)))
ONE_COLUMN = (KeyColumn("k", KeyType.STRING),)
Drawn = tuple[tuple[KeyColumn, ...], tuple[Any, ...], tuple[Any, ...]]


def descriptor(columns: tuple[KeyColumn, ...]) -> StateDescriptor:
    value = ValueSchema(1, (ValueField("a", "bigint"), ValueField("b", "string")))
    return StateDescriptor("app", "state", "query", StateKind.VALUE, 64, columns, value)


@given(COLUMNS_AND_TWO_KEYS)
def test_encoded_keys_sort_as_the_keys_do(drawn: Drawn) -> None:
    columns, first, second = drawn
    codec = KeyCodec(columns)
    assert (codec.encode(first) < codec.encode(second)) == (order(first) < order(second))
    assert (codec.encode(first) == codec.encode(second)) == (first == second)


@given(COLUMNS_AND_TWO_KEYS)
def test_no_encoded_key_begins_another_one(drawn: Drawn) -> None:
    columns, first, second = drawn
    codec = KeyCodec(columns)
    if first != second:
        assert not codec.encode(second).startswith(codec.encode(first))


@given(COLUMNS_AND_TWO_KEYS)
def test_a_key_comes_back_from_its_storage_key(drawn: Drawn) -> None:
    """Zero-length keys (F38) among them."""
    columns, key, _ = drawn
    codec = StateCodec(descriptor(columns))
    storage_key = codec.storage_key(key if len(key) > 1 else key[0])
    assert codec.key(storage_key) == key
    assert int.from_bytes(storage_key[:2], "big") < 64


@given(COLUMNS, st.binary(max_size=24))
def test_bytes_are_a_key_or_are_refused(columns: tuple[KeyColumn, ...], data: bytes) -> None:
    """F45 to F62: too short, too long, nonsense."""
    codec = KeyCodec(columns)
    try:
        key = codec.decode(data)
    except MalformedRequest:
        return
    assert codec.encode(key) == data


@given(st.binary(max_size=24))
def test_bytes_are_a_row_or_are_refused(data: bytes) -> None:
    codec = StateCodec(descriptor(ONE_COLUMN))
    try:
        row = codec.decode_row(data)
    except ValueMismatch:
        return
    assert codec.decode_row(encode_row(1, [row.a, row.b])) == row


@given(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text(st.characters(exclude_categories=["Cs"])))
def test_a_row_comes_back(number: int | None, text: str | None) -> None:
    row = StateCodec(descriptor(ONE_COLUMN)).decode_row(encode_row(1, [number, text]))
    assert (row.a, row["b"]) == (number, text)

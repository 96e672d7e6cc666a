"""The key encoding keeps order, delimits itself and comes back; garbage never passes for a key or a row."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_codec import KeyCodec, end_of_prefix
from keyhole.encoding.key_reading import key_length
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
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


ENTRIES = st.tuples(COLUMNS, COLUMNS).flatmap(
    lambda columns: st.tuples(st.just(columns), keys(columns[0]), keys(columns[1]), st.integers(0, len(columns[1])))
)
Entry = tuple[tuple[tuple[KeyColumn, ...], tuple[KeyColumn, ...]], tuple[Any, ...], tuple[Any, ...], int]


def map_codec(columns: tuple[tuple[KeyColumn, ...], tuple[KeyColumn, ...]]) -> StateCodec:
    key, map_key = columns
    renamed = tuple(KeyColumn(f"m{number}", column.type) for number, column in enumerate(map_key))
    return StateCodec(msgspec.structs.replace(descriptor(key), kind=StateKind.MAP, map_key=renamed))


@given(ENTRIES)
def test_an_entrys_storage_key_is_its_keys_and_then_the_map_key(drawn: Entry) -> None:
    columns, key, map_key, first = drawn
    codec, alone = map_codec(columns), StateCodec(descriptor(columns[0]))
    one_or_tuple = key[0] if len(key) == 1 else key
    storage_key, prefix = codec.storage_key((*key, *map_key)), codec.prefix(one_or_tuple)
    # A key has the same key group and the same bytes in a state with map keys and in one without.
    assert prefix == alone.storage_key(one_or_tuple) == codec.prefix(key)
    assert storage_key == prefix + codec.entries.encode(map_key)
    assert codec.prefix_length(storage_key) == codec.prefix_length(prefix) == len(prefix)
    assert key_length(columns[0])(storage_key[2:]) == len(prefix) - 2
    assert (codec.entry(storage_key), codec.key(storage_key)) == ((key, map_key), key)
    begun = codec.entries.encode_first(map_key[:first])
    assert storage_key.startswith(prefix + begun)
    assert (begun == b"") == (first == 0)
    assert codec.entries.encode_first(map_key) == codec.entries.encode(map_key)


@given(ENTRIES, st.binary(max_size=24))
def test_bytes_begin_with_a_key_or_are_refused(drawn: Entry, data: bytes) -> None:
    codec = map_codec(drawn[0])
    for read in (codec.prefix_length, codec.key, codec.entry):
        try:
            found = read(b"\0\0" + data)
        except MalformedRequest:
            continue
        if read == codec.prefix_length:
            assert codec.keys.encode(codec.key(b"\0\0" + data)) == data[: found - 2]  # type: ignore[operator]
        elif read == codec.entry:
            key, map_key = found  # type: ignore[misc]
            assert codec.keys.encode(key) + codec.entries.encode(map_key) == data


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=6))
@example(b"\xff\xff", b"\xff\xff\xff")
@example(b"a\xff", b"b")
def test_the_end_of_a_prefix_stands_after_all_that_begin_so_and_before_all_others_after_them(
    prefix: bytes, other: bytes
) -> None:
    end = end_of_prefix(prefix)
    for data in (prefix, prefix + other, other):
        within = data >= prefix and (end is None or data < end)
        assert within == data.startswith(prefix)


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

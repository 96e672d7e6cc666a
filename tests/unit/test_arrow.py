"""By the column as one at a time: the same key groups, the same bytes."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import OP, SEQUENCE, encode
from keyhole.encoding.columnar_keys import key_groups, storage_keys
from keyhole.encoding.murmur3 import key_group
from keyhole.errors import KeyMismatch, NullKey, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.vectors import Vector, golden_vectors

ARROW = {
    KeyType.STRING: pa.string(),
    KeyType.BINARY: pa.binary(),
    KeyType.BOOLEAN: pa.bool_(),
    KeyType.SMALLINT: pa.int16(),
    KeyType.INT: pa.int32(),
    KeyType.BIGINT: pa.int64(),
    KeyType.DATE: pa.date32(),
    KeyType.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def by_types() -> dict[tuple[KeyType, ...], list[Vector]]:
    grouped: dict[tuple[KeyType, ...], list[Vector]] = {}
    for vector in golden_vectors():
        grouped.setdefault(tuple(vector.types), []).append(vector)
    return grouped


def columns_of(vectors: list[Vector]) -> list[pa.Array]:
    """With an offset into their buffers, as slices of larger batches have."""
    columns = zip(*(vector.values for vector in vectors), strict=True)
    arrays = [pa.array(c, ARROW[k]) for c, k in zip(columns, vectors[0].types, strict=True)]
    return [pa.concat_arrays([array, array]).slice(len(vectors)) for array in arrays]


@pytest.mark.parametrize("vectors", by_types().values(), ids=lambda vectors: ",".join(vectors[0].types))
def test_key_groups_and_storage_keys_are_the_vectors(vectors: list[Vector]) -> None:
    columns, types = columns_of(vectors), vectors[0].types
    for number in vectors[0].key_groups:
        assert key_groups(columns, types, number).tolist() == [vector.key_groups[number] for vector in vectors]
    expected = [vector.key_groups[64].to_bytes(2, "big") + vector.encoded for vector in vectors]
    assert storage_keys(columns, types, 64).to_pylist() == expected


def descriptor(*fields: ValueField, key: KeyType = KeyType.STRING) -> StateDescriptor:
    schema = ValueSchema(1, fields or (ValueField("v", "bigint"),))
    return StateDescriptor("app", "state", "query", StateKind.VALUE, 64, (KeyColumn("k", key),), schema)


def test_rows_come_back_as_they_were() -> None:
    moment = dt.datetime(2026, 11, 21, 1, 2, 3, 4, tzinfo=dt.UTC)
    fields: dict[str, tuple[str, pa.DataType, list[Any]]] = {
        "i": ("int", pa.int32(), [1, None]),
        "d": ("double", pa.float64(), [1.5, None]),
        "day": ("date", pa.date32(), [dt.date(1969, 1, 1), None]),
        "t": ("timestamp", pa.timestamp("us", "UTC"), [moment, None]),
        "n": ("timestamp_ntz", pa.timestamp("us"), [moment.replace(tzinfo=None), None]),
        "c": ("decimal(20,8)", pa.decimal128(20, 8), [Decimal("0E-8"), None]),
        "b": ("binary", pa.binary(), [b"\0\xff", None]),
        "l": ("array<date>", pa.list_(pa.date32()), [[dt.date(2000, 1, 1), None], None]),
        "m": ("map<string,timestamp>", pa.map_(pa.string(), pa.timestamp("us", "UTC")), [[("k", moment)], None]),
        "s": (
            "struct<x:int,y:array<int>>",
            pa.struct({"x": pa.int32(), "y": pa.list_(pa.int32())}),
            [{"x": 1, "y": [2]}, None],
        ),
    }
    state = descriptor(*(ValueField(name, kind) for name, (kind, _, _) in fields.items()))
    arrays = {name: pa.array(values, kind) for name, (_, kind, values) in fields.items()}
    encoded = encode(pa.record_batch({"k": pa.array(["a", "b"]), **arrays}), state)
    codec = StateCodec(state)
    assert encoded.column("storage_key").to_pylist() == [codec.storage_key("a"), codec.storage_key("b")]
    first, second = (codec.decode_row(row) for row in encoded.column("value").to_pylist())
    assert (first.i, first.d, first.day, first.t) == (1, 1.5, dt.date(1969, 1, 1), moment)
    assert (first.n, first.c, first.b) == (moment.replace(tzinfo=None), Decimal("0E-8"), b"\0\xff")
    assert (first.l, dict(first.m), first.s.asdict()) == (
        (dt.date(2000, 1, 1), None),
        {"k": moment},
        {"x": 1, "y": [2]},
    )
    assert all(second[name] is None for name in second)


def test_an_empty_batch_is_an_empty_batch() -> None:
    batch = pa.record_batch({"k": pa.array([], pa.string()), "v": pa.array([], pa.int64())})
    assert encode(batch, descriptor()).num_rows == 0


def test_large_strings_are_strings() -> None:
    batch = pa.record_batch({"k": pa.array(["a"], pa.large_string()), "v": pa.array([1])})
    assert encode(batch, descriptor()).column("storage_key")[0].as_py() == StateCodec(descriptor()).storage_key("a")


@pytest.mark.parametrize("length", [1023, 1024, 1025, 1026, 1027, 1028, 5000])
def test_long_strings_hash_as_one_at_a_time(length: int) -> None:
    values = ["short", "é" * (length // 2) + "x" * (length % 2), ""]
    kinds = [KeyType.INT, KeyType.STRING]
    expected = [key_group((number, value), kinds, 65_536) for number, value in enumerate(values)]
    assert key_groups([pa.array([0, 1, 2], pa.int32()), pa.array(values)], kinds, 65_536).tolist() == expected


def not_utf8() -> pa.Array:
    """As Spark sends cast(binary as string)."""
    return pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())


def test_a_string_key_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(KeyMismatch, match="key column k has a string that is not UTF-8"):
        encode(pa.record_batch({"k": not_utf8(), "v": pa.array([1, 2])}), descriptor())


def test_a_string_value_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ValueMismatch, match="value column v has a string that is not UTF-8"):
        encode(pa.record_batch({"k": pa.array(["a", "b"]), "v": not_utf8()}), descriptor(ValueField("v", "string")))


def test_null_keys_are_refused_with_their_number() -> None:
    batch = pa.record_batch({"k": pa.array(["a", None, None]), "v": pa.array([1, 2, 3])})
    with pytest.raises(NullKey, match=r"key column k is null in 2 rows.*broken JSON, is a row of nulls"):
        encode(batch, descriptor())


def test_a_key_column_of_another_type_is_refused() -> None:
    batch = pa.record_batch({"k": pa.array([[1]]), "v": pa.array([1])})
    with pytest.raises(KeyMismatch, match="key column k"):
        encode(batch, descriptor())


def test_a_null_in_a_field_that_never_is_null_is_refused() -> None:
    batch = pa.record_batch({"k": pa.array(["a"]), "v": pa.array([None], pa.int64())})
    with pytest.raises(ValueMismatch, match="value column v is null in 1 rows"):
        encode(batch, descriptor(ValueField("v", "bigint", nullable=False)))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (KeyType.INT, pa.array(["12"])),
        (KeyType.INT, pa.array([1 << 40])),
        (KeyType.BIGINT, pa.array([1], pa.int32())),
        (KeyType.TIMESTAMP, pa.array([0], pa.timestamp("us"))),
    ],
)
def test_a_key_column_is_never_converted_to_another_type(kind: KeyType, column: pa.Array) -> None:
    batch = pa.record_batch({"k": column, "v": pa.array([1])})
    with pytest.raises(
        KeyMismatch, match=f"key column k is of type {kind}; Arrow's {re.escape(str(column.type))}"
    ) as caught:
        encode(batch, descriptor(key=kind))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("bigint", pa.array(["x"])),
        ("decimal(10,2)", pa.array([Decimal("1.5")], pa.decimal128(10, 3))),
        ("array<int>", pa.array([["x"]])),
        ("struct<a:int>", pa.array([{"b": 1}], pa.struct({"b": pa.int32()}))),
        ("map<string,int>", pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))),
        ("timestamp", pa.array([0], pa.timestamp("us"))),
    ],
)
def test_a_value_column_of_another_type_is_refused_by_both_types(name: str, column: pa.Array) -> None:
    batch = pa.record_batch({"k": pa.array(["a"]), "v": column})
    with pytest.raises(ValueMismatch, match="value column v is of type"):
        encode(batch, descriptor(ValueField("v", name)))


def test_a_missing_column_is_refused_with_those_there_are() -> None:
    with pytest.raises(KeyMismatch, match="one column k; it has v"):
        encode(pa.record_batch({"v": pa.array([1])}), descriptor())
    with pytest.raises(ValueMismatch, match="one column v; it has k"):
        encode(pa.record_batch({"k": pa.array(["a"])}), descriptor())


FAR_DAY = pa.array([0, 10_000_000], pa.int32()).cast(pa.date32())
FAR_MOMENT = pa.array([0, -(10**18)], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(("kind", "column"), [(KeyType.DATE, FAR_DAY), (KeyType.TIMESTAMP, FAR_MOMENT)])
def test_a_key_that_python_has_no_date_for_is_refused(kind: KeyType, column: pa.Array) -> None:
    with pytest.raises(KeyMismatch, match="years 1 to 9999"):
        encode(pa.record_batch({"k": column, "v": pa.array([1, 2])}), descriptor(key=kind))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("date", FAR_DAY),
        ("timestamp", FAR_MOMENT),
        ("array<date>", pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), FAR_DAY)),
    ],
)
def test_a_value_that_python_has_no_date_for_is_refused(name: str, column: pa.Array) -> None:
    with pytest.raises(ValueMismatch, match="years 1 to 9999"):
        encode(pa.record_batch({"k": pa.array(["a", "b"]), "v": column}), descriptor(ValueField("v", name)))


def test_the_last_date_and_moment_there_are_come_back() -> None:
    last = dt.datetime.max.replace(tzinfo=dt.UTC)
    state = descriptor(ValueField("d", "date"), ValueField("t", "timestamp"))
    moments = pa.array([last], pa.timestamp("us", "UTC"))
    encoded = encode(pa.record_batch({"k": pa.array(["a"]), "d": pa.array([dt.date.max]), "t": moments}), state)
    row = StateCodec(state).decode_row(encoded.column("value")[0].as_py())
    assert (row.d, row.t) == (dt.date.max, last)


def test_what_rows_clear_does_not_depend_on_how_they_are_cut_into_batches() -> None:
    batch = pa.record_batch({"k": ["a", "a", "b", "a"], "v": [1, 2, 3, 4], OP: ["clear", "put", "clear", "clear"]})
    of = descriptor()
    whole = sorted(encode(batch, of).to_pylist(), key=str)
    parts = [row for start in range(4) for row in encode(batch.slice(start, 1), of).to_pylist()]
    assert sorted(parts, key=str) == whole
    assert [row["value"] for row in whole].count(None) == 3


def map_state(kind: StateKind = StateKind.MAP, *, nullable: bool = True) -> StateDescriptor:
    """k -> m (of a map) -> v."""
    of = descriptor(ValueField("v", "bigint", nullable))
    map_key = (KeyColumn("m", KeyType.INT),) if kind is StateKind.MAP else ()
    return msgspec.structs.replace(of, kind=kind, map_key=map_key)


def changes(batch: pa.RecordBatch, of: StateDescriptor) -> list[tuple[bytes, Any]]:
    """Storage keys without their key group, and values."""
    codec = StateCodec(of)
    encoded = encode(batch, of).to_pylist()
    return [(row["storage_key"][2:], row["value"] and codec.decode_row(row["value"]).v) for row in encoded]


def test_a_row_of_a_map_puts_or_deletes_one_entry_or_clears_the_key() -> None:
    batch = pa.record_batch(
        {
            "k": ["a", "a", "a", "b"],
            "m": pa.array([1, 2, None, 0], pa.int32()),
            "v": pa.array([7, None, None, None], pa.int64()),
            OP: ["put", "delete", "clear", None],
        }
    )
    assert changes(batch, map_state()) == [
        (b"a\0\0\x80\0\0\1", 7),
        (b"a\0\0\x80\0\0\2", None),
        (b"a\0\0", None),
        (b"b\0\0\x80\0\0\0", None),
    ]


def test_what_deletes_and_clears_needs_no_values_and_what_puts_does() -> None:
    columns = {"k": ["a", "a"], "m": pa.array([1, 2], pa.int32()), "v": pa.nulls(2, pa.int64())}
    of = map_state(nullable=False)
    assert len(changes(pa.record_batch(columns | {OP: ["delete", "clear"]}), of)) == 2
    with pytest.raises(ValueMismatch, match="value column v is null in 1 rows"):
        changes(pa.record_batch(columns | {OP: ["delete", "put"]}), of)


def test_what_clears_needs_no_map_key_and_what_puts_or_deletes_does() -> None:
    columns = {"k": ["a"], "m": pa.nulls(1, pa.int32()), "v": [1]}
    assert changes(pa.record_batch(columns | {OP: ["clear"]}), map_state()) == [(b"a\0\0", None)]
    for op in ("put", "delete"):
        with pytest.raises(NullKey, match="map key column m is null in 1 rows"):
            changes(pa.record_batch(columns | {OP: [op]}), map_state())


def test_a_map_key_column_that_is_missing_or_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(KeyMismatch, match="one column m; it has k, v"):
        encode(pa.record_batch({"k": ["a"], "v": [1]}), map_state())
    with pytest.raises(KeyMismatch, match="map key column m is of type int; Arrow's int64"):
        encode(pa.record_batch({"k": ["a"], "m": pa.array([1], pa.int64()), "v": [1]}), map_state())


def test_a_row_of_a_list_is_appended_or_replaces_all_that_was_there() -> None:
    of = map_state(StateKind.LIST)
    batch = pa.record_batch(
        {
            "k": ["a", "a", "b", "c", "c"],
            "v": [1, 2, 3, 4, 5],
            SEQUENCE: pa.array([10, 11, 12, 13, 14], pa.int64()),
            OP: [None, "append", "replace", "clear", "put"],
        }
    )

    def position(number: int) -> bytes:
        return b"\x80" + number.to_bytes(7, "big")

    assert changes(batch, of) == [
        (b"a\0\0" + position(10), 1),
        (b"a\0\0" + position(11), 2),
        (b"b\0\0", None),
        (b"b\0\0" + position(12), 3),
        (b"c\0\0", None),
        (b"c\0\0" + position(14), 5),
    ]


@pytest.mark.parametrize(
    ("kind", "op"),
    [(StateKind.MAP, "append"), (StateKind.VALUE, "replace"), (StateKind.MAP, "upsert"), (StateKind.MAP, "")],
)
def test_an_op_that_the_kind_does_not_take_is_refused_with_those_it_does(kind: StateKind, op: str) -> None:
    batch = pa.record_batch({"k": ["a", "a"], "m": pa.array([1, 2], pa.int32()), "v": [1, 2], OP: ["put", op]})
    with pytest.raises(ValueMismatch, match=f"{op!r} in its op column; rows of a {kind} state can put, delete, clear"):
        encode(batch, map_state(kind))

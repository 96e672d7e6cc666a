"""Arrow batches as storage keys and rows, a column at a time: what a Spark task does with its rows first.

The same bytes and the same key groups as codec.py and placement.py give for one key; tests hold them together.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyhole.arrow_times import as_numbers, not_utf8, out_of_range
from keyhole.errors import KeyholeError, KeyMismatch, NullKey, ValueMismatch
from keyhole.placement import SEED, hash_bytes
from keyhole.stored import deletion
from keyhole.types import LIST_POSITION, KeyColumn, KeyType, StateDescriptor, StateKind, ValueField
from keyhole.value_types import DAYS, MICROS, optional, value_type

STORAGE_KEY, VALUE = "storage_key", "value"

OP = "_keyhole_op"
"""The column that says what a row does; without it, and where it is null, a row is put."""

SEQUENCE = "_keyhole_sequence"
"""The column of a list state's rows by which those of one task are told apart, and ordered: int64."""


class Op(enum.StrEnum):
    """What a row does to its key, or to its entry of the key."""

    PUT = "put"
    DELETE = "delete"
    CLEAR = "clear"
    APPEND = "append"
    REPLACE = "replace"


OPS: dict[StateKind, tuple[Op, ...]] = {
    StateKind.VALUE: (Op.PUT, Op.DELETE, Op.CLEAR),
    StateKind.BROADCAST: (Op.PUT, Op.DELETE, Op.CLEAR),
    StateKind.REDUCING: (Op.PUT, Op.DELETE, Op.CLEAR),
    StateKind.AGGREGATING: (Op.PUT, Op.DELETE, Op.CLEAR),
    StateKind.MAP: (Op.PUT, Op.DELETE, Op.CLEAR),
    StateKind.LIST: (Op.APPEND, Op.PUT, Op.REPLACE, Op.CLEAR, Op.DELETE),
}
"""What the rows of each kind of state can do."""

_Words = npt.NDArray[np.uint32]

_ARROW: dict[KeyType, pa.DataType] = {
    KeyType.STRING: pa.string(),
    KeyType.BINARY: pa.binary(),
    KeyType.BOOLEAN: pa.bool_(),
    KeyType.SMALLINT: pa.int16(),
    KeyType.INT: pa.int32(),
    KeyType.BIGINT: pa.int64(),
    KeyType.DATE: pa.date32(),
    KeyType.TIMESTAMP: pa.timestamp("us", "UTC"),
}
# Longer strings are hashed one at a time: by the column, one of 1 MB among 10,000 short ones took 8 s.
_LONG = 1024
# The whole numbers by which Spark hashes, and we order, each type.
_NUMBER = {
    KeyType.SMALLINT: pa.int16(),
    KeyType.INT: pa.int32(),
    KeyType.BIGINT: pa.int64(),
    KeyType.DATE: pa.int32(),
    KeyType.TIMESTAMP: pa.int64(),
}

# Some write "decimal(10, 2)".
_DECIMAL_BLANKS = re.compile(r",\s+(?=-?\d+\))")

_SPARK_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}


def encode(batch: pa.RecordBatch, descriptor: StateDescriptor) -> pa.RecordBatch:
    """A batch's rows as a state server takes them: storage_key: binary and value: binary, null where it deletes.

    Where deletions have an order (`keep_deleted_ms`) the value is keyhole.stored.deletion in place of null.

    A row may put (the default), delete, clear or, in a list, append or replace; docs/spark.md tells what each does.
    What clears a key has the storage key's beginning alone, up to the end of the key.

    Args:
        batch: Has the key and value columns, by name, and perhaps OP; others are passed over. Of a list also SEQUENCE.

    Raises:
        NullKey: A key column has a null.
        KeyMismatch: A key column is missing or of another type, or has a date that is out of range, or a string that is
            not UTF-8.
        ValueMismatch: The same of a field; or one that isn't nullable has a null.
    """
    return _encoder(descriptor).encode(batch)


def key_names(batch: pa.RecordBatch, descriptor: StateDescriptor) -> pa.BinaryArray:
    """The storage key of each row, without the map key. Raises as `encode`."""
    return _encoder(descriptor).names(batch, whole=False)


def row_ops(batch: pa.RecordBatch, descriptor: StateDescriptor) -> list[str]:
    """What each row does: an Op. Raises ValueMismatch where rows of the state can't."""
    ops = _checked_ops(batch, descriptor)
    return [Op.PUT] * batch.num_rows if ops is None else ops.to_pylist()


def _checked_ops(batch: pa.RecordBatch, descriptor: StateDescriptor) -> pa.Array | None:
    """None: all of them put."""
    if OP not in batch.schema.names or batch.column(OP).null_count == batch.num_rows:
        return None
    ops = batch.column(OP).fill_null(Op.PUT)
    taken = OPS[descriptor.kind]
    wrong = pc.invert(pc.is_in(ops, _ops(*taken)))
    if pc.any(wrong).as_py():
        raise ValueMismatch(
            f"a row says {ops.filter(wrong)[0].as_py()!r} in its op column; rows of a {descriptor.kind} state can "
            f"{', '.join(taken)}",
            state=descriptor.state,
        )
    return ops


def ipc_stream(batch: pa.RecordBatch | pa.Table) -> bytes:
    """The rows with their schema, as Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def key_groups(columns: Sequence[pa.Array], types: Sequence[KeyType], number: int) -> npt.NDArray[np.uint16]:
    """The key group of each row: placement.key_group, a column at a time."""
    hashes: _Words = np.full(len(columns[0]), SEED, dtype=np.uint32)
    for column, kind in zip(columns, types, strict=True):
        hashes = _hash(column, kind, hashes)
    groups: npt.NDArray[np.uint16] = np.mod(hashes.view(np.int32).astype(np.int64), number).astype(np.uint16)
    return groups


def storage_keys(
    columns: Sequence[pa.Array], types: Sequence[KeyType], number: int, hashed: int | None = None
) -> pa.BinaryArray:
    """The storage key of each row: StateCodec.storage_key, a column at a time.

    Args:
        hashed: How many of the columns, the first ones, are the key; default: all. The others are the map key.
    """
    groups = key_groups(columns[:hashed], types[:hashed], number).astype(">u2")
    parts = [_fixed(groups.tobytes(), 2, len(groups))]
    parts += [_key_part(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pc.binary_join_element_wise(*parts, b"")


@functools.lru_cache(maxsize=64)
def _encoder(descriptor: StateDescriptor) -> _Encoder:
    return _Encoder(descriptor)


class _Encoder:
    """What can be prepared once per state."""

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor
        self._encode = msgspec.msgpack.Encoder().encode
        # A deletion may come without an order, whatever rows have.
        self._order = next(
            (
                msgspec.structs.replace(field, nullable=True)
                for field in descriptor.value.fields
                if descriptor.keep_deleted_ms and field.name == descriptor.order_by
            ),
            None,
        )

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ops = _checked_ops(batch, self._descriptor)
        if ops is None:
            return self._put(batch)
        places = pa.array(np.arange(batch.num_rows))
        parts = []
        # What clears comes before what the same row puts.
        # An element of a list can't be named: what deletes there clears.
        is_list = self._descriptor.kind is StateKind.LIST
        for make, which in (
            (self._clear, (Op.CLEAR, Op.REPLACE, *([Op.DELETE] if is_list else []))),
            (self._put, (Op.PUT, Op.APPEND, Op.REPLACE)),
            (self._delete, () if is_list else (Op.DELETE,)),
        ):
            chosen = pc.is_in(ops, _ops(*which))
            parts.append((make(batch.filter(chosen)), places.filter(chosen)))
        changes = pa.Table.from_batches([change for change, _ in parts])
        order = np.argsort(np.concatenate([places.to_numpy() for _, places in parts]), kind="stable")
        return changes.take(pa.array(order)).combine_chunks().to_batches()[0]

    def _put(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        descriptor = self._descriptor
        fields = [_stored(_column(batch, field, "value", ValueMismatch), field) for field in descriptor.value.fields]
        version = itertools.repeat(descriptor.value.version, batch.num_rows)
        rows = list(map(self._encode, zip(version, *fields, strict=True)))
        return _change(self.names(batch, whole=True), pa.array(rows, pa.binary()))

    def _delete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _change(self.names(batch, whole=True), self._deletions(batch))

    def _deletions(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        if self._order is None:
            return pa.nulls(batch.num_rows, pa.binary())
        orders = _stored(_column(batch, self._order, "order_by", ValueMismatch), self._order)
        return pa.array(list(map(deletion, orders)), pa.binary())

    def _clear(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # One for each row, also where a key has several: how many there are is part of the checksum, and must not
        # depend on which of them came in one batch.
        return _change(self.names(batch, whole=False), self._deletions(batch))

    def names(self, batch: pa.RecordBatch, *, whole: bool) -> pa.BinaryArray:
        descriptor = self._descriptor
        columns = [(column, "key") for column in descriptor.key]
        if whole:
            columns += [(column, "map key") for column in descriptor.map_key]
        parts = [_key_column(_column(batch, column, role, KeyMismatch), column, role) for column, role in columns]
        types = [column.type for column, _ in columns]
        if whole and descriptor.kind is StateKind.LIST:
            parts.append(batch.column(SEQUENCE))
            types.append(LIST_POSITION.type)
        return storage_keys(parts, types, descriptor.key_groups, len(descriptor.key))


def _change(names: pa.BinaryArray, rows: pa.BinaryArray) -> pa.RecordBatch:
    return pa.record_batch({STORAGE_KEY: names, VALUE: rows})


def _ops(*ops: Op) -> pa.Array:
    return pa.array(map(str, ops), pa.string())


def _key_column(column: pa.Array, described: KeyColumn, role: str = "key") -> pa.Array:
    if column.null_count:
        raise NullKey(
            f"{role} column {described.name} is null in {column.null_count} rows; a state has no null keys. Filter "
            "them out, or give them a key of their own",
            column=described.name,
        )
    _check_range(column, described, role, KeyMismatch)
    if described.type is KeyType.STRING and not _is_utf8(column):
        # It could be stored, but no client could ask for it.
        raise not_utf8(f"{role} column {described.name}", KeyMismatch, described.name)
    wanted = _ARROW[described.type]
    return column if column.type == wanted else column.cast(wanted)


def _stored(column: pa.Array, field: ValueField) -> list[Any]:
    """A value column as what MessagePack takes (docs/values.md)."""
    if column.null_count and not field.nullable:
        raise ValueMismatch(
            f"value column {field.name} is null in {column.null_count} rows, and the state says it never is",
            column=field.name,
        )
    _check_range(column, field, "value", ValueMismatch)
    # What is a date or a time itself is checked by now.
    convert = None if pa.types.is_temporal(column.type) else value_type(field.type).to_stored
    try:
        values: list[Any] = as_numbers(column).to_pylist()
        return values if convert is None else list(map(optional(convert), values))
    except UnicodeDecodeError:
        raise not_utf8(f"value column {field.name}", ValueMismatch, field.name) from None
    except (ValueError, OverflowError):
        # A date inside an array, map or struct. Not as the cause: it may hold the value.
        raise out_of_range(f"value column {field.name}", ValueMismatch, field.name) from None


def _column(batch: pa.RecordBatch, described: KeyColumn | ValueField, role: str, error: type[KeyholeError]) -> pa.Array:
    """The column, if it is of the described type."""
    if batch.schema.names.count(described.name) != 1:
        raise error(
            f"the batch must have one column {described.name}; it has {', '.join(batch.schema.names)}",
            column=described.name,
        )
    column = batch.column(described.name)
    if spark_name(column.type) != _DECIMAL_BLANKS.sub(",", described.type):
        raise error(
            f"{role} column {described.name} is of type {described.type}; Arrow's {column.type} does not fit it",
            column=described.name,
            type=described.type,
        )
    return column


def spark_name(kind: pa.DataType) -> str:
    """Spark's name of what an Arrow type holds; Arrow's own for types that Spark doesn't send."""
    if kind in _SPARK_NAMES:
        return _SPARK_NAMES[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{spark_name(kind.key_type)},{spark_name(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in kind)}>"
    return str(kind)


def _check_range(column: pa.Array, described: KeyColumn | ValueField, role: str, error: type[KeyholeError]) -> None:
    if not pa.types.is_temporal(column.type):
        return
    there = DAYS if pa.types.is_date32(column.type) else MICROS
    ends = pc.min_max(as_numbers(column))
    if ends["min"].is_valid and not (ends["min"].as_py() in there and ends["max"].as_py() in there):
        raise out_of_range(f"{role} column {described.name}", error, described.name)


def _is_utf8(column: pa.Array) -> bool:
    try:
        # Arrow checks it in this direction only; Spark never does (a cast of binary to string keeps any bytes).
        column.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _key_part(column: pa.Array, kind: KeyType) -> pa.BinaryArray:
    if kind in (KeyType.STRING, KeyType.BINARY):
        escaped = pc.replace_substring(column.cast(pa.binary()), pattern=b"\0", replacement=b"\0\xff")
        return pc.binary_join_element_wise(escaped, b"\0\0", b"")
    if kind is KeyType.BOOLEAN:
        return _fixed(column.cast(pa.uint8()).to_numpy().tobytes(), 1, len(column))
    values = column.cast(_NUMBER[kind]).to_numpy()
    width = values.dtype.itemsize
    unsigned = values.view(f"u{width}") ^ np.array(1 << 8 * width - 1, dtype=f"u{width}")
    return _fixed(unsigned.astype(f">u{width}").tobytes(), width, len(column))


def _fixed(data: bytes, width: int, count: int) -> pa.BinaryArray:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def _hash(column: pa.Array, kind: KeyType, h: _Words) -> _Words:
    if kind in (KeyType.STRING, KeyType.BINARY):
        return _hash_bytes(column.cast(pa.binary()), h)
    if kind is KeyType.BOOLEAN:
        return _finished(_mixed(h, column.cast(pa.uint8()).to_numpy().astype(np.uint32)), np.uint32(4))
    values = column.cast(_NUMBER[kind]).to_numpy()
    if values.dtype.itemsize < 8:
        return _finished(_mixed(h, values.astype(np.int32).view(np.uint32)), np.uint32(4))
    words = values.view(np.uint64)
    low, high = (words & np.uint64(0xFFFF_FFFF)).astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
    return _finished(_mixed(_mixed(h, low), high), np.uint32(8))


def _hash_bytes(column: pa.BinaryArray, h: _Words) -> _Words:
    _, offset_buffer, data_buffer = column.buffers()
    if not len(column):
        return h
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    h, seeds = h.copy(), h
    # Word by word, over the rows that are that long: as many steps as the longest string has words.
    for at in range(0, min(int(lengths.max()), _LONG) & ~3, 4):
        rows = np.flatnonzero(lengths >= at + 4)
        place = starts[rows] + at
        word = sum(data[place + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
        h[rows] = _mixed(h[rows], word)
    for tail in range(3):
        rows = np.flatnonzero(lengths & 3 > tail)
        byte = data[starts[rows] + (lengths[rows] & ~3) + tail]
        h[rows] = _mixed(h[rows], byte.view(np.int8).astype(np.int32).view(np.uint32))
    h = _finished(h, lengths.astype(np.uint32))
    for row in np.flatnonzero(lengths > _LONG):
        h[row] = hash_bytes(data[starts[row] : starts[row] + lengths[row]].tobytes(), int(seeds[row]))
    return h


def _mixed(h: _Words, word: Any) -> _Words:
    word = word * np.uint32(0xCC9E2D51)
    word = (word << np.uint32(15) | word >> np.uint32(17)) * np.uint32(0x1B873593)
    h = h ^ word
    return (h << np.uint32(13) | h >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(h: _Words, length: Any) -> _Words:
    h = h ^ length
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)

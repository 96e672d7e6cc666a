"""Arrow batches as storage keys and rows, a column at a time: what a Spark task does with its rows first.

The same bytes and the same key groups as codec.py and murmur3.py give for one key; tests hold them together.
"""

from __future__ import annotations

import enum
import functools
import itertools

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyhole.encoding.columnar_keys import storage_keys
from keyhole.encoding.columnar_types import checked_column, key_column, stored_values
from keyhole.encoding.envelope import deletion
from keyhole.errors import KeyMismatch, ValueMismatch
from keyhole.model.state import LIST_POSITION, StateDescriptor, StateKind

STORAGE_KEY, VALUE = "storage_key", "value"

OP = "_keyhole_op"
"""The column that says what a row does; without it, and where it is null, a row is put."""

SEQUENCE = "_keyhole_sequence"
"""The column of a list state's rows that identifies and orders those of one task: int64."""


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


def encode(batch: pa.RecordBatch, descriptor: StateDescriptor) -> pa.RecordBatch:
    """A batch's rows as a state server takes them. Of a row that clears and puts, what clears comes first.

    Where deletions have an order (`keep_deleted_ms`) the value is keyhole.encoding.envelope.deletion in place of null.
    A row may put (the default), delete, clear or, in a list, append or replace; docs/kinds-reference.md says what each
    does. What clears a key has the storage key's beginning alone, up to the end of the key.

    Args:
        batch: Has the key and value columns, by name, and perhaps OP; others are passed over. Of a list also SEQUENCE.

    Returns:
        Two columns: storage_key: binary, and value: binary, null where the row deletes.

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
        fields = [
            stored_values(checked_column(batch, field, "value", ValueMismatch), field)
            for field in descriptor.value.fields
        ]
        version = itertools.repeat(descriptor.value.version, batch.num_rows)
        rows = list(map(self._encode, zip(version, *fields, strict=True)))
        return _change(self.names(batch, whole=True), pa.array(rows, pa.binary()))

    def _delete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _change(self.names(batch, whole=True), self._deletions(batch))

    def _deletions(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        if self._order is None:
            return pa.nulls(batch.num_rows, pa.binary())
        orders = stored_values(checked_column(batch, self._order, "order_by", ValueMismatch), self._order)
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
        parts = [key_column(checked_column(batch, column, role, KeyMismatch), column, role) for column, role in columns]
        types = [column.type for column, _ in columns]
        if whole and descriptor.kind is StateKind.LIST:
            parts.append(batch.column(SEQUENCE))
            types.append(LIST_POSITION.type)
        return storage_keys(parts, types, descriptor.key_groups, len(descriptor.key))


def _change(names: pa.BinaryArray, rows: pa.BinaryArray) -> pa.RecordBatch:
    return pa.record_batch({STORAGE_KEY: names, VALUE: rows})


def _ops(*ops: Op) -> pa.Array:
    return pa.array(map(str, ops), pa.string())

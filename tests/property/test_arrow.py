"""By the column as one row at a time, for every kind of state: what rows put, delete, clear, append and replace."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import OP, OPS, SEQUENCE, Op, encode
from keyhole.encoding.row_codec import encode_row
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.key_strategies import COLUMNS, keys

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
KINDS = [kind for kind in StateKind if kind is not StateKind.AGGREGATING]


class Drawn(NamedTuple):
    """A state, and rows for it: key, map key, number, op (None: not said)."""

    of: StateDescriptor
    rows: list[tuple[tuple[Any, ...], tuple[Any, ...], int | None, Op | None]]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    kind = draw(st.sampled_from(KINDS))
    map_key = tuple(KeyColumn(f"m{n}", c.type) for n, c in enumerate(draw(COLUMNS))) if kind is StateKind.MAP else ()
    key_groups = 1 if kind is StateKind.BROADCAST else 16
    of = StateDescriptor(
        "app",
        "state",
        "main",
        kind,
        key_groups,
        draw(COLUMNS),
        ValueSchema(1, (ValueField("n", "bigint"),)),
        map_key=map_key,
    )
    op = st.none() | st.sampled_from(OPS[kind])
    row = st.tuples(keys(of.key), keys(of.map_key), st.none() | st.integers(0, 99), op)
    return Drawn(of, draw(st.lists(row, max_size=12)))


def batch_of(of: StateDescriptor, rows: list[Any], text: pa.DataType) -> pa.RecordBatch:
    """As Spark sends it: what a row does not need is null."""
    columns: dict[str, pa.Array] = {}
    for part, described in ((0, of.key), (1, of.map_key)):
        for number, column in enumerate(described):
            nulls = {Op.CLEAR} if part else set()
            values = [None if row[3] in nulls else row[part][number] for row in rows]
            columns[column.name] = pa.array(values, ARROW[column.type])
    columns["n"] = pa.array([row[2] for row in rows], pa.int64())
    columns[SEQUENCE] = pa.array(range(len(rows)), pa.int64())
    columns[OP] = pa.array([row[3] and row[3].value for row in rows], text)
    return pa.record_batch(columns)


def expected(of: StateDescriptor, rows: list[Any]) -> list[tuple[bytes, bytes | None]]:
    codec = StateCodec(of)
    changes: list[tuple[bytes, bytes | None]] = []
    for place, (key, map_key, number, op) in enumerate(rows):
        position = (place,) if of.kind is StateKind.LIST else ()
        storage_key = codec.storage_key((*key, *map_key, *position))
        # A broadcast state is scanned whole, but what clears names a key there, too.
        prefix = storage_key if of.kind is StateKind.BROADCAST else codec.prefix(key)
        if op in (Op.CLEAR, Op.REPLACE) or (op is Op.DELETE and of.kind is StateKind.LIST):
            changes.append((prefix, None))
        elif op is Op.DELETE:
            changes.append((storage_key, None))
        if op in (None, Op.PUT, Op.APPEND, Op.REPLACE):
            changes.append((storage_key, encode_row(1, [number])))
    return changes


@given(drawn(), st.sampled_from([pa.string(), pa.large_string()]))
def test_rows_become_the_changes_that_they_say_in_their_order(drawn: Drawn, text: pa.DataType) -> None:
    encoded = encode(batch_of(drawn.of, drawn.rows, text), drawn.of)
    changes = zip(encoded.column("storage_key").to_pylist(), encoded.column("value").to_pylist(), strict=True)
    assert list(changes) == expected(drawn.of, drawn.rows)


@given(drawn())
def test_a_column_of_ops_that_says_nothing_is_none(drawn: Drawn) -> None:
    rows = [(*row[:3], None) for row in drawn.rows]
    batch = batch_of(drawn.of, rows, pa.string())
    for ops in (pa.nulls(len(rows)), pa.nulls(len(rows), pa.string())):
        said = batch.set_column(batch.schema.get_field_index(OP), OP, ops)
        assert encode(said, drawn.of) == encode(batch.drop_columns([OP]), drawn.of)

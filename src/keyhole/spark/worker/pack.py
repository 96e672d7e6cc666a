"""Many change rows as one value of a binary column: Arrow's stream format.

Of the rows that a processor gives out for a key Spark makes a batch of Arrow, whose every column costs time on both
sides of its socket. Changes of many keys in one value of one column cost next to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from keyhole.encoding.columnar import Op, ipc_stream
from keyhole.encoding.columnar_keys import key_groups
from keyhole.model.state import KeyColumn
from keyhole.spark.exposed import CHANGES_COLUMN, STATE_COLUMN
from keyhole.spark.worker.worker_setup import hasten_rows

PARTITION = "_keyhole_partition"
ORDER = "_keyhole_order"

_PIECE_BYTES = 1 << 20
_ROW_BYTES = 256  # about what a row takes beside its values

_REPACKED = pa.schema(
    [(STATE_COLUMN, pa.string()), (CHANGES_COLUMN, pa.binary()), (PARTITION, pa.int32()), (ORDER, pa.int64())]
)
REPACKED_SCHEMA = from_arrow_schema(_REPACKED)


class Packer:
    """Gathers change rows of one state, in pieces of about a megabyte.

    Args:
        schema: Of its change rows: ExposedState.changes.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._rows: list[tuple[Op, Sequence[Any], dict[str, Any]]] = []
        self._bytes = 0
        self._pieces: list[bytes] = []

    def add(self, op: Op, key: Sequence[Any], entry: dict[str, Any]) -> None:
        """One row. `entry`: the state's own columns, as far as the operation has them."""
        self._rows.append((op, key, entry))
        self._bytes += _ROW_BYTES + _size(key) + _size(entry)
        if self._bytes >= _PIECE_BYTES:
            self._pack()

    def take(self, *, whole: bool = True) -> list[bytes]:
        """The pieces in order, and with `whole` the rows that don't fill one yet."""
        if whole and self._rows:
            self._pack()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _pack(self) -> None:
        ops, keys, entries = zip(*self._rows, strict=True)
        self._rows, self._bytes = [], 0
        columns = [ops, *zip(*keys, strict=True)]
        columns += ([entry.get(name) for entry in entries] for name in self._schema.names[len(columns) :])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._pieces.append(ipc_stream(pa.RecordBatch.from_arrays(arrays, schema=self._schema)))


def _size(value: Any) -> int:
    """About how many bytes it takes."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values())) + 8 * len(value)
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


def unpacked(changes: pa.Array) -> Iterator[pa.RecordBatch]:
    """The change rows of a column of them, in order."""
    for packed in changes:
        with pa.ipc.open_stream(packed.as_buffer()) as rows:
            yield from rows


def keyhole_change_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of STATE_COLUMN and CHANGES_COLUMN, unpacked. Spark's plan has this name for it."""
    hasten_rows()
    for batch in batches:
        yield from unpacked(batch.column(CHANGES_COLUMN))


def repacked(key: Sequence[KeyColumn], partitions: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the same changes, packed apart by the partition in which Spark's hash puts their keys.

    Args:
        key: The grouping key.
        batches: STATE_COLUMN, CHANGES_COLUMN and ORDER, which what is made of a row keeps.

    Yields:
        REPACKED_SCHEMA.
    """
    hasten_rows()
    for batch in batches:
        of_row = zip(batch.column(STATE_COLUMN).to_pylist(), batch.column(ORDER).to_pylist(), strict=True)
        parts = [
            (state, ipc_stream(rows.filter(pa.array(places == partition))), partition, order)
            for (state, order), rows in zip(of_row, unpacked(batch.column(CHANGES_COLUMN)), strict=True)
            for places in [_places(rows, key, partitions)]
            for partition in np.unique(places)
        ]
        columns = zip(*parts, strict=True) if parts else [()] * len(_REPACKED)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _REPACKED, strict=True)], schema=_REPACKED
        )


def _places(rows: pa.RecordBatch, key: Sequence[KeyColumn], partitions: int) -> np.ndarray:
    """Rows with a null in their key go anywhere: staging refuses them."""
    columns = [rows.column(part.name) for part in key]
    whole = np.logical_and.reduce([pc.is_valid(column).to_numpy(zero_copy_only=False) for column in columns])
    places = np.zeros(rows.num_rows, np.int32)
    chosen = [column.filter(pa.array(whole)) for column in columns]
    places[whole] = key_groups(chosen, [part.type for part in key], partitions)
    return places

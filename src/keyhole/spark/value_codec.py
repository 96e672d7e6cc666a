"""Values that a job encodes itself: one binary field, which Keyhole passes on untouched."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

ENCODED = "value"
"""The one field of such a state's value: binary."""


class ValueCodec(Protocol):
    """How a row's value columns become bytes. Runs in Spark's Python workers; readers decode what they get themselves.

    A batch that is run again must give the same bytes.
    """

    def encode(self, row: Any) -> bytes:
        """Args: row: The value columns as attributes."""


@dataclass(frozen=True)
class Encoding:
    """A codec, and the columns of the rows that it gets. Picklable if the codec is."""

    codec: ValueCodec
    columns: tuple[str, ...]

    def encoded(self, batches: Iterable[pa.RecordBatch], deleting: str) -> Iterator[pa.RecordBatch]:
        """With the column ENCODED in place of its own.

        Args:
            deleting: Name of the column that says what a row does; where it says delete or clear, nothing is encoded.
        """
        make: Any = namedtuple("Row", self.columns, rename=True)._make  # type: ignore[attr-defined]
        for batch in batches:
            names = batch.schema.names
            ops = batch.column(deleting).to_pylist() if deleting in names else [None] * batch.num_rows
            rows = map(make, zip(*(batch.column(name).to_pylist() for name in self.columns), strict=True))
            values = [
                b"" if op in ("delete", "clear") else self.codec.encode(row) for op, row in zip(ops, rows, strict=True)
            ]
            kept = batch.select([name for name in names if name not in self.columns])
            yield kept.append_column(ENCODED, pa.array(values, pa.binary()))

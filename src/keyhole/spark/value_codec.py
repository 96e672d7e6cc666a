"""Values that a job encodes itself: one binary field, which Keyhole passes on untouched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from keyhole.arrow import Op, row_ops
from keyhole.errors import ValueMismatch
from keyhole.spark.rows import rows_of
from keyhole.types import StateDescriptor

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

    def encoded(self, batches: Iterable[pa.RecordBatch], descriptor: StateDescriptor) -> Iterator[pa.RecordBatch]:
        """With the column ENCODED in place of its own; of rows that delete or clear nothing is encoded.

        Raises:
            ValueMismatch: The codec gives something else than bytes.
        """
        for batch in batches:
            rows = zip(row_ops(batch, descriptor), rows_of(batch, self.columns), strict=True)
            values = [b"" if op in (Op.DELETE, Op.CLEAR) else self.codec.encode(row) for op, row in rows]
            for value in values:
                if not isinstance(value, (bytes, bytearray)):
                    raise ValueMismatch(
                        f"encode of the codec of state {descriptor.state!r} gave a {type(value).__name__}; it must "
                        "give bytes",
                        state=descriptor.state,
                    )
            kept = batch.select([name for name in batch.schema.names if name not in self.columns])
            yield kept.append_column(ENCODED, pa.array(values, pa.binary()))

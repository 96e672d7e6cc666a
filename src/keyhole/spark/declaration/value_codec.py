"""Values that a job encodes itself: one binary field, which Keyhole passes on untouched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from keyhole.encoding.columnar import Op, row_ops
from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor, ValueField
from keyhole.spark.declaration.class_version import check_class, version_of
from keyhole.spark.declaration.user_rows import rows_that_put

ENCODED = "value"
"""The field that holds these bytes, in the value of a state with a codec: binary."""

VERSION = "version"
"""The field beside it, of a codec that has a version: int."""
_FIRST_VERSION = msgspec.msgpack.encode(1)


class ValueCodec(Protocol):
    """How a row's value columns become bytes. Readers get these bytes and decode them themselves.

        class PriceCodec:
            def encode(self, row):
                return row.amount.to_bytes(8, "big")

    Runs in Spark's Python workers, in any number of them at once, so it must be picklable or importable there. A batch
    that is run again must give the same bytes: nothing here may depend on time or chance. What it raises ends the
    query.

    A codec may have a `version`, a whole number that grows, for readers to know by which form the bytes were made. Each
    value then has a second field, `version`: that of the codec that made it, or 1 where that one named none.
    """

    def encode(self, row: Any) -> bytes:
        """The bytes of one row's value; anything else than bytes is refused with ValueMismatch.

        Args:
            row: The value columns as attributes, as Python's values (docs/values.md).
        """


def encoded_fields(*, versioned: bool) -> tuple[ValueField, ...]:
    """The value of a state with a codec."""
    fields = (ValueField(ENCODED, "binary", nullable=False),)
    # What an earlier codec has made, which said nothing, is read as of version 1.
    return (*fields, ValueField(VERSION, "int", nullable=False, default=_FIRST_VERSION)) if versioned else fields


@dataclass(frozen=True)
class Encoding:
    """A codec, and the columns of the rows that it gets. Picklable if the codec is."""

    codec: ValueCodec
    columns: tuple[str, ...]

    def encoded(self, batches: Iterable[pa.RecordBatch], descriptor: StateDescriptor) -> Iterator[pa.RecordBatch]:
        """With ENCODED, and VERSION, in place of its own columns; of rows that delete or clear nothing is encoded.

        Raises:
            ValueMismatch: The codec gives something else than bytes.
            InvalidConfiguration: The driver has another version of it.
        """
        check_class(descriptor, self.codec)
        versioned = any(field.name == VERSION for field in descriptor.value.fields)
        for batch in batches:
            puts = [op not in (Op.DELETE, Op.CLEAR) for op in row_ops(batch, descriptor)]
            rows = rows_that_put(batch, puts, self.columns)
            values = [self.codec.encode(next(rows)) if put else b"" for put in puts]
            for value in values:
                if not isinstance(value, (bytes, bytearray)):
                    raise ValueMismatch(
                        f"encode of the codec of state {descriptor.state!r} gave a {type(value).__name__}; it must "
                        "give bytes",
                        state=descriptor.state,
                    )
            kept = batch.select([name for name in batch.schema.names if name not in self.columns])
            kept = kept.append_column(ENCODED, pa.array(values, pa.binary()))
            if versioned:
                versions = pa.array([version_of(self.codec)] * len(values), pa.int32())
                kept = kept.append_column(VERSION, versions)
            yield kept

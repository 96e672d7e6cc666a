"""Rows between Spark's JVM and the worker that runs a transformWithState over rows.

Spark's own way writes an Arrow batch for each key, mostly of no rows, and takes each cell out of a batch by itself.
Here the rows of many keys leave in one batch, and a batch's columns are taken whole. The rows are the same, in the
same order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyspark.sql.types
from pyspark.sql.pandas.serializers import ArrowStreamUDFSerializer, TransformWithStateInPySparkRowSerializer
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode as Mode
from pyspark.sql.types import Row

MOST_ROWS = 256
MOST_BYTES = 1 << 20
"""Of text and bytes, from which on rows leave with those that are there, once their key is done."""

Call = tuple[Mode, Any, Any]
"""What a processor is called for, the key, its rows."""


def use_larger_batches() -> None:
    """From now on rows leave this process in larger batches. Idempotent."""
    serializer: Any = TransformWithStateInPySparkRowSerializer
    serializer.load_stream = calls
    serializer.dump_stream = write
    # Each value that the state server answers with has its schema beside it, as JSON.
    types: Any = pyspark.sql.types
    if not hasattr(types._parse_datatype_json_string, "cache_info"):
        types._parse_datatype_json_string = functools.lru_cache(maxsize=256)(types._parse_datatype_json_string)


def calls(self: Any, stream: IO[bytes]) -> Iterator[Call]:
    """Each key with its rows, which the JVM has sorted; then the timers, and the end."""
    batches: Iterable[pa.RecordBatch] = super(ArrowStreamUDFSerializer, self).load_stream(stream)
    for key, rows in itertools.groupby(_keyed(batches, self.key_offsets), key=_first):
        yield Mode.PROCESS_DATA, key, (row for _, row in rows)
    yield Mode.PROCESS_TIMER, None, None
    yield Mode.COMPLETE, None, None


def _keyed(batches: Iterable[pa.RecordBatch], key: Iterable[int]) -> Iterator[tuple[tuple[Any, ...], Row]]:
    offsets = list(key)
    for batch in batches:
        row = Row(*batch.schema.names)
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield tuple(values[offset] for offset in offsets), row(*values)


def _first(of: tuple[Any, Row]) -> Any:
    return of[0]


def write(self: Any, results: Iterator[Any], stream: IO[bytes]) -> Any:
    """In place of a serializer's dump_stream: the same rows, in batches of another size."""
    dump: Any = ArrowStreamUDFSerializer.dump_stream
    return dump(self, _batches(results), stream)


def _batches(results: Iterable[Any]) -> Iterator[tuple[pa.RecordBatch, Any]]:
    """Args: results: For each call its rows, and the operator's type."""
    kind = schema = None
    rows: list[dict[str, Any]] = []
    size = 0
    for ((of_call, spark_type),) in results:
        if kind is None:
            kind = to_arrow_type(spark_type, timezone="UTC", prefers_large_types=False)
            schema = pa.schema(list(kind))
        for row in of_call:
            rows.append(row.asDict(True))
            size += sum(len(value) for value in row if isinstance(value, bytes | bytearray | str))
        if len(rows) >= MOST_ROWS or size >= MOST_BYTES:
            yield pa.RecordBatch.from_pylist(rows, schema=schema), kind
            rows, size = [], 0
    # One there must be: by it the JVM knows that all went well.
    if kind is not None:
        yield pa.RecordBatch.from_pylist(rows, schema=schema), kind

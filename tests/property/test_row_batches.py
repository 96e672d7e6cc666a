"""What passes between Spark's JVM and a transformWithState over rows: the same as by Spark's own way."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import SpecialLengths, read_int
from pyspark.sql import Row
from pyspark.sql.pandas.serializers import TransformWithStateInPySparkRowSerializer
from pyspark.sql.types import ArrayType, StringType, StructType

from keyhole.spark.worker.row_batches import MOST_BYTES, MOST_ROWS, calls, write

pytestmark = pytest.mark.core

COLUMNS = (
    StructType()
    .add("key", "string")
    .add("number", "long")
    .add("real", "double")
    .add("time", "timestamp")
    .add("bytes", "binary")
    .add("list", ArrayType(StringType()))
    .add("of", StructType().add("a", "integer"))
)
SAMPLES = st.tuples(
    st.text(max_size=2),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001 - as Spark's worker gives them
    st.none() | st.binary(max_size=3),
    st.none() | st.lists(st.text(max_size=2), max_size=2),
    st.none() | st.builds(Row, a=st.integers(0, 9)),
)
# Spark's own, whatever a worker in this process would do.
OWN = TransformWithStateInPySparkRowSerializer.__dict__

Write = Callable[[Any, Iterator[Any], Any], Any]


def serializer() -> Any:
    made = TransformWithStateInPySparkRowSerializer(arrow_max_records_per_batch=10_000)
    made.key_offsets = [0, 1]
    return made


def written(how: Write, of_calls: list[list[Row]]) -> list[pa.RecordBatch]:
    stream = io.BytesIO()
    how(serializer(), iter([[(iter(rows), COLUMNS)] for rows in of_calls]), stream)
    stream.seek(0)
    assert read_int(stream) == SpecialLengths.START_ARROW_STREAM
    return list(pa.ipc.open_stream(stream))


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def row(values: tuple[Any, ...]) -> Row:
    named = dict(zip(COLUMNS.names, values, strict=True))
    if named["time"] is not None:
        named["time"] = named["time"].replace(tzinfo=UTC)
    return Row(**named)


@given(st.lists(st.lists(SAMPLES.map(row), max_size=3), min_size=1, max_size=8))
def test_the_jvm_gets_the_rows_of_all_calls_in_their_order(of_calls: list[list[Row]]) -> None:
    ours, theirs = written(write, of_calls), written(OWN["dump_stream"], of_calls)
    assert rows_of(ours) == rows_of(theirs)
    assert ours[0].schema == theirs[0].schema


def made(number: int, content: bytes = b"") -> Row:
    return row((str(number), number, 0.5, None, content, None, None))


def test_rows_leave_many_together_but_neither_all_nor_too_large() -> None:
    few = written(write, [[made(number)] for number in range(3 * MOST_ROWS)])
    assert [batch.num_rows for batch in few] == [MOST_ROWS] * 3 + [0]
    large = written(write, [[made(number, bytes(MOST_BYTES // 2))] for number in range(6)])
    assert [batch.num_rows for batch in large] == [2, 2, 2, 0]


def test_a_task_that_gives_nothing_out_says_that_all_went_well() -> None:
    assert [batch.num_rows for batch in written(write, [[], []])] == [0]


@given(st.lists(st.lists(SAMPLES, min_size=1, max_size=5), max_size=4))
def test_a_processor_gets_each_key_once_with_its_rows_in_their_order(batches: list[list[tuple[Any, ...]]]) -> None:
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("number", pa.int64()),
            ("real", pa.float64()),
            ("time", pa.timestamp("us")),
            ("bytes", pa.binary()),
            ("list", pa.list_(pa.string())),
            ("of", pa.struct([("a", pa.int32())])),
        ]
    )
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, schema) as writer:
        for batch in batches:
            rows = [row(values).asDict(recursive=True) for values in batch]
            for one in rows:
                one["time"] = one["time"] and one["time"].replace(tzinfo=None)
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))

    def taken(how: Callable[[Any, Any], Iterator[Any]]) -> list[Any]:
        stream.seek(0)
        return [(mode, key, list(rows or ())) for mode, key, rows in how(serializer(), stream)]

    assert taken(calls) == taken(OWN["load_stream"])

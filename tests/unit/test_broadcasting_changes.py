"""What a batch is told of a broadcast state that has changed. Without a running Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from keyhole.spark.broadcasting import changes


def table(rows: list[dict[str, Any]], **columns: pa.DataType) -> pa.Table:
    schema = pa.schema([("k", pa.string()), *columns.items()], {b"keyhole_key": json.dumps(["k"]).encode()})
    return pa.Table.from_pylist(rows, schema)


NOTHING = pa.table({"k": pa.array([], pa.string())}, metadata={b"keyhole_key": b"[]"})


def test_the_first_batch_is_told_everything() -> None:
    rows = [{"k": "a", "v": 1}, {"k": "b", "v": None}]
    expected = [row | {"op": "put"} for row in rows]
    assert changes(None, table(rows, v=pa.int64())) == expected
    assert changes(NOTHING, table(rows, v=pa.int64())) == expected
    assert changes(None, NOTHING) == changes(NOTHING, NOTHING) == []


def test_what_is_new_another_or_gone_is_told_and_nothing_else() -> None:
    nan = float("nan")
    before = [{"k": "same", "v": 1.0}, {"k": "nan", "v": nan}, {"k": "other", "v": 1.0}, {"k": "gone", "v": 3.0}]
    now = [{"k": "new", "v": None}, {"k": "nan", "v": nan}, {"k": "other", "v": 2.0}, {"k": "same", "v": 1.0}]
    assert changes(table(before, v=pa.float64()), table(now, v=pa.float64())) == [
        {"k": "new", "v": None, "op": "put"},
        {"k": "other", "v": 2.0, "op": "put"},
        {"k": "gone", "v": 3.0, "op": "delete"},
    ]


def test_a_column_that_is_added_dropped_or_widened_changes_no_entry() -> None:
    before = table([{"k": "a", "v": 1, "old": "x"}, {"k": "gone", "v": 2}], v=pa.int32(), old=pa.string())
    now = table([{"k": "a", "v": 1, "added": "y"}], v=pa.int64(), added=pa.string())
    assert changes(before, now) == [{"k": "gone", "v": 2, "added": None, "op": "delete"}]

"""Rows for users' functions."""

from __future__ import annotations

import pyarrow as pa

from keyhole.spark.declaration.user_rows import rows_of

BATCH = pa.record_batch({"a": [1, 2], "of it": ["x", "y"]})


def test_columns_are_attributes_and_those_whose_names_are_no_words_are_told_apart_by_their_places() -> None:
    assert [(row.a, row._1) for row in rows_of(BATCH, ("a", "of it"))] == [(1, "x"), (2, "y")]


def test_rows_without_columns_are_as_many_as_there_are() -> None:
    assert [tuple(row) for row in rows_of(BATCH, ())] == [(), ()]

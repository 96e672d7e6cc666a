"""A batch's rows as users' functions in Spark's tasks get them: the columns as attributes."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyhole.row import attributes


def rows_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[Any]:
    """The rows, with these columns as `keyhole.row.attributes` names them; `count` and `index` are like others."""
    make: Any = namedtuple("Row", attributes(columns), rename=True)._make  # type: ignore[attr-defined]
    values = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    # A function may be asked to do no more than to count them.
    return map(make, values if columns else itertools.repeat((), batch.num_rows))

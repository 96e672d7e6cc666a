"""A batch's rows as users' functions in Spark's tasks get them: the columns as attributes."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyhole.encoding.arrow_times import to_python
from keyhole.encoding.row import attributes


def rows_that_put(batch: pa.RecordBatch, puts: Sequence[bool], columns: Sequence[str]) -> Iterator[Any]:
    """As `rows_of`, without those that delete or clear, whose columns may hold what no value could.

    Args:
        puts: Of each row of the batch, whether it is none of these.
    """
    return rows_of(batch if all(puts) else batch.filter(pa.array(puts)), columns)


def rows_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[Any]:
    """The rows, with these columns as `encoding.row.attributes` names them; `count` and `index` are like others.

    Timestamps are in UTC, in whatever session: what a function makes of them may depend on nothing else.

    Raises:
        ValueMismatch: A date or timestamp outside the years 1 to 9999, or a string that is not UTF-8.
    """
    make: Any = namedtuple("Row", attributes(columns), rename=True)._make  # type: ignore[attr-defined]
    values = zip(*(to_python(batch.column(name), name) for name in columns), strict=True)
    # A function may be asked to do no more than to count them.
    return map(make, values if columns else itertools.repeat((), batch.num_rows))

"""Dates and times in Arrow columns, at any depth: as whole numbers, or in UTC.

Spark sends timestamps with the session's time zone, and pyarrow makes Python's of them in that zone: in it the first
or the last hours of the years 1 to 9999 have no date.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from keyhole.errors import KeyholeError, ValueMismatch

_MICROS = "us"


def as_numbers(column: pa.Array) -> pa.Array:
    """Timestamps as microseconds (int64), dates as days (int32), since 1970; all else as it is."""
    return _cast(_cast(column, _in_micros), _number)


def in_utc(column: pa.Array) -> pa.Array:
    """Timestamps that have a time zone in UTC, which they are the same moments in; all else as it is."""
    return _cast(column, _utc)


def to_python(column: pa.Array, name: str, error: type[KeyholeError] = ValueMismatch) -> list[Any]:
    """The column as Python's values.

    Args:
        error: What is raised where there is a date or time outside the years 1 to 9999, or a string that is not UTF-8.
    """
    try:
        values: list[Any] = in_utc(column).to_pylist()
    except UnicodeDecodeError:
        raise not_utf8(f"column {name}", error, name) from None
    except (ValueError, OverflowError):
        # Not as the cause: it may hold the value.
        raise out_of_range(f"column {name}", error, name) from None
    return values


def out_of_range(what: str, error: type[KeyholeError], name: str) -> KeyholeError:
    """The error for `what`, the column of that name."""
    return error(
        f"{what} has a date or timestamp outside the years 1 to 9999 (UTC), which no state can hold; filter or replace "
        "it",
        column=name,
    )


def not_utf8(what: str, error: type[KeyholeError], name: str) -> KeyholeError:
    """The error for `what`, the column of that name."""
    return error(
        f"{what} has a string that is not UTF-8; declare the column as binary, or replace it (Spark: make_valid_utf8)",
        column=name,
    )


def _utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def _in_micros(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(_MICROS, kind.tz) if pa.types.is_timestamp(kind) else kind


def _number(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _cast(column: pa.Array, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.Array:
    wanted = _replaced(column.type, leaf)
    return column if column.type == wanted else column.cast(wanted)


def _replaced(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with other leaves."""

    def field(of: pa.Field) -> pa.Field:
        return of.with_type(_replaced(of.type, leaf))

    if pa.types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([field(of) for of in kind])
    return leaf(kind)

"""The reducers of a reducing state, by name: how the rows of one key become one row, field by field. Pure.

Every reducer is commutative and associative, so the rows of an epoch may come in any order, and from any number of
tasks. Null brings nothing and takes nothing away, as in Spark's aggregates; a field is null until a value has come.

    sum     whole numbers as bigint, decimals ten digits wider, float and double as double; as Spark's sum
    min     the lowest, as Spark sorts: NaN above all
    max     the highest, likewise
    count   how many rows had a value, bigint; each row brings 1 or 0 (see Reducer.of_presence)

Sums of doubles depend, in their last digits, on the order in which rows come: a sum that must be exact is a decimal's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from keyhole.errors import ValueMismatch
from keyhole.types import ValueField

Fields = Sequence[Any]
"""A row's fields, as they are stored (docs/values.md)."""

Reduce = Callable[[Fields, Fields], Any]
"""What one field becomes of two rows."""

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_FLOATING = ("float", "double")
_RANKED = (*_WHOLE, *_FLOATING, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_MOST_DIGITS = 38  # of Spark's decimals
_BIGINT = 1 << 63
# Two decimals of 38 digits and whatever scale add up exactly in it.
_EXACT = Context(prec=2 * _MOST_DIGITS + 2)


@dataclass(frozen=True)
class Reducer:
    """One entry of the table.

    Attributes:
        takes: The types that it takes, in words.
        stored: From a column's type to the type of the field that it is merged into; None: it takes no such column.
        reduce: Makes the function that merges the field at a position of the rows.
        of_presence: What is merged is not the column's value, but 1 where it has one and 0 where it is null.
    """

    takes: str
    stored: Callable[[str], str | None]
    reduce: Callable[[ValueField, int], Reduce]
    of_presence: bool = False


def _summed_type(kind: str) -> str | None:
    if kind in _WHOLE:
        return "bigint"
    if kind in _FLOATING:
        return "double"
    if (digits := _DECIMAL.fullmatch(kind)) is not None:
        return f"decimal({min(_MOST_DIGITS, int(digits[1]) + 10)},{digits[2]})"
    return None


def _ranked_type(kind: str) -> str | None:
    return kind if kind in _RANKED or _DECIMAL.fullmatch(kind) else None


def _sum(field: ValueField, position: int) -> Reduce:
    add = _adding(field)
    return _where_both(position, add)


def _adding(field: ValueField) -> Callable[[Any, Any], Any]:
    if field.type in _FLOATING:
        return lambda one, other: one + other
    if field.type in _WHOLE:

        def add_whole(one: int, other: int) -> int:
            total = one + other
            if not -_BIGINT <= total < _BIGINT:
                raise _overflow(field)
            return total

        return add_whole
    digits = _DECIMAL.fullmatch(field.type)
    assert digits is not None, f"sum takes no {field.type}"
    limit = Decimal(10) ** (int(digits[1]) - int(digits[2]))

    def add_decimals(one: str, other: str) -> str:
        total = _EXACT.add(Decimal(one), Decimal(other))
        if abs(total) >= limit:
            raise _overflow(field)
        return format(total, "f")

    return add_decimals


def _overflow(field: ValueField) -> ValueMismatch:
    return ValueMismatch(
        f"the sum in field {field.name} does not fit its type {field.type} any more. Sum a wider type (a decimal of "
        "38 digits), or clear the key before it grows so far",
        field=field.name,
        type=field.type,
    )


def _min(field: ValueField, position: int) -> Reduce:
    rank = _ranking(field)
    return _where_both(position, lambda one, other: one if rank(one) <= rank(other) else other)


def _max(field: ValueField, position: int) -> Reduce:
    rank = _ranking(field)
    return _where_both(position, lambda one, other: one if rank(one) >= rank(other) else other)


def _ranking(field: ValueField) -> Callable[[Any], Any]:
    if field.type in _FLOATING:
        # The sign tells -0.0 from 0.0, which are equal: which of them stays must not depend on the order of rows.
        return lambda value: (1, 0.0, 0.0) if math.isnan(value) else (0, value, math.copysign(1.0, value))
    if _DECIMAL.fullmatch(field.type):
        return Decimal
    return lambda value: value


def _where_both(position: int, merge: Callable[[Any, Any], Any]) -> Reduce:
    def reduce(one: Fields, other: Fields) -> Any:
        a, b = one[position], other[position]
        if a is None:
            return b
        return a if b is None else merge(a, b)

    return reduce


_ANY_RANKED = "a number, boolean, string, binary, date or timestamp"

REDUCERS: Mapping[str, Reducer] = {
    "sum": Reducer("a number", _summed_type, _sum),
    "min": Reducer(_ANY_RANKED, _ranked_type, _min),
    "max": Reducer(_ANY_RANKED, _ranked_type, _max),
    "count": Reducer("anything", lambda _: "bigint", _sum, of_presence=True),
}

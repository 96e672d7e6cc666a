"""The reducers of a reducing state, by name: how the rows of one key become one row, field by field. Pure.

An epoch's rows are merged commutatively and associatively, so they may come in any order, and from any number of tasks.
Null brings nothing and takes nothing away, as in Spark's aggregates; a field is null until a value has come.

    sum          whole numbers as bigint, decimals ten digits wider, float and double as double; as Spark's sum
    min          the lowest, as Spark sorts: NaN above all
    max          the highest, likewise
    count        how many rows had a value, bigint; each row brings 1 or 0 (see Reducer.of_presence)
    any, all     whether one of the booleans, or each of them, is true
    first, last  the value of the first or last epoch that had one; of several in one epoch, the one whose stored bytes
                 are the lowest or highest, since an epoch's rows have no order
    min_by(at),  the value of the row with the lowest or highest `at`, null where that row had none; of several, the one
    max_by(at)   whose stored bytes are the lowest or highest. `at` is another field, reduced by min or max

Sums of doubles depend, in their last digits, on the order in which rows come: a sum that must be exact is a decimal's.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple

import msgspec

from keyhole.errors import ValueMismatch
from keyhole.model.state import ValueField

RowFields = Sequence[Any]
"""A row's fields, as they are stored (docs/values.md)."""

Reduce = Callable[[RowFields, RowFields], Any]
"""What one field becomes of two rows."""


class Place(NamedTuple):
    """A field, and where it stands in a row."""

    field: ValueField
    position: int


@dataclass(frozen=True)
class Merging:
    """How one field of a state is merged.

    Attributes:
        staged: Of two rows of one epoch; their order doesn't matter.
        onto: Of the stored row, and what the epoch amounts to.
    """

    staged: Reduce
    onto: Reduce


_WHOLE = ("tinyint", "smallint", "int", "bigint")
_FLOATING = ("float", "double")
_RANKED = (*_WHOLE, *_FLOATING, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_MOST_DIGITS = 38  # of Spark's decimals
_BIGINT = 1 << 63
# Two decimals of 38 digits and whatever scale add up exactly in it.
_EXACT = Context(prec=2 * _MOST_DIGITS + 2)

_encode = msgspec.msgpack.Encoder().encode
_bits = struct.Struct(">d").pack


@dataclass(frozen=True)
class Reducer:
    """One entry of `REDUCERS`.

    Attributes:
        takes: The types that it takes, in words.
        stored: From a column's type to the type of the field that it is merged into; None: it doesn't take a column of
            that type.
        reduce: Makes the function that merges the field at a place of the rows; the other place is that of the field
            which it goes `by`, if it does.
        onto: Likewise with the stored row, where that is another thing.
        of_presence: What is merged is not the column's value, but 1 where it has one and 0 where it is null.
        by: Of `min_by` and `max_by`: the reducer that the other field must have. Empty: there is no other one.
    """

    takes: str
    stored: Callable[[str], str | None]
    reduce: Callable[[Place, Place], Reduce]
    onto: Callable[[Place, Place], Reduce] | None = None
    of_presence: bool = False
    by: str = ""


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


def _boolean_type(kind: str) -> str | None:
    return kind if kind == "boolean" else None


def _sum(place: Place, _: Place) -> Reduce:
    return _where_both(place.position, _adding(place.field))


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


def _min(place: Place, _: Place) -> Reduce:
    rank = _ranking(place.field)
    return _where_both(place.position, lambda one, other: one if rank(one) <= rank(other) else other)


def _max(place: Place, _: Place) -> Reduce:
    rank = _ranking(place.field)
    return _where_both(place.position, lambda one, other: one if rank(one) >= rank(other) else other)


def _lowest_bytes(place: Place, _: Place) -> Reduce:
    return _where_both(place.position, lambda one, other: min(one, other, key=_encode))


def _highest_bytes(place: Place, _: Place) -> Reduce:
    return _where_both(place.position, lambda one, other: max(one, other, key=_encode))


def _stays(place: Place, _: Place) -> Reduce:
    return _where_both(place.position, lambda stored, new: stored)


def _is_replaced(place: Place, _: Place) -> Reduce:
    return _where_both(place.position, lambda stored, new: new)


def _min_by(place: Place, by: Place) -> Reduce:
    return _by(place, by, min)


def _max_by(place: Place, by: Place) -> Reduce:
    return _by(place, by, max)


def _by(place: Place, by: Place, choose: Callable[..., RowFields]) -> Reduce:
    rank, position = _ranking(by.field), place.position

    def order(row: RowFields) -> tuple[Any, bytes]:
        return rank(row[by.position]), _encode(row[position])

    def reduce(one: RowFields, other: RowFields) -> Any:
        if one[by.position] is None:
            return other[position]
        return (one if other[by.position] is None else choose(one, other, key=order))[position]

    return reduce


def _ranking(field: ValueField) -> Callable[[Any], Any]:
    if field.type in _FLOATING:
        # -0.0 and 0.0 are equal, and differ by the sign: which of them stays must not depend on the order of rows.
        # So must not which of two NaNs, whose bits differ.
        return lambda value: (1, _bits(value)) if math.isnan(value) else (0, value, math.copysign(1.0, value))
    if _DECIMAL.fullmatch(field.type):
        return Decimal
    return lambda value: value


def _where_both(position: int, merge: Callable[[Any, Any], Any]) -> Reduce:
    def reduce(one: RowFields, other: RowFields) -> Any:
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
    "any": Reducer("a boolean", _boolean_type, _max),
    "all": Reducer("a boolean", _boolean_type, _min),
    "first": Reducer("anything", lambda kind: kind, _lowest_bytes, onto=_stays),
    "last": Reducer("anything", lambda kind: kind, _highest_bytes, onto=_is_replaced),
    "min_by": Reducer("anything", lambda kind: kind, _min_by, by="min"),
    "max_by": Reducer("anything", lambda kind: kind, _max_by, by="max"),
}


def by_reducer(name: str) -> str:
    """The reducer that the field must have which a reducer of this name goes by; empty: it goes by none."""
    return REDUCERS[name].by


_CALL = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)


class ReducerCall(NamedTuple):
    """A reducer as a job names it: `sum`, or `max_by(at)`."""

    reducer: Reducer
    by: str = ""


def parse(text: object) -> ReducerCall:
    """The reducer that a job names.

    Raises:
        ValueError: It is none, goes by no field though it must, or the other way round; the message says which.
    """
    found = _CALL.fullmatch(text) if isinstance(text, str) else None
    reducer = REDUCERS.get(found[1]) if found else None
    if found is None or reducer is None:
        known = (f"{name}(column)" if known.by else name for name, known in REDUCERS.items())
        raise ValueError(f"has the reducer {text!r}; the reducers are {', '.join(known)}")
    by: str = found[2] or ""
    if reducer.by and not by:
        raise ValueError(f"has the reducer {text!r}, which goes by another column: write {found[1]}(column)")
    if found[2] is not None and not reducer.by:
        raise ValueError(f"has the reducer {text!r}, which goes by no other column: write {found[1]}")
    return ReducerCall(reducer, by)


def problems(reducers: Mapping[str, object]) -> Iterator[str]:
    """What is wrong with the reducers of a job's columns."""
    for column, text in reducers.items():
        try:
            call = parse(text)
        except ValueError as error:
            yield f"column {column!r} {error}"
            continue
        wanted = call.reducer.by
        if wanted and reducers.get(call.by) != wanted:
            yield f"column {column!r} goes by {call.by!r}, which must be among the reducers as {wanted!r}"


def reduced(field: ValueField, text: str) -> ValueField | None:
    """The field that a reducer, which `parse` takes, makes of one; None: it takes no values of its type."""
    reducer, by = parse(text)
    stored = reducer.stored(field.type)
    if stored is None:
        return None
    return ValueField(field.name, stored, (field.nullable or bool(by)) and not reducer.of_presence)


def mergings(fields: Sequence[ValueField], reducers: Sequence[str]) -> list[Merging]:
    """How each field is merged, by its reducer. In a row the fields stand after one other thing, the schema's
    version.
    """
    places = {field.name: Place(field, position) for position, field in enumerate(fields, start=1)}
    made = []
    for field, text in zip(fields, reducers, strict=True):
        reducer, by = parse(text)
        where = places[field.name], places[by or field.name]
        staged = reducer.reduce(*where)
        made.append(Merging(staged, reducer.onto(*where) if reducer.onto else staged))
    return made

"""A predicate as it is of one state: its fields found, its values as they are stored, and no `not` left in it. Pure.

With `not` pushed down to the comparisons, what is unknown need not be told from what is false: neither is asked for.
Docs/predicates.md has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from keyhole.encoding.value_types import days_of, micros_of
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.model.predicates import (
    And,
    ComparedBy,
    Comparison,
    FieldPath,
    FieldPlace,
    IsNull,
    Not,
    OneOf,
    Or,
    Predicate,
    checked,
    is_nan,
)
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, parsed

FLOATS = frozenset({"float", "double"})
WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})


class BoundField(NamedTuple):
    """Where a field is.

    Attributes:
        in_key: Among the columns of the key and then of the map key; else among the fields of the value.
        at: Its place there.
        inner: In a struct, and in a struct of that: the place of the field.
        type: Of the innermost.
        name: As it was asked for.
    """

    in_key: bool
    at: int
    inner: tuple[int, ...]
    type: TypeName
    name: str


class BoundComparison(NamedTuple):
    """True where the field is not null, and stands so to the value, which is as stored (a decimal: a Decimal)."""

    field: BoundField
    operator: ComparedBy
    value: Any


class BoundList(NamedTuple):
    """True where the field is not null, and is one of the values, or is none of them."""

    field: BoundField
    values: tuple[Any, ...]
    negated: bool


class BoundNull(NamedTuple):
    """True where the field is null, or is not."""

    field: BoundField
    negated: bool


class BoundAll(NamedTuple):
    """True where all of its parts are."""

    parts: tuple[Bound, ...]


class BoundAny(NamedTuple):
    """True where one of its parts is at least."""

    parts: tuple[Bound, ...]


Bound: TypeAlias = BoundComparison | BoundList | BoundNull | BoundAll | BoundAny

_OPPOSITE = {
    ComparedBy.EQUAL: ComparedBy.NOT_EQUAL,
    ComparedBy.LESS: ComparedBy.AT_LEAST,
    ComparedBy.GREATER: ComparedBy.AT_MOST,
}
_OPPOSITE |= {second: first for first, second in _OPPOSITE.items()}


def bound(predicate: Predicate, descriptor: StateDescriptor) -> Bound:
    """The predicate, of this state.

    Raises:
        ValueMismatch: The state has no such field, or it is of another type; the message names the field.
        MalformedRequest: It is too large.
    """
    return _bound(checked(predicate), descriptor, negated=False)


def bound_field(path: FieldPath, descriptor: StateDescriptor) -> BoundField:
    """Where the field is. Raises ValueMismatch: There is none, or two."""
    columns = (*descriptor.scan_key, *descriptor.entry_key)
    found = [
        BoundField(True, at, (), TypeName(column.type.value), str(path))
        for at, column in enumerate(columns)
        if column.name == path.name and path.place is not FieldPlace.VALUE
    ] + [
        BoundField(False, at, (), parsed(field.type), str(path))
        for at, field in enumerate(descriptor.value.fields)
        if field.name == path.name and path.place is not FieldPlace.KEY
    ]
    if sum(of.in_key for of in found) == 2:
        raise ValueMismatch(
            f"{path.name!r} is a column of the key of state {descriptor.path}, and what its elements' places are "
            "called: neither can be asked for by it",
            field=path,
        )
    if len(found) == 2:
        raise ValueMismatch(
            f"{path.name!r} is a column of the key of state {descriptor.path}, and a field of its value; say which: "
            f'field("{path.name}", of="key"), or of="value"',
            field=path,
        )
    if not found:
        names = ", ".join([*(column.name for column in columns), *(field.name for field in descriptor.value.fields)])
        raise ValueMismatch(f"state {descriptor.path} has no field {path.name!r}; it has {names}", field=path)
    (field,) = found
    for name in path.inner:
        if name not in field.type.names:
            there = ", ".join(field.type.names)
            raise ValueMismatch(
                f"field {str(path)!r} of state {descriptor.path}: there is no {name!r} in a {field.type.kind}"
                + (f"; it has {there}" if there else ", only in structs"),
                field=path,
            )
        place = field.type.names.index(name)
        field = field._replace(inner=(*field.inner, place), type=field.type.parts[place])
    return field


def is_compared(kind: TypeName) -> bool:
    """Whether values of the type have an order."""
    return kind.kind in _LITERALS


def _bound(predicate: Predicate, descriptor: StateDescriptor, *, negated: bool) -> Bound:
    match predicate:
        case Not(part):
            return _bound(part, descriptor, negated=not negated)
        case And(parts) | Or(parts):
            inner = tuple(_bound(part, descriptor, negated=negated) for part in parts)
            return BoundAll(inner) if isinstance(predicate, And) is not negated else BoundAny(inner)
        case Comparison(path, operator, value):
            field = bound_field(path, descriptor)
            return BoundComparison(field, _OPPOSITE[operator] if negated else operator, _stored(field, value))
        case OneOf(path, values):
            field = bound_field(path, descriptor)
            return BoundList(field, tuple(_stored(field, value) for value in values), negated)
        case IsNull(path):
            return BoundNull(bound_field(path, descriptor), negated)
    raise MalformedRequest(
        f"a predicate of a kind that is not known here ({type(predicate).__name__}); update this side"
    )


class _Literal(NamedTuple):
    fits: Callable[[Any], bool]
    made: Callable[[Any], Any]
    wanted: str


def _same(value: Any) -> Any:
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, Decimal) and not is_nan(value)


def _is_decimal(value: Any) -> bool:
    return type(value) is int or (type(value) is Decimal and value.is_finite())


def _is_moment(value: Any, *, aware: bool) -> bool:
    return isinstance(value, datetime) and (value.utcoffset() is not None) is aware


def _is_text(value: Any) -> bool:
    return type(value) is str and not any("\ud800" <= character <= "\udfff" for character in value)


def _float(value: float) -> float:
    # A whole number stays one: Python compares the two exactly, where a conversion would round.
    return math.nan if math.isnan(value) else value


_NOT_COMPARED: _Literal = _Literal(
    lambda _: False, _same, "only whether it is null can be asked, and of a struct its fields"
)
_LITERALS: Mapping[str, _Literal] = {
    **dict.fromkeys(WHOLE, _Literal(_is_number, _same, "give a number that is not NaN")),
    **dict.fromkeys(FLOATS, _Literal(lambda value: type(value) in (int, float), _float, "give a float or an int")),
    "decimal": _Literal(_is_decimal, Decimal, "give a finite Decimal or an int"),
    "string": _Literal(_is_text, _same, "give a str"),
    "binary": _Literal(lambda value: type(value) is bytes, _same, "give bytes"),
    "boolean": _Literal(lambda value: type(value) is bool, _same, "give a bool"),
    "date": _Literal(lambda value: type(value) is date, days_of, "give a datetime.date"),
    "timestamp": _Literal(
        lambda value: _is_moment(value, aware=True), micros_of, "give a datetime with a time zone, as readers get it"
    ),
    "timestamp_ntz": _Literal(
        lambda value: _is_moment(value, aware=False),
        lambda value: micros_of(value.replace(tzinfo=UTC)),
        "give a datetime without a time zone, as readers get it",
    ),
}


def _stored(field: BoundField, value: Any) -> Any:
    """A value to compare with, as it would be stored in the field. Raises ValueMismatch, which does not hold it."""
    literal = _LITERALS.get(field.type.kind, _NOT_COMPARED)
    if not literal.fits(value):
        raise ValueMismatch(
            f"field {field.name!r} is of type {field.type.kind}, and is compared with a {type(value).__name__}; "
            + literal.wanted,
            field=field.name,
            type=field.type.kind,
        )
    return literal.made(value)

"""What entries are asked for by: predicates on the columns of their keys and the fields of their values. Pure.

    hot = (field("max") > 30) & ~field("city").is_in(["Bern", "Basel"])
    state.scan_all(where=hot)

A predicate knows no state: whether it fits one, keyhole.encoding.predicate_binding says. docs/predicates.md has what
each comparison means, of null and NaN too.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, NoReturn, TypeAlias

from keyhole.errors import MalformedRequest

PredicateValue: TypeAlias = str | bytes | bool | int | float | Decimal | date | datetime
"""What a field is compared with: of the type that a reader gets for it."""

MOST_PARTS = 1_000
"""How many comparisons a predicate may have."""
MOST_DEPTH = 40
"""How deep `&`, `|` and `~` may stand in each other."""
MOST_VALUES = 10_000
"""How many values all `is_in` of a predicate may have together."""


class FieldPlace(enum.Enum):
    """Where a field is: in the key (the map key counts to it) or in the value; ANY where its name says so."""

    ANY = "any"
    KEY = "key"
    VALUE = "value"


class ComparedBy(enum.Enum):
    """How a field is compared with a value."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Names a column of the key or a field of the value; `inner` the field of a struct, from struct to struct."""

    name: str
    inner: tuple[str, ...] = ()
    place: FieldPlace = FieldPlace.ANY

    def __post_init__(self) -> None:
        """Raises MalformedRequest: it is named by something else than a text."""
        for name in (self.name, *self.inner):
            if not isinstance(name, str):
                raise MalformedRequest(f"a field is named by a {type(name).__name__}; give its name as a str")

    def __str__(self) -> str:
        return ".".join((self.name, *self.inner))


class Predicate:
    """True, false or unknown of an entry, as in SQL; what it is true of is asked for. Immutable; combine by & | ~."""

    __slots__ = ()

    def __and__(self, other: Predicate) -> Predicate:
        return And((*_parts(self, And), *_parts(_predicate(other), And)))

    def __or__(self, other: Predicate) -> Predicate:
        return Or((*_parts(self, Or), *_parts(_predicate(other), Or)))

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a predicate is neither true nor false here: combine predicates by & | ~, not by and, or, not, and put "
            'each comparison into parentheses: (field("a") > 1) & (field("b") < 2). Of two bounds use between'
        )


@dataclass(frozen=True, slots=True)
class Comparison(Predicate):
    """A field against a value. Unknown where the field is null."""

    path: FieldPath
    operator: ComparedBy
    value: PredicateValue


@dataclass(frozen=True, slots=True)
class OneOf(Predicate):
    """A field that equals one of these. Unknown where the field is null."""

    path: FieldPath
    values: tuple[PredicateValue, ...]


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """A field without a value. Never unknown."""

    path: FieldPath


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """All of them; of none: true."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """One of them at least; of none: false."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The opposite; of what is unknown: unknown."""

    part: Predicate


class Field:
    """A field as it is written in a predicate; `field` makes it. Comparisons give predicates.

    Raises (each comparison):
        MalformedRequest: What it is compared with is null, another field, or of no type that a state holds.
    """

    __slots__ = ("path",)

    def __init__(self, path: FieldPath) -> None:
        self.path = path

    def __getitem__(self, name: str) -> Field:
        """A field of the struct that this one is."""
        return Field(FieldPath(self.path.name, (*self.path.inner, name), self.path.place))

    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]  # a predicate, as in Spark and Polars
        return self._compared(ComparedBy.EQUAL, value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]
        return self._compared(ComparedBy.NOT_EQUAL, value)

    def __lt__(self, value: PredicateValue) -> Predicate:
        return self._compared(ComparedBy.LESS, value)

    def __le__(self, value: PredicateValue) -> Predicate:
        return self._compared(ComparedBy.AT_MOST, value)

    def __gt__(self, value: PredicateValue) -> Predicate:
        return self._compared(ComparedBy.GREATER, value)

    def __ge__(self, value: PredicateValue) -> Predicate:
        return self._compared(ComparedBy.AT_LEAST, value)

    __hash__ = None  # type: ignore[assignment]  # equality gives a predicate

    def is_in(self, values: Iterable[PredicateValue]) -> Predicate:
        """It equals one of these, of which none may be null; never true where there are none."""
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise MalformedRequest(
                f"field {str(self.path)!r}: is_in takes a list of values, and was given a {type(values).__name__}"
            )
        return OneOf(self.path, tuple(_value(self.path, value) for value in values))

    def is_null(self) -> Predicate:
        """It has no value. Of the field of a struct also where the struct has none."""
        return IsNull(self.path)

    def is_not_null(self) -> Predicate:
        """It has a value, whichever."""
        return Not(IsNull(self.path))

    def between(self, least: PredicateValue, most: PredicateValue) -> Predicate:
        """It is at least `least` and at most `most`: both belong to it, as in SQL."""
        return (self >= least) & (self <= most)

    def __repr__(self) -> str:
        return f"field({', '.join(map(repr, (self.path.name, *self.path.inner)))})"

    def _compared(self, how: ComparedBy, value: object) -> Predicate:
        return Comparison(self.path, how, _value(self.path, value))


def field(name: str, *inner: str, of: str = "any") -> Field:
    """A column of the key, of the map key or a field of the value, by its name.

    Args:
        inner: The field of a struct, and of a struct in it.
        of: "key" or "value", where a column of the key and a field of the value have the same name.

    Raises:
        MalformedRequest: `of` is none of these, or a name is no text.
    """
    try:
        place = FieldPlace(of)
    except ValueError:
        raise MalformedRequest(f'field {name!r}: of must be "key", "value" or "any"') from None
    return Field(FieldPath(name, inner, place))


def checked(predicate: Predicate) -> Predicate:
    """The same, which is no larger than a predicate may be.

    Raises:
        MalformedRequest: It is larger; or it is no predicate.
    """
    parts = values = 0
    level: list[Predicate] = [_predicate(predicate)]
    for _ in range(MOST_DEPTH):
        parts += len(level)
        values += sum(len(part.values) for part in level if isinstance(part, OneOf))
        level = [inner for part in level for inner in _inner(part)]
        if not level:
            break
    if level or parts > MOST_PARTS or values > MOST_VALUES:
        raise MalformedRequest(
            f"a predicate may have {MOST_PARTS:,} comparisons, {MOST_VALUES:,} values in its lists, and and, or and "
            f"not {MOST_DEPTH} deep in each other; ask for less at once"
        )
    return predicate


def paths_of(predicate: Predicate) -> Iterator[FieldPath]:
    """The fields that it asks for, each as often as it does."""
    match predicate:
        case Comparison(path) | OneOf(path) | IsNull(path):
            yield path
    for part in _inner(predicate):
        yield from paths_of(part)


def all_of(predicate: Predicate) -> tuple[Predicate, ...]:
    """Predicates all of which must hold, so that it does."""
    return _parts(predicate, And)


def part_count(predicate: Predicate) -> int:
    """How many comparisons it has, with what stands around them."""
    return 1 + sum(map(part_count, _inner(predicate)))


def _inner(predicate: Predicate) -> tuple[Predicate, ...]:
    match predicate:
        case And(parts) | Or(parts):
            return parts
        case Not(part):
            return (part,)
        case _:
            return ()


def _parts(predicate: Predicate, of: type[And | Or]) -> tuple[Predicate, ...]:
    return predicate.parts if isinstance(predicate, of) else (predicate,)


def _predicate(given: object) -> Predicate:
    if not isinstance(given, Predicate):
        raise MalformedRequest(
            f'a {type(given).__name__} is no predicate; write one as field("max") > 30, in parentheses between & and |'
        )
    return given


def _value(path: FieldPath, value: Any) -> PredicateValue:
    """As Python's own type; numpy's scalars too."""
    match value:
        case None:
            raise MalformedRequest(f"field {str(path)!r} is compared with null, which nothing equals; use is_null()")
        case Field():
            raise MalformedRequest(f"field {str(path)!r} is compared with another field; give a value")
        case str():
            return str.__str__(value)
        case bytes() | bytearray():
            return bytes(value)
        case datetime() if value == value and not getattr(value, "nanosecond", 0):  # NaT, and pandas' nanoseconds
            return value
        case date() if not isinstance(value, datetime):
            return value
        case bool() | Decimal():
            return value
        case Integral():
            return operator.index(value)
        case Real():
            return float(value)
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise MalformedRequest(
        f"field {str(path)!r} is compared with a {type(value).__name__}; give text, bytes, a bool, a number, a "
        "Decimal, a date or a datetime in whole microseconds"
    )


def is_nan(value: PredicateValue) -> bool:
    """Whether the value is a number that is none."""
    return isinstance(value, (float, Decimal)) and math.isnan(value)

"""The types of values: how each of Spark's stands in a MessagePack row, in Python, and in JSON. Pure.

docs/values.md has the table for readers in other languages. A type is named as Spark's `simpleString` names it:
"double", "decimal(10,2)", "array<struct<a:int,b:string>>".
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from keyhole.encoding.row import FrozenMap, Row, row_class
from keyhole.model.type_names import TypeName, not_stored, parsed

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - timestamp_ntz has no time zone
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_DAY_MICROS = 86_400 * 1_000_000


class ValueType(NamedTuple):
    """One type.

    Attributes:
        stored: What msgspec decodes a stored value to. Immutable.
        to_python: From `stored` to what a reader gets; None: it is that already.
        to_stored: From what Arrow's `to_pylist` gives, with dates as days and times as microseconds, to what
            MessagePack can hold; None: it is that already. Raises ValueError where no reader in Python could have it.
        to_json: From `stored` to what JSON can hold; None: it is that already.
        from_given: From a value as a person gives it, in Python, to what MessagePack can hold; raises ValueError or
            OverflowError where it is no value of the type.
    """

    stored: Any
    to_python: Convert | None = None
    to_stored: Convert | None = None
    to_json: Convert | None = None
    from_given: Convert = lambda value: value


def json_float(value: float) -> float | str:
    """The number, or a text where JSON has none: "NaN", "Infinity", "-Infinity"."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def days_of(value: date) -> int:
    """A date as the number of days since 1970-01-01, negative before it."""
    return value.toordinal() - _EPOCH_DAY


def date_of_days(days: int) -> date:
    """The inverse of `days_of`. Raises ValueError, OverflowError: no date that Python has."""
    return date.fromordinal(days + _EPOCH_DAY)


def micros_of(value: datetime) -> int:
    """A datetime with a time zone as microseconds since 1970, UTC."""
    return (value - _EPOCH_UTC) // _MICROSECOND


def _micros(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


# What Python's dates can be, which every reader in Python gets.
DAYS = range(days_of(date.min), days_of(date.max) + 1)
MICROS = range(days_of(date.min) * _DAY_MICROS, (days_of(date.max) + 1) * _DAY_MICROS)


def _within(there: range) -> Convert:
    def check(number: int) -> int:
        if number not in there:
            raise ValueError("outside the years 1 to 9999")
        return number

    return check


def time_of_micros(micros: int) -> datetime:
    """The inverse of `micros_of`. Raises OverflowError: no time that Python has."""
    return _EPOCH_UTC + timedelta(microseconds=micros)


def naive_time_of_micros(micros: int) -> datetime:
    """As `time_of_micros`, without a time zone."""
    return _EPOCH + timedelta(microseconds=micros)


def _given(fits: Callable[[Any], bool], to_stored: Convert = lambda value: value) -> Convert:
    def from_given(value: Any) -> Any:
        if not fits(value):
            raise ValueError("no value of the type")
        return to_stored(value)

    return from_given


def _given_whole(bits: int) -> Convert:
    most = 1 << bits - 1
    return _given(lambda value: type(value) is int and -most <= value < most)


def _given_decimal(digits: int, scale: int) -> Convert:
    def fits(value: Any) -> bool:
        if type(value) not in (Decimal, int) or not Decimal(value).is_finite():
            return False
        _, figures, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)  # it is finite
        if not value:
            return -exponent <= scale  # zero has a digit, and needs none
        return max(0, -exponent) <= scale and len(figures) + exponent <= digits - scale

    # As Spark writes it: with all digits of its scale.
    return _given(fits, lambda value: f"{Decimal(value):.{scale}f}")


def _is_utf8(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_moment(value: Any, *, aware: bool) -> bool:
    return type(value) is datetime and (value.utcoffset() is not None) is aware


def _as_float(value: float) -> float:
    """The nearest one of 32 bits; beyond the largest of these, infinity."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


_GIVEN_DOUBLE = _given(lambda value: type(value) in (float, int), float)
# As a column of Spark's or Arrow's would have it: rounded to 32 bits.
_GIVEN_FLOAT = _given(lambda value: type(value) in (float, int), lambda value: _as_float(float(value)))

_SIMPLE: Mapping[str, ValueType] = {
    "boolean": ValueType(bool, from_given=_given(lambda value: type(value) is bool)),
    "tinyint": ValueType(int, from_given=_given_whole(8)),
    "smallint": ValueType(int, from_given=_given_whole(16)),
    "int": ValueType(int, from_given=_given_whole(32)),
    "bigint": ValueType(int, from_given=_given_whole(64)),
    "float": ValueType(float, to_json=json_float, from_given=_GIVEN_FLOAT),
    "double": ValueType(float, to_json=json_float, from_given=_GIVEN_DOUBLE),
    "string": ValueType(str, from_given=_given(_is_utf8)),
    "binary": ValueType(bytes, from_given=_given(lambda value: type(value) is bytes)),
    "date": ValueType(
        int,
        date_of_days,
        _within(DAYS),
        lambda days: date_of_days(days).isoformat(),
        _given(lambda value: type(value) is date, days_of),
    ),
    "timestamp": ValueType(
        int,
        time_of_micros,
        _within(MICROS),
        lambda micros: time_of_micros(micros).isoformat(),
        # In UTC it must lie within the years that there are.
        _given(functools.partial(_is_moment, aware=True), lambda value: micros_of(value.astimezone(UTC))),
    ),
    "timestamp_ntz": ValueType(
        int,
        naive_time_of_micros,
        _within(MICROS),
        lambda micros: naive_time_of_micros(micros).isoformat(),
        _given(functools.partial(_is_moment, aware=False), _micros),
    ),
}


@functools.cache
def value_type(name: str) -> ValueType:
    """The type of a Spark type's name.

    Raises:
        ValueMismatch: Spark has no type of this name, or a state can't hold it.
    """
    return _made(parsed(name), name)


def _made(of: TypeName, name: str) -> ValueType:
    """`name`: of the whole type, for the error."""
    if of.kind in _SIMPLE:
        return _SIMPLE[of.kind]
    if of.kind == "decimal" and of.digits[0]:
        return ValueType(str, Decimal, lambda value: format(value, "f"), from_given=_given_decimal(*of.digits))
    parts = [_made(part, name) for part in of.parts]
    match of.kind:
        case "array":
            return _array(*parts)
        case "map":
            return _map(*parts)
        case "struct":
            return _struct(list(zip(of.names, parts, strict=True)))
    raise not_stored(name)


def optional(convert: Convert | None) -> Convert:
    """The conversion, with None for None."""
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _array(element: ValueType) -> ValueType:
    def each(convert: Convert | None, make: Callable[[Iterable[Any]], Any]) -> Convert | None:
        return None if convert is None else lambda values: make(map(optional(convert), values))

    return ValueType(
        tuple[element.stored | None, ...],  # type: ignore[name-defined]  # made at run time
        each(element.to_python, tuple),
        each(element.to_stored, list),
        each(element.to_json, list),
        _given(
            lambda values: isinstance(values, (list, tuple)),
            lambda values: [optional(element.from_given)(value) for value in values],
        ),
    )


def _map(key: ValueType, value: ValueType) -> ValueType:
    """Pairs, because MessagePack's maps are read into dictionaries, whose keys some languages restrict to strings."""

    def pairs(of_key: Convert | None, of_value: Convert | None) -> Callable[[Any], list[tuple[Any, Any]]]:
        on_key, on_value = optional(of_key), optional(of_value)
        return lambda items: [(on_key(k), on_value(v)) for k, v in items]

    python, stored, as_json = (
        pairs(key.to_python, value.to_python),
        pairs(key.to_stored, value.to_stored),
        pairs(key.to_json, value.to_json),
    )
    return ValueType(
        tuple[tuple[key.stored, value.stored | None], ...],  # type: ignore[name-defined]  # made at run time
        lambda items: FrozenMap(python(items)),
        lambda items: stored(items.items() if isinstance(items, Mapping) else items),
        as_json,
        _given(
            lambda items: isinstance(items, Mapping),
            lambda items: [(key.from_given(k), optional(value.from_given)(v)) for k, v in items.items()],
        ),
    )


def _struct(fields: list[tuple[str, ValueType]]) -> ValueType:
    row = row_class([(name, kind.stored) for name, kind in fields])

    def python(value: Row) -> Row:
        return row(*(optional(kind.to_python)(value[name]) for name, kind in fields))

    def stored(value: Mapping[str, Any]) -> list[Any]:
        return [optional(kind.to_stored)(value[name]) for name, kind in fields]

    def as_json(value: Row) -> dict[str, Any]:
        return {name: optional(kind.to_json)(value[name]) for name, kind in fields}

    given = _given(
        lambda value: isinstance(value, Mapping) and value.keys() == {name for name, _ in fields},
        lambda value: [optional(kind.from_given)(value[name]) for name, kind in fields],
    )
    plain = all(kind.to_python is None for _, kind in fields)
    return ValueType(row, None if plain else python, stored, as_json, given)

"""Values that a stateful processor gives to its state, as Spark stores them, for Arrow.

Spark pickles a value and converts it by the state's schema. What doesn't fit it stores as null (an int in a field of
type double), cut off (an int that is too large), or as text, and says nothing. A copy of that value would differ from
the state, so here it is an error; of what does fit, the copy is what Spark stores.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import types as spark

from keyhole.errors import ValueMismatch

Plain = Callable[[Any], Any]
"""A value -> a copy for pyarrow, which has no part in common with it."""

_WHOLE_BITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}
_MOMENT = spark.TimestampType()
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Rows:
    """Makes rows of one schema of what a processor calls a value: a tuple or Row, by position.

    Args:
        what: Names the rows in errors: "state 'last'".

    Raises:
        ValueMismatch: Values of a field's type can't be copied.
    """

    def __init__(self, what: str, schema: spark.StructType) -> None:
        self._what = what
        self._names = schema.names
        self._types = [field.dataType.simpleString() for field in schema.fields]
        self._plain = [self._of(field) for field in schema.fields]

    def __call__(self, values: Sequence[Any]) -> dict[str, Any]:
        """The fields by name.

        Raises:
            ValueMismatch: It is no sequence of as many values, or one of them is not of its field's type.
        """
        if not isinstance(values, tuple | list) or len(values) != len(self._names):
            raise ValueMismatch(
                f"{self._what} takes a tuple with one value for each of {', '.join(self._names)}; the processor gave "
                + (f"{len(values)} values" if isinstance(values, tuple | list) else f"a {type(values).__name__}")
            )
        row = {}
        for name, kind, plain, value in zip(self._names, self._types, self._plain, values, strict=True):
            try:
                row[name] = plain(value)
            except _UnfitError as error:
                raise ValueMismatch(
                    f"{self._what}: field {name!r} is of type {kind}, which takes no {error}: Spark would store it as "
                    "another value, or as null, without a word. Convert it in the processor",
                    column=name,
                    type=kind,
                ) from None
        return row

    def _of(self, field: spark.StructField) -> Plain:
        try:
            return plain(field.dataType)
        except _UnfitError as error:
            raise ValueMismatch(
                f"{self._what}: field {field.name!r} is of type {field.dataType.simpleString()}; {error} can't be "
                "exposed",
                column=field.name,
                type=field.dataType.simpleString(),
            ) from None


class _UnfitError(Exception):
    """Says what doesn't fit, without its value. Never leaves this module."""


def plain(kind: spark.DataType) -> Plain:
    """How values of the type are copied. Null stays null."""
    copy = _copy(kind)
    return lambda value: None if value is None else copy(_python(value))


def _python(value: Any) -> Any:
    """Scalars of numpy and pandas as Python's own, the way Spark does it."""
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and not getattr(value, "shape", ()):
        return value.tolist()
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def _copy(kind: spark.DataType) -> Plain:
    """By the very class: char, varchar and user-defined types derive from the plain ones."""
    if type(kind) in _COPIES:
        return _COPIES[type(kind)]
    if type(kind) in _WHOLE_BITS:
        return _whole(_WHOLE_BITS[type(kind)])
    if isinstance(kind, spark.DecimalType):
        return _decimal(kind)
    if isinstance(kind, spark.ArrayType):
        return _array(plain(kind.elementType))
    if isinstance(kind, spark.MapType):
        return _map(plain(kind.keyType), plain(kind.valueType))
    if isinstance(kind, spark.StructType):
        return _struct(kind.names, [plain(field.dataType) for field in kind.fields])
    raise _UnfitError(kind.simpleString())


def _exactly(*classes: type) -> Plain:
    def copy(value: Any) -> Any:
        return value if type(value) in classes else _refuse(value)

    return copy


def _whole(bits: int) -> Plain:
    limit = 1 << (bits - 1)

    def copy(value: Any) -> Any:
        if type(value) is not int:
            return _refuse(value)
        if not -limit <= value < limit:
            raise _UnfitError("int beyond its range")
        return value

    return copy


def _binary(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | bytearray) else _refuse(value)


def _date(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.date()
    return value if isinstance(value, datetime.date) else _refuse(value)


def _timestamp(value: Any) -> Any:
    # Without a zone it is in the worker's own, as Spark takes it, and as it gives it back. By Spark's own function, as
    # astimezone() looks a day further for a change of the clocks: beyond the first and the last day there is none.
    # Where such a change repeats or skips an hour, it may take another one than Spark.
    if not isinstance(value, datetime.datetime):
        return _refuse(value)
    try:
        return _EPOCH + datetime.timedelta(microseconds=_MOMENT.toInternal(value))
    except (ValueError, OverflowError):
        raise _UnfitError("datetime outside the years 1 to 9999 (UTC)") from None


def _timestamp_ntz(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else _refuse(value)


def _decimal(kind: spark.DecimalType) -> Plain:
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=kind.precision, rounding=decimal.ROUND_HALF_UP)

    def copy(value: Any) -> Any:
        if type(value) is not decimal.Decimal:
            return _refuse(value)
        try:
            rounded = value.quantize(unit, context=context)
        except decimal.InvalidOperation:
            raise _UnfitError("Decimal beyond its range") from None
        if not rounded.is_finite():
            raise _UnfitError("Decimal that is no number")
        return rounded

    return copy


def _array(element: Plain) -> Plain:
    return lambda value: [element(item) for item in value] if isinstance(value, list | tuple) else _refuse(value)


def _map(key: Plain, value: Plain) -> Plain:
    # Spark's state takes no maps but those from strings, which can be keys of a dict.
    def copy(of: Any) -> Any:
        return {key(k): value(v) for k, v in of.items()} if isinstance(of, dict) else _refuse(of)

    return copy


def _struct(names: list[str], fields: list[Plain]) -> Plain:
    def copy(value: Any) -> Any:
        if isinstance(value, dict):
            value = tuple(value.get(name) for name in names)
        if not isinstance(value, tuple | list):
            return _refuse(value)
        if len(value) != len(names):
            raise _UnfitError(f"struct of {len(value)} fields")
        return {name: field(item) for name, field, item in zip(names, fields, value, strict=True)}

    return copy


def _refuse(value: Any) -> Any:
    raise _UnfitError(type(value).__name__)


_COPIES: dict[type[spark.DataType], Plain] = {
    spark.BooleanType: _exactly(bool),
    spark.FloatType: _exactly(float),
    spark.DoubleType: _exactly(float),
    spark.StringType: _exactly(str),
    spark.BinaryType: _binary,
    spark.DateType: _date,
    spark.TimestampType: _timestamp,
    spark.TimestampNTZType: _timestamp_ntz,
}

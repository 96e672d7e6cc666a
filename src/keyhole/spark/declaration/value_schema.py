"""From the columns that are the value to the fields that are stored, or an error that names the column."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import types as spark

from keyhole.encoding.reducers import parse, reduced
from keyhole.encoding.value_types import value_type
from keyhole.errors import ValueMismatch
from keyhole.model.state import ValueField
from keyhole.model.type_names import field_names_problem
from keyhole.spark.declaration.batch_columns import NOT_IN_NAMES, NUL, PLAIN_COLLATION, column_of
from keyhole.spark.declaration.declared import Declaration

ORDERED_VALUES: tuple[type[spark.DataType], ...] = (
    spark.BooleanType,
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.StringType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)
"""Types whose values have an order. docs/values.md says how each is stored."""

_VALUE_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, timestamp_ntz, "
    "and array, map and struct of these"
)


def value_field(declaration: Declaration, name: str, schema: spark.StructType) -> ValueField:
    """The field that the column becomes.

    Raises:
        ValueMismatch: The column is missing, or has a name that can't be, or is of a type that can't be stored.
    """
    column = column_of(declaration, "value", name, schema, ValueMismatch)
    type_name = column.dataType.simpleString()
    problem = _problem(column.dataType)
    if problem is not None:
        raise ValueMismatch(
            f"state {declaration.state!r}: value column {name!r} is of type {type_name}: {problem}",
            column=name,
            type=type_name,
        )
    return ValueField(name, type_name, column.nullable)


def reduced_field(declaration: Declaration, field: ValueField, name: str) -> ValueField:
    """The field that the reducer of that name makes of one. Raises ValueMismatch: it takes no values of its type."""
    made = reduced(field, name)
    if made is None:
        raise ValueMismatch(
            f"state {declaration.state!r}: {name} can't reduce column {field.name!r} of type {field.type}; it takes "
            f"{parse(name).reducer.takes}",
            column=field.name,
            type=field.type,
        )
    return made


def with_defaults(declaration: Declaration, fields: Sequence[ValueField]) -> tuple[ValueField, ...]:
    """The fields with the declared defaults. Raises ValueMismatch: one has no field, or does not fit it."""
    unknown = sorted(declaration.defaults.keys() - {field.name for field in fields})
    if unknown:
        raise ValueMismatch(
            f"state {declaration.state!r}: defaults names {unknown[0]!r}, which is no field of the value; it has "
            f"{', '.join(field.name for field in fields)}",
            column=unknown[0],
        )
    return tuple(_with_default(declaration, field) for field in fields)


def _with_default(declaration: Declaration, field: ValueField) -> ValueField:
    default = declaration.defaults.get(field.name)
    if default is None:
        return field
    try:
        stored = value_type(field.type).from_given(default)
    except (ValueError, OverflowError):
        raise ValueMismatch(
            f"state {declaration.state!r}: the default of field {field.name!r} is a {type(default).__name__} that does "
            f"not fit {field.type}; docs/values.md has what a value of each type is in Python",
            column=field.name,
            type=field.type,
        ) from None
    return ValueField(field.name, field.type, field.nullable, msgspec.msgpack.encode(stored))


def _problem(kind: spark.DataType) -> str | None:
    """Why values of the type can't be stored; None: they can."""
    if isinstance(kind, spark.StringType) and kind.collation != PLAIN_COLLATION:
        return f'values don\'t keep the collation {kind.collation}; cast it to plain strings: col(...).cast("string")'
    # By the very class: char, varchar and user-defined types derive from the plain ones.
    if type(kind) in ORDERED_VALUES:
        return None
    if isinstance(kind, spark.StructType):
        if (problem := field_names_problem(kind.names)) is not None:
            return problem
        if (cut := next((name for name in kind.names if NUL in name), None)) is not None:
            return f"its field name {cut!r} holds {NOT_IN_NAMES[NUL]}"
        return _first_problem([field.dataType for field in kind.fields])
    if isinstance(kind, spark.ArrayType):
        return _problem(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _first_problem([kind.keyType, kind.valueType])
    return f"{kind.simpleString()} can't be stored; a value is made of {_VALUE_TYPES}"


def _first_problem(kinds: Sequence[spark.DataType]) -> str | None:
    return next((problem for kind in kinds if (problem := _problem(kind)) is not None), None)

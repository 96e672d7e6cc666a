"""From a batch's schema to the state's descriptor, or an error that names the column."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as spark

from keyhole.encoding.reducers import parse
from keyhole.encoding.value_types import value_type
from keyhole.errors import InvalidConfiguration, KeyholeError, KeyMismatch, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.model.type_names import field_names_problem
from keyhole.spark.declaration.value_codec import encoded_fields
from keyhole.spark.exposed import PREFIX

_ONE_NAME = "are one name to Spark (spark.sql.caseSensitive)"
RANKED_KINDS = (StateKind.VALUE, StateKind.MAP, StateKind.BROADCAST)
"""Kinds whose stored row is compared with a new one, by `order_by`."""
_UTF8_BINARY = "UTF8_BINARY"  # Spark's name for "no collation"

_KEY_TYPES: dict[type[spark.DataType], KeyType] = {
    spark.StringType: KeyType.STRING,
    spark.BinaryType: KeyType.BINARY,
    spark.BooleanType: KeyType.BOOLEAN,
    spark.ShortType: KeyType.SMALLINT,
    spark.IntegerType: KeyType.INT,
    spark.LongType: KeyType.BIGINT,
    spark.DateType: KeyType.DATE,
    spark.TimestampType: KeyType.TIMESTAMP,
}

# docs/values.md says how each is stored.
_ORDERED_VALUES: tuple[type[spark.DataType], ...] = (
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
_VALUE_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, timestamp_ntz, "
    "and array, map and struct of these"
)
# What the name of a column that is read can't hold, and why. The first holds for all columns of a batch, if Python is
# given them.
_NUL, _VARIABLE = "\0", "${"
_NOT_IN_NAMES = {
    _NUL: "a NUL character, at which Spark cuts a name off on its way to Python",
    _VARIABLE: "${, by which Spark's SQL takes it for a variable's",
}


@dataclass(frozen=True)
class Declaration:
    """A state as its job declares it; the batch's schema says the rest.

    Attributes:
        value: None: all columns but the key's, and the one of `op`.
        reducers: Of a reducing state, the name of one for each of `value`.
        standbys: On how many servers beside the owner each key group is followed.
        ttl: How long an entry lives after it was last written; 0 ms: until it is deleted.
        max_length: Of a list, the most elements of a key; 0: any number.
        op: The column that says what a row does; None: there is none.
        delete_when: The condition under which a row deletes; None: none does.
        replaces: Of a list, whether an epoch's rows of a key take the place of those before.
        result: Of an aggregating state, the schema of the result, which is the value, as Spark writes it.
        encoded: The job encodes the value itself.
        versioned: The codec, if there is one, has a version, which readers are told of each value.
        class_version: See StateDescriptor.
        keep_deleted_ms: See StateDescriptor.
        defaults: By field of the value, what rows have in it that were written before there was the field.
    """

    state: str
    key: tuple[str, ...]
    key_groups: int
    value: tuple[str, ...] | None
    order_by: str | None
    reducers: tuple[str, ...] = ()
    standbys: int = 0
    kind: StateKind = StateKind.VALUE
    map_key: tuple[str, ...] = ()
    ttl_ms: int = 0
    ttl_clock: TtlClock = TtlClock.PROCESSING_TIME
    max_length: int = 0
    op: str | None = None
    delete_when: Column | str | None = None
    replaces: bool = False
    result: str | spark.StructType | None = None
    defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)
    encoded: bool = False
    keep_deleted_ms: int = 0
    versioned: bool = False
    class_version: int = 0


def describe(
    declaration: Declaration,
    application: str,
    query: str,
    schema: spark.StructType,
    by_case: Callable[[], bool] = lambda: False,
) -> StateDescriptor:
    """The state's descriptor, without a topic id.

    Args:
        by_case: Whether Spark tells columns apart whose names differ by case alone; asked where there are such.

    Raises:
        KeyMismatch: A key column is missing, or of a type that can't be a key, or has a name that can't be.
        ValueMismatch: A value column is missing, or has a name that can't be, or is of a type that can't be stored, or
            reduced, or there is none; or a default does not fit its field.
    """
    _check_told_apart(declaration, schema, by_case)
    key = tuple(_key_column(declaration, "key", name, schema) for name in declaration.key)
    map_key = tuple(_key_column(declaration, "map key", name, schema) for name in declaration.map_key)
    if declaration.op is not None:
        _check_op(declaration, schema)
    if declaration.order_by is not None:
        _check_order(declaration, declaration.order_by, schema)
    if declaration.result is not None or declaration.encoded:
        for name in _read_names(declaration, schema):
            _column(declaration, "value", name, schema, ValueMismatch)
    if declaration.result is not None:
        schema = result_schema(declaration.result)
        _check_result(declaration, schema)
    names = value_names(declaration, schema)
    if declaration.encoded:
        fields = encoded_fields(versioned=declaration.versioned)
    else:
        fields = tuple(_value_field(declaration, name, schema) for name in names)
    if declaration.reducers:
        pairs = zip(fields, declaration.reducers, strict=True)
        fields = tuple(_reduced_field(declaration, field, reducer) for field, reducer in pairs)
    fields = _with_defaults(declaration, fields)
    return StateDescriptor(
        application=application,
        state=declaration.state,
        query=query,
        kind=declaration.kind,
        key_groups=declaration.key_groups,
        key=key,
        value=ValueSchema(version=1, fields=fields),
        # Of a list and of an aggregate it orders the rows of an epoch, in the task.
        order_by=(declaration.order_by or "") if declaration.kind in RANKED_KINDS else "",
        reducers=declaration.reducers,
        map_key=map_key,
        ttl_ms=declaration.ttl_ms,
        ttl_clock=declaration.ttl_clock,
        max_length=declaration.max_length,
        keep_deleted_ms=declaration.keep_deleted_ms,
        class_version=declaration.class_version,
    )


def value_names(declaration: Declaration, schema: spark.StructType) -> tuple[str, ...]:
    """The columns that are the value.

    Raises:
        ValueMismatch: There are none.
    """
    if declaration.result is not None:
        return tuple(schema.names)
    names = _read_names(declaration, schema)
    if not names:
        raise ValueMismatch(
            f"state {declaration.state!r}: the batch has no column beside the key ({', '.join(declaration.key)}); "
            "give it at least one value column",
            state=declaration.state,
        )
    return names


def _read_names(declaration: Declaration, schema: spark.StructType) -> tuple[str, ...]:
    """The columns of the batch that are the value, or that an aggregator or a codec makes it of."""
    names = declaration.value
    if names is None:
        others = {*declaration.key, *declaration.map_key, declaration.op}
        names = tuple(name for name in schema.names if name not in others)
    # What a row ranks by is compared with later rows'; what only orders those of a batch is not needed after it.
    order_by = declaration.order_by if declaration.kind in RANKED_KINDS else None
    return names if order_by is None or order_by in names else (*names, order_by)


def check_all_columns(what: str, rows: DataFrame) -> None:
    """Of rows that Python is given with all their columns.

    Args:
        what: Who wants them, for the error.

    Raises:
        InvalidConfiguration: A name can't be, or is the same to Spark as another one.
    """
    seen: dict[str, str] = {}
    for name in rows.columns:
        if _NUL in name:
            raise InvalidConfiguration(f"{what}: the name of column {name!r} holds {_NOT_IN_NAMES[_NUL]}; rename it")
        other = seen.get(name.lower())
        if other is not None and (other == name or not case_sensitive(rows)):
            raise InvalidConfiguration(
                f"{what}: the rows have the columns {other!r} and {name!r}, which {_ONE_NAME}; rename or drop one",
                column=name,
            )
        seen[name.lower()] = name


def case_sensitive(rows: DataFrame) -> bool:
    """Whether Spark tells columns apart whose names differ by case alone."""
    return rows.sparkSession.conf.get("spark.sql.caseSensitive") == "true"


def result_schema(result: str | spark.StructType) -> spark.StructType:
    """The fields of an aggregate's result. Needs a Spark session where they are given as text.

    Raises:
        InvalidConfiguration: It is no schema.
    """
    if isinstance(result, spark.StructType):
        return result
    try:
        parsed = spark.StructType.fromDDL(result)
    except ParseException as error:
        raise InvalidConfiguration(f"result: {result!r} is no schema, as 'n bigint, mean double'") from error
    # One name alone is read as a type.
    return parsed if isinstance(parsed, spark.StructType) else spark.StructType([spark.StructField("value", parsed)])


def _check_result(declaration: Declaration, schema: spark.StructType) -> None:
    """A reader of the state as a table would have two columns of one name."""
    if twice := sorted({*declaration.key, *declaration.map_key} & set(schema.names)):
        raise ValueMismatch(
            f"state {declaration.state!r}: result names {', '.join(twice)}, which is part of the key, and every reader "
            "knows that; leave it out, or give the field another name",
            column=twice[0],
        )


def struct(what: str, schema: str | spark.StructType) -> spark.StructType:
    """A schema of at least one column. Needs a Spark session where it is given as text.

    Args:
        what: For the error.

    Raises:
        InvalidConfiguration: It is no such schema.
    """
    try:
        made = spark.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        raise InvalidConfiguration(f"{what}: {schema!r} is no schema, as 'a double, b string'") from error
    if not isinstance(made, spark.StructType) or not made.fields:
        raise InvalidConfiguration(
            f"{what}: its schema must name at least one column with its type, as 'celsius double'"
        )
    return made


def _check_told_apart(declaration: Declaration, schema: spark.StructType, by_case: Callable[[], bool]) -> None:
    """Of the columns that are read. Those of the same name are `_column`'s business."""
    keys = (*declaration.key, *declaration.map_key)
    others = [name for name in (declaration.op, declaration.order_by) if name is not None]
    for name in (*keys, *others, *_read_names(declaration, schema)):
        alike = [other for other in schema.names if other != name and other.lower() == name.lower()]
        if alike and name in schema.names and not by_case():
            raise (KeyMismatch if name in keys else ValueMismatch)(
                f"state {declaration.state!r}: the batch has the columns {name!r} and {alike[0]!r}, which "
                f"{_ONE_NAME}; rename or drop one",
                column=name,
            )


def _check_op(declaration: Declaration, schema: spark.StructType) -> None:
    assert declaration.op is not None
    kind = _column(declaration, "op", declaration.op, schema, ValueMismatch).dataType
    if not isinstance(kind, spark.StringType):
        raise ValueMismatch(
            f"state {declaration.state!r}: op column {declaration.op!r} is of type {kind.simpleString()}; it must be a "
            "string that says what the row does",
            column=declaration.op,
        )


def _check_order(declaration: Declaration, name: str, schema: spark.StructType) -> None:
    kind = _column(declaration, "order_by", name, schema, ValueMismatch).dataType
    if not isinstance(kind, _ORDERED_VALUES):
        raise ValueMismatch(
            f"state {declaration.state!r}: order_by column {name!r} is of type {kind.simpleString()}, whose values "
            "have no highest; take a number, a string, a date or a timestamp",
            column=name,
            type=kind.simpleString(),
        )


def _key_column(declaration: Declaration, role: str, name: str, schema: spark.StructType) -> KeyColumn:
    column = _column(declaration, role, name, schema, KeyMismatch)
    kind = column.dataType
    if isinstance(kind, spark.StringType) and kind.collation != _UTF8_BINARY:
        raise KeyMismatch(
            f"state {declaration.state!r}: {role} column {name!r} has the collation {kind.collation}, by which "
            'different strings can be equal; a key can\'t have one. Cast it to plain strings: col(...).cast("string")',
            column=name,
        )
    key_type = _KEY_TYPES.get(type(kind))
    if key_type is None:
        raise KeyMismatch(
            f"state {declaration.state!r}: {role} column {name!r} is of type {kind.simpleString()}, which can't be a "
            f"key; a {role} column must be one of {', '.join(KeyType)}",
            column=name,
            type=kind.simpleString(),
        )
    return KeyColumn(name, key_type)


def _value_field(declaration: Declaration, name: str, schema: spark.StructType) -> ValueField:
    column = _column(declaration, "value", name, schema, ValueMismatch)
    type_name = column.dataType.simpleString()
    problem = _problem(column.dataType)
    if problem is not None:
        raise ValueMismatch(
            f"state {declaration.state!r}: value column {name!r} is of type {type_name}: {problem}",
            column=name,
            type=type_name,
        )
    return ValueField(name, type_name, column.nullable)


def _reduced_field(declaration: Declaration, field: ValueField, name: str) -> ValueField:
    reducer, by = parse(name)
    stored = reducer.stored(field.type)
    if stored is None:
        raise ValueMismatch(
            f"state {declaration.state!r}: {name} can't reduce column {field.name!r} of type {field.type}; it takes "
            f"{reducer.takes}",
            column=field.name,
            type=field.type,
        )
    return ValueField(field.name, stored, (field.nullable or bool(by)) and not reducer.of_presence)


def _with_defaults(declaration: Declaration, fields: Sequence[ValueField]) -> tuple[ValueField, ...]:
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


def _column(
    declaration: Declaration, role: str, name: str, schema: spark.StructType, error: type[KeyholeError]
) -> spark.StructField:
    found = [field for field in schema.fields if field.name == name]
    for part, why in _NOT_IN_NAMES.items():
        if part in name:
            raise error(
                f"state {declaration.state!r}: the name of {role} column {name!r} holds {why}; rename the column",
                column=name,
            )
    if role != "op" and name.lower().startswith(PREFIX):
        # It would be taken for what a row does, say, and nobody told.
        raise error(
            f"state {declaration.state!r}: {role} column {name!r}: names that begin with {PREFIX} are Keyhole's; "
            "rename it",
            column=name,
        )
    if len(found) == 1:
        return found[0]
    what = "does not exist" if not found else f"exists {len(found)} times"
    raise error(
        f"state {declaration.state!r}: {role} column {name!r} {what} in the batch, whose columns are "
        f"{', '.join(schema.names)}",
        column=name,
    )


def _problem(kind: spark.DataType) -> str | None:
    """Why values of the type can't be stored; None: they can."""
    if isinstance(kind, spark.StringType) and kind.collation != _UTF8_BINARY:
        return f'values don\'t keep the collation {kind.collation}; cast it to plain strings: col(...).cast("string")'
    # By the very class: char, varchar and user-defined types derive from the plain ones.
    if type(kind) in _ORDERED_VALUES:
        return None
    if isinstance(kind, spark.StructType):
        if (problem := field_names_problem(kind.names)) is not None:
            return problem
        if (cut := next((name for name in kind.names if _NUL in name), None)) is not None:
            return f"its field name {cut!r} holds {_NOT_IN_NAMES[_NUL]}"
        return _first_problem([field.dataType for field in kind.fields])
    if isinstance(kind, spark.ArrayType):
        return _problem(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _first_problem([kind.keyType, kind.valueType])
    return f"{kind.simpleString()} can't be stored; a value is made of {_VALUE_TYPES}"


def _first_problem(kinds: Sequence[spark.DataType]) -> str | None:
    return next((problem for kind in kinds if (problem := _problem(kind)) is not None), None)

"""Arrow columns as what a state's descriptor says that they are, or a refusal by the column's name."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyhole.encoding.arrow_times import as_numbers, not_utf8, out_of_range
from keyhole.encoding.value_types import DAYS, MICROS, optional, value_type
from keyhole.errors import KeyholeError, KeyMismatch, NullKey, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, ValueField

_ARROW: dict[KeyType, pa.DataType] = {
    KeyType.STRING: pa.string(),
    KeyType.BINARY: pa.binary(),
    KeyType.BOOLEAN: pa.bool_(),
    KeyType.SMALLINT: pa.int16(),
    KeyType.INT: pa.int32(),
    KeyType.BIGINT: pa.int64(),
    KeyType.DATE: pa.date32(),
    KeyType.TIMESTAMP: pa.timestamp("us", "UTC"),
}

# Some write "decimal(10, 2)".
_DECIMAL_BLANKS = re.compile(r",\s+(?=-?\d+\))")

_SPARK_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}


def key_column(column: pa.Array, described: KeyColumn, role: str = "key") -> pa.Array:
    """A key column of a batch, checked: every value of it can be stored, and asked for by a client.

    Args:
        role: What the column is, for the message.

    Raises:
        NullKey: It has a null.
        KeyMismatch: It has a date or time outside the years 1 to 9999, or a string that is not UTF-8.
    """
    if column.null_count:
        raise NullKey(
            f"{role} column {described.name} is null in {column.null_count} rows; a state has no null keys. Filter "
            "them out, or give them a key of their own; a record that Spark can't parse, as broken JSON, is a row of "
            "nulls",
            column=described.name,
        )
    _check_range(column, described, role, KeyMismatch)
    if described.type is KeyType.STRING and not _is_utf8(column):
        # It could be stored, but no client could ask for it.
        raise not_utf8(f"{role} column {described.name}", KeyMismatch, described.name)
    wanted = _ARROW[described.type]
    return column if column.type == wanted else column.cast(wanted)


def stored_values(column: pa.Array, field: ValueField) -> list[Any]:
    """A value column as what MessagePack takes (docs/values.md)."""
    if column.null_count and not field.nullable:
        raise ValueMismatch(
            f"value column {field.name} is null in {column.null_count} rows, and the state says it never is",
            column=field.name,
        )
    _check_range(column, field, "value", ValueMismatch)
    # What is a date or a time itself is checked by now.
    convert = None if pa.types.is_temporal(column.type) else value_type(field.type).to_stored
    try:
        values: list[Any] = as_numbers(column).to_pylist()
        return values if convert is None else list(map(optional(convert), values))
    except UnicodeDecodeError:
        raise not_utf8(f"value column {field.name}", ValueMismatch, field.name) from None
    except (ValueError, OverflowError):
        # A date inside an array, map or struct. Not as the cause: it may hold the value.
        raise out_of_range(f"value column {field.name}", ValueMismatch, field.name) from None


def checked_column(
    batch: pa.RecordBatch, described: KeyColumn | ValueField, role: str, error: type[KeyholeError]
) -> pa.Array:
    """The batch's column of that name and type.

    Args:
        role: What the column is, for the message.
        error: What is raised where there is no column of the name, or more than one, or it is of another type.
    """
    if batch.schema.names.count(described.name) != 1:
        raise error(
            f"the batch must have one column {described.name}; it has {', '.join(batch.schema.names)}",
            column=described.name,
        )
    column = batch.column(described.name)
    if spark_name(column.type) != _DECIMAL_BLANKS.sub(",", described.type):
        raise error(
            f"{role} column {described.name} is of type {described.type}; Arrow's {column.type} does not fit it",
            column=described.name,
            type=described.type,
        )
    return column


def spark_name(kind: pa.DataType) -> str:
    """Spark's name of what an Arrow type holds; Arrow's own for types that Spark doesn't send."""
    if kind in _SPARK_NAMES:
        return _SPARK_NAMES[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{spark_name(kind.key_type)},{spark_name(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in kind)}>"
    return str(kind)


def _check_range(column: pa.Array, described: KeyColumn | ValueField, role: str, error: type[KeyholeError]) -> None:
    if not pa.types.is_temporal(column.type):
        return
    there = DAYS if pa.types.is_date32(column.type) else MICROS
    ends = pc.min_max(as_numbers(column))
    if ends["min"].is_valid and not (ends["min"].as_py() in there and ends["max"].as_py() in there):
        raise out_of_range(f"{role} column {described.name}", error, described.name)


def _is_utf8(column: pa.Array) -> bool:
    try:
        # Arrow checks it in this direction only; Spark never does (a cast of binary to string keeps any bytes).
        column.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True

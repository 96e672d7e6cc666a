"""Entries of a state as Arrow has them: a column for each column of the key and of the map key, and each field of the
value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from keyhole.encoding.row import Row, field_values
from keyhole.errors import StaleDescriptor, ValueMismatch
from keyhole.model.read import KeyedEntry
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, not_stored, parsed

_SIMPLE: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@functools.lru_cache(maxsize=256)
def arrow_type(name: str) -> pa.DataType:
    """Of a type's name as descriptors have it."""
    return _made(parsed(name))


def _made(of: TypeName) -> pa.DataType:
    parts = [_made(part) for part in of.parts]
    match of.kind:
        case "decimal":
            return pa.decimal128(*of.digits)
        case "array":
            return pa.list_(parts[0])
        case "map":
            return pa.map_(parts[0], parts[1])
        case "struct":
            return pa.struct([pa.field(name, part) for name, part in zip(of.names, parts, strict=True)])
        case simple if simple in _SIMPLE:
            return _SIMPLE[simple]
    raise not_stored(of.kind)


def entry_schema(descriptor: StateDescriptor, *, with_value: bool = True) -> pa.Schema:
    """All columns of an entry: those of the key, of the map key (of a list: position), the value's.

    Args:
        with_value: False: without the value's.

    Raises:
        ValueMismatch: A column of the key and a field of the value have one name; or, in a list, that of elements'
            places.
    """
    # Of a broadcast state the entries' keys are its keys.
    columns = (*descriptor.key, *(descriptor.entry_key if descriptor.scan_key else ()))
    keys = {column.name: arrow_type(column.type.value) for column in columns}
    if len(keys) < len(columns):
        name = columns[-1].name
        raise ValueMismatch(
            f"state {descriptor.path} has a column {name} in its key, which is what "
            "elements' places are called, and a table has one column of a name; read it as rows of a scan",
            column=name,
        )
    fields = descriptor.value.fields if with_value else ()
    values = {field.name: arrow_type(field.type) for field in fields}
    if twice := sorted(keys.keys() & values.keys()):
        raise ValueMismatch(
            f"state {descriptor.path} has {twice[0]} in its key and in its value, and a "
            "table has one column of a name; read it by key or as rows of a scan, or leave that field out where "
            "fields can be named",
            column=twice[0],
        )
    return pa.schema([*keys.items(), *values.items()])


def entry_batch(entries: Iterable[KeyedEntry], descriptor: StateDescriptor, schema: pa.Schema) -> pa.RecordBatch:
    """Entries as the columns that are asked for.

    Args:
        schema: Some of the columns of `entry_schema`, in any order. Entries whose values were left out have none of the
            value's.

    Raises:
        StaleDescriptor: A value does not fit its column: a field is of another type now than when the scan began.
    """
    found = list(entries)
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(found), pa.struct([])))
    taken: dict[str, Sequence[Any]] = {}
    # Of a broadcast state the entries' keys are its keys.
    entry_key = descriptor.entry_key if descriptor.scan_key else ()
    for columns, keys in ((descriptor.key, [of.key for of in found]), (entry_key, [of.map_key for of in found])):
        for at, column in enumerate(columns):
            taken[column.name] = keys if len(columns) == 1 else [key[at] for key in keys]
    rows = [of.value for of in found]
    try:
        arrays = [pa.array(taken[of.name] if of.name in taken else _field(rows, of), of.type) for of in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # Not as the cause: it may hold the value.
        raise StaleDescriptor(
            f"the schema of state {descriptor.path} was changed while the state was read: a "
            "value does not fit the type that its column had; begin the scan again",
            topic_id=descriptor.topic_id,
        ) from None


def _field(rows: Sequence[Row | None], of: pa.Field) -> list[Any]:
    values = field_values(rows, of.name)
    return [as_arrow(value) for value in values] if pa.types.is_nested(of.type) else values


def as_arrow(value: Any) -> Any:
    """A row, or what is in it, as Arrow takes it: a row as a dict, a map as pairs."""
    convert: Callable[[Any], Any] = as_arrow
    if hasattr(value, "asdict"):
        return {name: convert(value[name]) for name in value}
    if isinstance(value, Mapping):
        return [(key, convert(item)) for key, item in value.items()]
    return [convert(item) for item in value] if isinstance(value, tuple) else value

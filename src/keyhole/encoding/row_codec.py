"""Rows as bytes. Pure: standard library and msgspec only. docs/values.md says it for others.

A stored row is one MessagePack array: the schema's version, then the fields. Rows of the schemas that a state's newest
one evolved from (keyhole.model.evolution) are read as if they were of that one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from keyhole.encoding.row import Row, row_class
from keyhole.encoding.value_types import ValueType, value_type
from keyhole.errors import ValueMismatch
from keyhole.model.evolution import Origin
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema

_encode = msgspec.msgpack.Encoder().encode


def encode_row(version: int, fields: Iterable[Any]) -> bytes:
    """A stored row, of fields as they are stored (docs/values.md)."""
    return _encode([version, *fields])


def field_type(field: ValueField, descriptor: StateDescriptor) -> ValueType:
    """How the field's type stands in a row. Raises ValueMismatch where no row with it can be read."""
    try:
        return value_type(field.type)
    except ValueMismatch as error:
        raise unusable(descriptor, f"field {field.name!r}: {error.message}", field=field.name) from None


def unusable(descriptor: StateDescriptor, why: str, **facts: object) -> ValueMismatch:
    """The error for a state of which no row can be read."""
    name = f"{descriptor.application}/{descriptor.state}"
    return ValueMismatch(
        f"state {name} can't be used: {why}. Declare its fields otherwise; where an earlier version of Keyhole has let "
        "it be declared, give the state another name",
        state=name,
        **facts,
    )


def earlier_row(schema: ValueSchema, places: Sequence[Origin], kinds: Sequence[ValueType]) -> type[Row]:
    """What a row of an earlier schema is decoded to. Of what is dropped later it does not matter what it is."""
    kept = {place: kind.stored for place, kind in zip(places, kinds, strict=True) if isinstance(place, int)}
    return row_class(
        [(field.name, kept.get(at, Any)) for at, field in enumerate(schema.fields)], version=schema.version
    )


def upgrade(
    newest: type[Row], fields: int, places: Sequence[Origin], kinds: Sequence[ValueType]
) -> Callable[[Row], Row]:
    """The function from a row of an earlier schema, of so many fields, to one of the newest."""
    # What a field can be taken from: the old row's fields, and after them the defaults.
    defaults: list[Any] = []
    taken: list[int] = []
    for place, kind in zip(places, kinds, strict=True):
        if isinstance(place, int):
            taken.append(place)
        else:
            taken.append(fields + len(defaults))
            defaults.append(msgspec.msgpack.decode(place, type=kind.stored) if place else None)
    added, astuple = tuple(defaults), msgspec.structs.astuple
    if len(taken) < 2:
        # Of a single one itemgetter makes no tuple.
        return lambda row: newest(*[(astuple(row) + added)[at] for at in taken])
    chosen = operator.itemgetter(*taken)
    return lambda row: newest(*chosen(astuple(row) + added))


def version_of(row: bytes) -> int:
    """Which schema version a row says it is of; 0: it is no row."""
    try:
        fields = msgspec.msgpack.decode(row)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    return fields[0] if isinstance(fields, list) and fields and type(fields[0]) is int else 0

"""Rows cut down to some of their fields: the bytes of these are copied, and nothing is decoded. Pure.

projection = RowProjection(descriptor, ("max", "city"))
projection.rows([row, ...])           # each is [schema version, max, city]
RowCodec(projection.descriptor)       # reads them
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from keyhole.encoding.row_codec import refusal_of
from keyhole.encoding.row_fields import fields_reader
from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor, ValueSchema

# Of a MessagePack array with up to so many elements the first byte says how many.
_SHORT = 15


class RowProjection:
    """Of one state. Rows of earlier schemas give what they would if they were of the newest. Thread-safe.

    Args:
        fields: Names of fields of the value, each once.

    Raises:
        ValueMismatch: There is no such field.

    Attributes:
        descriptor: The state's, with these fields alone, in this order: what is given is of it.
    """

    def __init__(self, descriptor: StateDescriptor, fields: Sequence[str]) -> None:
        self.descriptor = projected(descriptor, fields)
        self._whole = descriptor
        places = [field.name for field in descriptor.value.fields]
        self._cut = _cutter(descriptor, [places.index(name) for name in fields])

    def rows(self, rows: Sequence[bytes]) -> list[bytes]:
        """Makes a row of the projection of each. Raises ValueMismatch, StaleDescriptor: as RowCodec.decode."""
        try:
            return self._cut(rows)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise refusal_of(self._whole, rows) from None


def projected(descriptor: StateDescriptor, fields: Sequence[str]) -> StateDescriptor:
    """The state's, with these fields alone, in this order. Raises ValueMismatch: There is no such field."""
    schema = descriptor.value
    there = {field.name: field for field in schema.fields}
    for name in fields:
        if name not in there:
            raise ValueMismatch(
                f"the value of state {descriptor.path} has no field {name!r}; it has {', '.join(there)}",
                field=name,
            )
    cut = ValueSchema(schema.version, tuple(there[name] for name in fields))
    # Whoever has the rows may learn of a newer schema before it reads them.
    earlier = tuple(of for of in map(functools.partial(_cut_to, fields), descriptor.earlier) if of is not None)
    return msgspec.structs.replace(descriptor, value=cut, earlier=earlier)


def _cut_to(fields: Sequence[str], schema: ValueSchema) -> ValueSchema | None:
    """A schema with these fields alone; None: it has not all of them."""
    there = {field.name: field for field in schema.fields}
    if not there.keys() >= set(fields):
        return None
    return ValueSchema(schema.version, tuple(there[name] for name in fields))


def _cutter(descriptor: StateDescriptor, kept: Sequence[int]) -> Callable[[Sequence[bytes]], list[bytes]]:
    read = fields_reader(descriptor, [(at, ()) for at in kept], as_bytes=True)
    count = len(kept) + 1
    first = bytes([0x90 | count]) if count <= _SHORT else b"\xdc" + count.to_bytes(2, "big")
    header = first + msgspec.msgpack.encode(descriptor.value.version)
    # Places alone are in the text.
    parts = ", ".join(f"r._{at}" for at in kept).replace("r._", "(r := read(row))._", 1)
    names = {"read": read, "header": header, "join": b"".join}
    made: Any = eval(f"lambda rows: [join((header, {parts})) for row in rows]", names)  # noqa: S307
    cut: Callable[[Sequence[bytes]], list[bytes]] = made
    return cut

"""Reads some fields of stored rows, and of the others as little as can be. Pure.

    read = fields_reader(descriptor, [(2, ())])
    read(row)._2

What stands behind the last field that is wanted is not looked at, and what stands before it is not kept. A row of an
earlier schema gives the same as if it were of the newest one (keyhole.encoding.earlier_rows).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from keyhole.encoding.earlier_rows import Origin, origins
from keyhole.encoding.value_types import value_type
from keyhole.hints import ready
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, parsed

RowPlace = tuple[int, tuple[int, ...]]
"""A field of the value, and in a struct, and in a struct of that, the place of the field that is wanted."""


def fields_reader(
    descriptor: StateDescriptor, wanted: Collection[RowPlace], *, as_bytes: bool = False
) -> Callable[[bytes], Any]:
    """Makes the function from a stored row to an object that has the field at place 2 as its attribute `_2`.

    A field of a struct is the attribute of such an object in turn. Values are as they are stored
    (keyhole.encoding.value_types), one that is no simple value as anything that is not None. The function raises
    msgspec.MsgspecError or UnicodeDecodeError for what is no row of the state's schemas.

    Args:
        wanted: One at least.
        as_bytes: Of whole fields what stands in the row, as an msgspec.Raw, or as bytes where that is a default.
    """
    schema = descriptor.value
    kinds = {at: parsed(schema.fields[at].type) for at, _ in wanted}
    types: dict[int, Any] = {
        at: msgspec.Raw if as_bytes else _typed(kind, [inner for of, inner in wanted if of == at])
        for at, kind in kinds.items()
    }
    newest: Sequence[Origin] = range(len(schema.fields))
    classes = [
        _row(version, places, types)
        for version, places in [
            (schema.version, newest),
            *((before.version, places) for before, places in origins(descriptor.earlier, schema)),
        ]
    ]
    decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(functools.reduce(operator.or_, classes)).decode
    return decode


def _row(version: int, places: Sequence[Origin], types: Mapping[int, Any]) -> Any:
    """What a row of a version is decoded to: its fields are called by their places in the newest one."""
    at_home = {place: at for at in types if isinstance(place := places[at], int)}
    defaults = {
        _attribute(at): _default(place, kind) for at, kind in types.items() if not isinstance(place := places[at], int)
    }
    return _array(
        [types[at_home[place]] if place in at_home else None for place in range(max(at_home, default=-1) + 1)],
        [
            _attribute(at_home[place]) if place in at_home else f"x{place}"
            for place in range(max(at_home, default=-1) + 1)
        ],
        namespace=defaults,
        tag=version,
    )


def _default(stored: bytes, kind: Any) -> Any:
    if kind is msgspec.Raw:
        return stored or _NULL
    return msgspec.msgpack.decode(stored, type=kind) if stored else None


def _typed(kind: TypeName, inner: Sequence[tuple[int, ...]]) -> Any:
    """What a field is decoded to of which these are wanted; an empty one: itself."""
    deeper = {place[0] for place in inner if place}
    if not deeper:
        return value_type(kind.kind).stored if not kind.parts and kind.kind != "decimal" else _WHOLE.get(kind.kind, Any)
    types: list[Any] = [
        _typed(kind.parts[at], [place[1:] for place in inner if place[:1] == (at,)]) if at in deeper else None
        for at in range(max(deeper) + 1)
    ]
    return _array(types, [_attribute(at) for at in range(len(types))])


_WHOLE = {"decimal": str}
_NULL = msgspec.msgpack.encode(None)


def _array(types: Sequence[Any], names: Sequence[str], *, namespace: Any = None, tag: int | None = None) -> Any:
    """An array whose further elements are not looked at. Of those whose type is None here nothing is kept."""
    made: Any = msgspec.defstruct(
        "Fields",
        [
            (name, msgspec.Raw if of in (None, msgspec.Raw) else of | None)
            for name, of in zip(names, types, strict=True)
        ],
        namespace=namespace,
        frozen=True,
        array_like=True,
        eq=False,
        gc=False,
        tag=tag,
        tag_field=None if tag is None else "_",
    )
    return ready(made)


def _attribute(at: int) -> str:
    return f"_{at}"

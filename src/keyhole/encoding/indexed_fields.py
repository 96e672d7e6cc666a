"""The fields that a state is indexed by, and the order of their values as bytes. Pure.

An entry of an index stands in the store of the rows, in key groups of its own: the row's, plus 32,768.

    key group, id of the index, value, the row's key behind its key group   ->   the value's length, 1 byte
    2 bytes    4                1 to 64

    null                            00
    whole numbers, date, times      01, then 8 bytes, big-endian, with the sign bit flipped
    float, double                   01, then the 8 bytes of the double: below zero all bits flipped, else the sign bit
    decimal                         01, then the unscaled number in 8 or 16 bytes, with the sign bit flipped
    boolean                         01, then 00 or 01
    string, binary                  01, then as in a key (keyhole.encoding.key_codec), the first 63 bytes of it

A lower value never has greater bytes, equal ones have the same, and none is the beginning of another one. Several long
texts may have the same, so that what an index finds is tested against the rows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from keyhole.encoding.envelope import Moment, visible
from keyhole.encoding.key_codec import encode_bytes, encode_integer
from keyhole.encoding.predicate_binding import FLOATS, WHOLE, is_compared
from keyhole.encoding.row_fields import fields_reader
from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, parsed

ID_BYTES = 4
NULL = b"\0"
THERE = b"\1"
"""What the bytes of all values but null begin with."""
MOST_VALUE_BYTES = 64
INDEX_GROUPS = 1 << 15
"""What is added to a key group: a state with an index has at most as many."""

# Part of each id: entries that were written by another order of values are another index.
_ORDER_VERSION = 1
_TEXT_BYTES = MOST_VALUE_BYTES - len(THERE)
_LONGS = dict.fromkeys((*WHOLE, "date", "timestamp", "timestamp_ntz"), "whole")
_MOST_DIGITS_OF_8_BYTES = 18
_EXACT = Context(prec=100, rounding=ROUND_FLOOR, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
_DOUBLE = struct.Struct(">d")
_BITS = struct.Struct(">Q")
_SIGN, _ALL = 1 << 63, (1 << 64) - 1
_NAN = THERE + _BITS.pack(_ALL)


class IndexBound(NamedTuple):
    """Where what a field is compared with stands among its values. One that it can't have is taken for the next lower.

    Attributes:
        exact: A value of these bytes is equal to it; else it may be less, or of long texts more.
    """

    bytes: bytes
    exact: bool


class IndexedField(NamedTuple):
    """A field of the value that there is an index of.

    Attributes:
        id: Of the index, ID_BYTES bytes. A field that was dropped and added again has another one, and so has one of
            another type, but for types that it can be widened to.
        at: The field's place in the value.
        encode: From a value as it is stored, or None, to the bytes by which it is ordered.
        bound: The same of what it can be compared with.
    """

    name: str
    id: bytes
    at: int
    encode: Callable[[Any], bytes]
    bound: Callable[[Any], IndexBound]


def indexed_fields(descriptor: StateDescriptor) -> tuple[IndexedField, ...]:
    """The state's, in the order in which it names them.

    Raises:
        ValueMismatch: There is no such field in the value, or its type has no order, or it is named twice; or the
            state has too many key groups.
    """
    if descriptor.index and descriptor.key_groups > INDEX_GROUPS:
        raise ValueMismatch(
            f"state {descriptor.path} has {descriptor.key_groups:,} key groups, and one with an index has at most "
            f"{INDEX_GROUPS:,}; leave index out",
            key_groups=descriptor.key_groups,
        )
    return tuple(_indexed(descriptor, name) for name in descriptor.index)


def _indexed(descriptor: StateDescriptor, name: str) -> IndexedField:
    state, fields = descriptor.path, descriptor.value.fields
    if descriptor.index.count(name) > 1:
        raise ValueMismatch(f"state {state}: index names {name!r} twice", field=name)
    places = [at for at, field in enumerate(fields) if field.name == name]
    if not places:
        there = ", ".join(field.name for field in fields)
        columns = (*descriptor.scan_key, *descriptor.entry_key)
        why = "is a column of the key, and no index of these is kept" if _is_in(name, columns) else "is no field of it"
        raise ValueMismatch(
            f"state {state}: index names {name!r}, which {why}; name fields of the value: {there}", field=name
        )
    kind = parsed(fields[places[0]].type)
    if not is_compared(kind):
        raise ValueMismatch(
            f"state {state}: index names {name!r}, which is of type {kind.kind}, whose values have no order; "
            + ("make the field of the struct that is looked for a field of its own" if kind.names else "leave it out"),
            field=name,
            type=kind.kind,
        )
    encode, bound = _encoders(kind)
    return IndexedField(name, _id(descriptor, name, kind), places[0], encode, bound)


def _is_in(name: str, columns: Sequence[Any]) -> bool:
    return any(column.name == name for column in columns)


def _id(descriptor: StateDescriptor, name: str, kind: TypeName) -> bytes:
    since = descriptor.value.version
    for schema in reversed(descriptor.earlier):
        if all(field.name != name for field in schema.fields):
            break
        since = schema.version
    family = _LONGS.get(kind.kind, "double" if kind.kind in FLOATS else f"{kind.kind}{kind.digits}")
    return blake2b(f"{_ORDER_VERSION}\0{name}\0{since}\0{family}".encode(), digest_size=ID_BYTES).digest()


def _encoders(kind: TypeName) -> tuple[Callable[[Any], bytes], Callable[[Any], IndexBound]]:
    if kind.kind in _LONGS:
        return _long, partial(whole_bound, 8)
    if kind.kind in FLOATS:
        return _double, _double_bound
    if kind.kind == "decimal":
        return _decimal(*kind.digits)
    others: dict[str, Callable[[Any], bytes]] = {"string": _string, "binary": _binary, "boolean": _boolean}
    encode = others[kind.kind]
    return encode, lambda value: _whole_text(encode(value))


def _long(value: int | None) -> bytes:
    return NULL if value is None else THERE + encode_integer(value, 8)


def whole_bound(width: int, value: float | Decimal) -> IndexBound:
    """Where a number stands among whole ones of so many bytes, in their order as in a key."""
    half = 1 << 8 * width - 1
    # Compared first: the next whole number of a Decimal may have a billion digits.
    inside = -half <= value < half
    below = math.floor(value) if inside else half - 1 if value > 0 else -half
    return IndexBound(THERE + encode_integer(below, width), inside and below == value)


def _double(value: float | None) -> bytes:
    if value is None:
        return NULL
    if value != value:
        return _NAN
    (bits,) = _BITS.unpack(_DOUBLE.pack(value or 0.0))  # -0.0 is 0.0
    return THERE + _BITS.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def _double_bound(value: float) -> IndexBound:
    try:
        nearest = float(value)
    except OverflowError:  # a whole number beyond all
        nearest = math.inf if value > 0 else -math.inf
    return IndexBound(_double(nearest), nearest == value or value != value)


def _decimal(digits: int, scale: int) -> tuple[Callable[[Any], bytes], Callable[[Any], IndexBound]]:
    width = 8 if digits <= _MOST_DIGITS_OF_8_BYTES else 16
    half = 1 << 8 * width - 1

    def encode(value: str | None) -> bytes:
        return NULL if value is None else bound(Decimal(value)).bytes

    def bound(number: Decimal) -> IndexBound:
        if number and number.adjusted() >= digits - scale:
            unscaled, exact = half - 1 if number > 0 else -half, False
        else:
            scaled = number.scaleb(scale, _EXACT)
            below = scaled.to_integral_value(ROUND_FLOOR, _EXACT)
            unscaled, exact = int(below), below == scaled and len(number.as_tuple().digits) <= _EXACT.prec
        return IndexBound(THERE + (unscaled + half).to_bytes(width, "big"), exact)

    return encode, bound


def _whole_text(text: bytes) -> IndexBound:
    return IndexBound(text, len(text) < MOST_VALUE_BYTES)


def _boolean(value: bool | None) -> bytes:
    return NULL if value is None else b"\1\1" if value else b"\1\0"


def _string(value: str | None) -> bytes:
    return NULL if value is None else _binary(value.encode())


def _binary(value: bytes | None) -> bytes:
    return NULL if value is None else THERE + encode_bytes(value[:_TEXT_BYTES])[:_TEXT_BYTES]


class UnreadableRowError(Exception):
    """A stored row is none of the state's schemas, or newer than the descriptor: its fields can't be known."""


Values = list[bytes | None]
"""Of some rows, the bytes by which one field is ordered; None: there is no row."""


class IndexedRows:
    """Reads the indexed fields of stored entries, expired or not. Thread-safe.

    Args:
        fields: One at least.
    """

    def __init__(self, descriptor: StateDescriptor, fields: Sequence[IndexedField]) -> None:
        shown = visible(descriptor)
        # Before all time nothing has expired.
        self._visible = None if shown is None else shown(Moment(0, 0))
        self._decode = fields_reader(descriptor, [(field.at, ()) for field in fields])
        self._fields = [(attrgetter(f"_{field.at}"), field.encode) for field in fields]

    def values(self, entries: list[bytes | None]) -> list[Values]:
        """By field, of each entry; None: there is none, or it is a deletion that is remembered.

        Raises:
            UnreadableRowError: One of them can't be read.
        """
        try:
            rows = entries if self._visible is None else self._visible.rows(entries)
            decode = self._decode
            found = [None if row is None else decode(row) for row in rows]
            return [[None if of is None else encode(get(of)) for of in found] for get, encode in self._fields]
        except (msgspec.MsgspecError, ValueError, ArithmeticError, struct.error) as error:
            raise UnreadableRowError from error

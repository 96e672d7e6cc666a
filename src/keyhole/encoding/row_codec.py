"""Encodes and decodes rows. Pure: standard library and msgspec only. docs/values.md says it for others.

A stored row is one MessagePack array: the schema's version, then the fields. Rows of the schemas that a state's newest
one evolved from are read as if they were of that one (keyhole.encoding.earlier_rows).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from keyhole.encoding.earlier_rows import Upgrade, upgrades
from keyhole.encoding.key_codec import NO_SUCH_VALUE
from keyhole.encoding.row import Row, row_class
from keyhole.encoding.value_types import ValueType, optional, value_type
from keyhole.errors import InternalError, KeyholeError, StaleDescriptor, ValueMismatch
from keyhole.model.state import StateDescriptor, ValueField

_encode = msgspec.msgpack.Encoder().encode


def encode_row(version: int, fields: Iterable[Any]) -> bytes:
    """Makes a stored row, of fields as they are stored (docs/values.md)."""
    return _encode([version, *fields])


def check_usable(descriptor: StateDescriptor) -> None:
    """Raises ValueMismatch where no row of the state can be read, and so none written; see RowCodec."""
    RowCodec(descriptor)


def refusal_of(descriptor: StateDescriptor, rows: Iterable[bytes]) -> KeyholeError:
    """The error for rows of which one can't be read: what `RowCodec.decode` raises for it."""
    decode = RowCodec(descriptor).decode
    try:
        for row in rows:
            decode(row)
    except KeyholeError as error:
        return error
    return InternalError("a row can be read whole, and some of its fields can't be read alone, by a bug of Keyhole's")


class RowCodec:
    """Reads the rows of one state, whichever of its schemas they are of. Thread-safe.

    Raises:
        ValueMismatch: No row of the state can be read, and so none written: the message names the field, and what can
            be done. A job can't declare one of that kind (keyhole.protocol.registration.settled).

    Attributes:
        decode: Stored row -> Row of the newest schema; raises ValueMismatch for a row that is of none of the
            descriptor's schemas, StaleDescriptor for one of a newer version: describe the state again.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor
        schema = descriptor.value
        self._types = [(field.name, _type(field, descriptor)) for field in schema.fields]
        try:
            newest = row_class([(name, kind.stored) for name, kind in self._types], version=schema.version)
            older = upgrades(newest, schema, descriptor.earlier, [kind for _, kind in self._types])
            # msgspec picks by the version, as it decodes.
            any_version = msgspec.msgpack.Decoder(functools.reduce(operator.or_, older, newest))
        except (TypeError, ValueError) as error:  # whatever msgspec has against the rows of a schema
            raise _unusable(descriptor, str(error)) from error
        self._stored = self._stored_decoder(any_version.decode, newest, older)
        self.decode = self._decoder(newest)

    def to_json(self, row: bytes) -> str:
        """Makes a JSON object by field name of a stored row (docs/values.md). Raises as `decode`."""
        stored = self._stored(row)
        try:
            fields = {name: optional(kind.to_json)(stored[name]) for name, kind in self._types}
        except NO_SUCH_VALUE:
            raise self._mismatch(row) from None
        return msgspec.json.encode(fields).decode()

    def each_to_json(self, rows: Iterable[bytes]) -> list[bytes]:
        """Makes JSON of each row, in UTF-8; empty bytes, which are no row, stay so. Raises as `decode`."""
        return [self.to_json(row).encode() if row else b"" for row in rows]

    def stored_fields(self, row: bytes) -> tuple[Any, ...]:
        """Returns the fields of a stored row as they would stand in one of the newest schema. Raises as `decode`."""
        return msgspec.structs.astuple(self._stored(row))

    def _stored_decoder(
        self, decode: Callable[[bytes], Row], newest: type[Row], older: dict[type[Row], Upgrade]
    ) -> Callable[[bytes], Row]:
        """Fields as they are stored, in a row of the newest schema whichever the row is of."""

        def decode_newest(row: bytes) -> Row:
            try:
                return decode(row)
            except msgspec.MsgspecError as error:
                raise self._mismatch(row) from error
            except UnicodeDecodeError:
                raise self._mismatch(row) from None  # it holds the value

        def decode_any(row: bytes) -> Row:
            # As above, without one more call: it is the hot path of a state whose schema has evolved.
            try:
                found = decode(row)
            except msgspec.MsgspecError as error:
                raise self._mismatch(row) from error
            except UnicodeDecodeError:
                raise self._mismatch(row) from None
            return found if type(found) is newest else older[type(found)](found)

        return decode_any if older else decode_newest

    def _decoder(self, newest: type[Row]) -> Callable[[bytes], Row]:
        converted = [(name, kind.to_python) for name, kind in self._types]
        stored = self._stored
        if all(convert is None for _, convert in converted):
            return stored
        fields = [(name, optional(convert)) for name, convert in converted]

        def decode(row: bytes) -> Row:
            found = stored(row)
            try:
                return newest(*[convert(found[name]) for name, convert in fields])
            except NO_SUCH_VALUE:
                # Not as the cause: it may hold the value.
                raise self._mismatch(row) from None

        return decode

    def _mismatch(self, row: bytes) -> ValueMismatch | StaleDescriptor:
        name, version = self._descriptor.path, self._descriptor.value.version
        if (newer := _version_of(row)) > version:
            return StaleDescriptor(
                f"a row of state {name} is of schema version {newer}, and {version} was the newest when the state was "
                "described; describe it again",
                state=name,
                version=version,
            )
        return ValueMismatch(
            f"a row of {len(row)} bytes is not of schema version {version} of state {name}; describe the state again",
            state=name,
            version=version,
        )


def _type(field: ValueField, descriptor: StateDescriptor) -> ValueType:
    try:
        return value_type(field.type)
    except ValueMismatch as error:
        raise _unusable(descriptor, f"field {field.name!r}: {error.message}", field=field.name) from None


def _unusable(descriptor: StateDescriptor, why: str, **facts: object) -> ValueMismatch:
    name = descriptor.path
    return ValueMismatch(
        f"state {name} can't be used: {why}. Declare its fields otherwise; where an earlier version of Keyhole has let "
        "it be declared, give the state another name",
        state=name,
        **facts,
    )


def _version_of(row: bytes) -> int:
    """Which schema version a row says it is of; 0: it is no row."""
    try:
        fields = msgspec.msgpack.decode(row)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    return fields[0] if isinstance(fields, list) and fields and type(fields[0]) is int else 0

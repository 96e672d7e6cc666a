"""A program's own writes as updates: Python's values become JSON, and a counter of its own numbers them. Pure.

put("c1", {"amount": 12.5})    -> key group 14: [1, "<random>", 0, 0, 0, 0, 1, ["c1"], null, [12.5]]
delete("c1")                   -> key group 14: [1, "<random>", 0, 1, 0, 1, 1, ["c1"], null, null]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from keyhole.encoding.key_values import plain
from keyhole.encoding.murmur3 import key_group
from keyhole.encoding.reducers import parse
from keyhole.encoding.row_codec import RowCodec, encode_row
from keyhole.encoding.value_types import optional, value_type
from keyhole.errors import KeyMismatch, MalformedRequest, ValueMismatch
from keyhole.feed.mapping import RoutedUpdate
from keyhole.model.state import StateDescriptor, StateKind, ValueField
from keyhole.protocol.updates import DELETE, PUT, UpdateRecord

_METHOD = {
    StateKind.VALUE: "put",
    StateKind.MAP: "put",
    StateKind.BROADCAST: "put",
    StateKind.REDUCING: "add",
    StateKind.LIST: "append",
}


class WriteToken(msgspec.Struct, frozen=True):
    """What a producer has written, for whoever reads it: by key group, the epoch from which on a copy has all of it.

    An epoch of a state that is fed by updates is an offset of its updates partition: that of the last update, and one.
    A token may be sent on as JSON.
    """

    epochs: dict[int, int] = {}

    def min_epoch(self, key_group: int) -> int:
        """What a read of a key of that key group asks for to see the writes; 0: there were none."""
        return self.epochs.get(key_group, 0)


class UpdateWrites:
    """Makes the updates of one producer of a state, numbered as they are made. Not thread-safe.

    Args:
        source: Of this producer alone, and never used again.
    """

    def __init__(self, descriptor: StateDescriptor, source: str) -> None:
        self._descriptor = descriptor
        self._name = descriptor.path
        self._source = source
        self._rows = RowCodec(descriptor)
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        self._types = [column.type for column in descriptor.key]
        self._counted = {
            field.name
            for field, reducer in zip(descriptor.value.fields, descriptor.reducers, strict=False)
            if parse(reducer).reducer.of_presence
        }
        self.next = 0
        """The number of the next update."""

    def write(self, method: str, key: object, value: Mapping[str, Any]) -> RoutedUpdate:
        """A row: `put` in a value, map or broadcast state, `add` in a reducing one, `append` in a list.

        Args:
            method: As the caller calls it.
            key: One value, or a tuple of one per column of the key, then of the map key.
            value: By field; one that lacks is null, or of a count 0.

        Raises:
            MalformedRequest: The state's kind has another method.
            KeyMismatch, NullKey, ValueMismatch: It does not fit the state.
        """
        kind = self._descriptor.kind
        if _METHOD.get(kind) != method:
            raise MalformedRequest(f"state {self._name} is a {kind} state: use {_METHOD.get(kind, 'another')}")
        names, map_names = len(self._descriptor.key), len(self._descriptor.map_key)
        values = self._values(key)
        if len(values) != names + map_names:
            raise self._mismatch(len(values))
        return self._update(PUT, values, self._json(value))

    def delete(self, key: object, order: Any = None) -> RoutedUpdate:
        """A deletion of a key; in a map of the entry, or, without the map key, of all entries.

        Args:
            key: See `write`.
            order: Of states that remember deletions by order: the order of this one.

        Raises:
            MalformedRequest: An order is given, and the state has none; or the other way round.
            KeyMismatch, NullKey, ValueMismatch: It does not fit the state.
        """
        values = self._values(key)
        if len(values) not in (len(self._descriptor.key), len(self._descriptor.key) + len(self._descriptor.map_key)):
            raise self._mismatch(len(values))
        if bool(self._descriptor.keep_deleted_ms) != (order is not None):
            raise MalformedRequest(
                f"deletions in state {self._name} have {'an' if self._descriptor.keep_deleted_ms else 'no'} order"
            )
        return self._update(DELETE, values, None if order is None else [self._order(order)])

    def key_group(self, key: object) -> int:
        """Of a key, with or without its map key. Raises KeyMismatch, NullKey."""
        return self._group(self._values(key))

    def _update(self, operation: int, values: list[Any], value: list[Any] | None) -> RoutedUpdate:
        group = self._group(values)
        as_json = [
            optional(value_type(column.type).to_json)(value_type(column.type).from_given(given))
            for column, given in zip((*self._descriptor.key, *self._descriptor.map_key), values, strict=False)
        ]
        names = len(self._descriptor.key)
        version = self._descriptor.value.version
        record = UpdateRecord(
            self._source,
            0,
            self.next,
            0,
            operation,
            version,
            [_text_of(part) for part in as_json[:names]],
            [_text_of(part) for part in as_json[names:]] or None,
            value,
        )
        self.next += 1
        return RoutedUpdate(group, record)

    def _group(self, values: list[Any]) -> int:
        if self._descriptor.kind is StateKind.BROADCAST:
            return 0
        return key_group(values[: len(self._types)], self._types, self._descriptor.key_groups)

    def _values(self, key: object) -> list[Any]:
        given = key if isinstance(key, tuple) else (key,)
        columns = (*self._descriptor.key, *self._descriptor.map_key)
        if not len(self._descriptor.key) <= len(given) <= len(columns):
            raise self._mismatch(len(given))
        return [plain(column, part) for column, part in zip(columns, given, strict=False)]

    def _mismatch(self, found: int) -> KeyMismatch:
        columns = (*self._descriptor.key, *self._descriptor.map_key)
        wanted = ", ".join(f"{column.name} {column.type}" for column in columns)
        return KeyMismatch(f"the key has {found} columns; state {self._name} has {len(columns)}: {wanted}")

    def _json(self, value: Mapping[str, Any]) -> list[Any]:
        fields = self._descriptor.value.fields
        if not isinstance(value, Mapping):
            raise ValueMismatch(
                f"a value of state {self._name} is given by field, as {{{fields[0].name!r}: ...}}, not as a "
                f"{type(value).__name__}"
            )
        if unknown := sorted(map(str, value.keys() - {field.name for field in fields})):
            raise ValueMismatch(f"state {self._name} has no field {unknown[0]}", field=unknown[0])
        stored = [self._stored(field, value.get(field.name)) for field in fields]
        by_name = self._decode(self._rows.to_json(encode_row(self._descriptor.value.version, stored)))
        return [by_name[field.name] for field in fields]

    def _stored(self, field: ValueField, value: Any) -> Any:
        if value is None and field.name in self._counted:
            return 0
        if value is None and field.nullable:
            return None
        try:
            return value_type(field.type).from_given(value)
        except (ValueError, OverflowError, TypeError, KeyError):
            # Not as the cause: it may hold the value.
            raise ValueMismatch(
                f"field {field.name} of state {self._name} is a {field.type}, and a {type(value).__name__} that was "
                "given does not fit it; docs/values.md has what a value of each type is in Python",
                field=field.name,
            ) from None

    def _order(self, order: Any) -> Any:
        (field,) = (field for field in self._descriptor.value.fields if field.name == self._descriptor.order_by)
        return optional(value_type(field.type).to_json)(self._stored(field, order))


def _text_of(part: Any) -> Any:
    """Of a key column of bytes its base64, which is how JSON has it; all else is that already."""
    return msgspec.to_builtins(part)

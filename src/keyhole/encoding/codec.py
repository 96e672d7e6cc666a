"""One state's keys and rows as bytes: what every client and server has of a state. Pure."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from keyhole.encoding.key_codec import NO_SUCH_VALUE, KeyCodec, end_of_prefix, storage_key_encoder
from keyhole.encoding.key_values import KeyValue
from keyhole.encoding.row import Row, row_class
from keyhole.encoding.row_codec import earlier_row, field_type, unusable, upgrade, version_of
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.encoding.value_types import optional
from keyhole.errors import StaleDescriptor, ValueMismatch
from keyhole.model.evolution import origins
from keyhole.model.state import StateDescriptor


class EntryRange(NamedTuple):
    """Entries of one key, as a range of storage keys.

    Attributes:
        prefix: What the storage keys of all entries of the key begin with; what follows is the map key, encoded.
        start: Inclusive.
        stop: Exclusive; None: the end of the key group.
    """

    prefix: bytes
    start: bytes
    stop: bytes | None


class StateCodec:
    """Keys and rows of one state. Thread-safe.

    Raises:
        ValueMismatch: No row of the state can be read, and so none written: the message names the field, and what can
            be done. A job can't declare one of that kind (keyhole.protocol.registration.settled).

    Attributes:
        storage_key: Key (one value, or a tuple of one per column, then one per column of the map key) -> storage key;
            raises as KeyCodec.check. The hot path of every client: specialised for one string or one whole number.
        decode_row: Stored row -> Row of the newest schema; raises ValueMismatch for a row that is of none of the
            descriptor's schemas, StaleDescriptor for one of a newer version: describe the state again.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self.descriptor = descriptor
        self.keys = KeyCodec(descriptor.scan_key)
        self.entries = KeyCodec(descriptor.entry_key)
        whole = KeyCodec((*descriptor.scan_key, *descriptor.entry_key))
        self.storage_key = storage_key_encoder(whole, len(descriptor.scan_key), descriptor.key_groups)
        self._prefix = storage_key_encoder(self.keys, len(descriptor.scan_key), descriptor.key_groups)
        self._types = [(field.name, field_type(field, descriptor)) for field in descriptor.value.fields]
        try:
            self._row = row_class([(name, kind.stored) for name, kind in self._types], version=descriptor.value.version)
            self._decode = self._stored_decoder()
        except (TypeError, ValueError) as error:  # whatever msgspec has against the rows of a schema
            raise unusable(descriptor, str(error)) from error
        self.decode_row = self._row_decoder()

    def key(self, storage_key: bytes) -> tuple[KeyValue, ...]:
        """The values of the key, without those of the map key. Raises MalformedRequest."""
        return self.keys.decode_first(storage_key[GROUP_BYTES:])[0]

    def entry(self, storage_key: bytes) -> tuple[tuple[KeyValue, ...], tuple[KeyValue, ...]]:
        """The values of the key, and those of the map key. Raises MalformedRequest."""
        key, rest = self.keys.decode_first(storage_key[GROUP_BYTES:])
        return key, self.entries.decode(rest)

    def prefix_length(self, storage_key: bytes) -> int:
        """How much of a storage key the key group and the key take. Raises MalformedRequest."""
        _, rest = self.keys.decode_first(storage_key[GROUP_BYTES:])
        return len(storage_key) - len(rest)

    def prefix(self, key: object) -> bytes:
        """What the storage keys of all entries of a key begin with. Raises as KeyCodec.check."""
        return self._prefix(key)

    def entry_range(self, key: object, start: Sequence[Any], stop: Sequence[Any]) -> EntryRange:
        """The entries of a key whose map key is at least `start` and below `stop`.

        Args:
            start, stop: The first columns of a map key, or all of them; empty: no bound.

        Raises:
            KeyMismatch, NullKey: A value does not fit its column.
        """
        prefix = self.prefix(key)
        end = prefix + self.entries.encode_first(stop) if stop else end_of_prefix(prefix)
        return EntryRange(prefix, prefix + self.entries.encode_first(start), end)

    def storage_keys(self, keys: Iterable[tuple[KeyValue, ...]]) -> list[bytes]:
        """Of keys that are given as the values of their columns, also where that is one. Raises as KeyCodec.check."""
        return [self.storage_key(key if len(key) != 1 else key[0]) for key in keys]

    def rows_to_json(self, rows: Iterable[bytes]) -> list[bytes]:
        """Each row as `row_to_json` says it, in UTF-8; empty bytes, which are no row, stay so. Raises as it."""
        return [self.row_to_json(row).encode() if row else b"" for row in rows]

    def row_to_json(self, row: bytes) -> str:
        """A stored row as a JSON object by field name (docs/values.md). Raises as `decode_row`."""
        stored = self._decode(row)
        try:
            fields = {name: optional(kind.to_json)(stored[name]) for name, kind in self._types}
        except NO_SUCH_VALUE:
            raise self._mismatch(row) from None
        return msgspec.json.encode(fields).decode()

    def stored_fields(self, row: bytes) -> tuple[Any, ...]:
        """The fields of a stored row as they would stand in one of the newest schema. Raises as `decode_row`."""
        return msgspec.structs.astuple(self._decode(row))

    def _stored_decoder(self) -> Callable[[bytes], Row]:
        """Fields as they are stored, in a row of the newest schema whichever the row is of."""
        newest, value = self._row, self.descriptor.value
        if not self.descriptor.earlier:
            decode: Callable[[bytes], Row] = msgspec.msgpack.Decoder(newest).decode

            def decode_newest(row: bytes) -> Row:
                try:
                    return decode(row)
                except msgspec.MsgspecError as error:
                    raise self._mismatch(row) from error
                except UnicodeDecodeError:
                    raise self._mismatch(row) from None  # it holds the value

            return decode_newest
        kinds = [kind for _, kind in self._types]
        upgrades: dict[type[Row], Callable[[Row], Row]] = {}
        places = origins(self.descriptor.earlier, value)
        for schema in self.descriptor.earlier:
            older = earlier_row(schema, places[schema.version], kinds)
            upgrades[older] = upgrade(newest, len(schema.fields), places[schema.version], kinds)
        # msgspec picks by the version, as it decodes.
        any_version: Callable[[bytes], Row] = msgspec.msgpack.Decoder(
            functools.reduce(operator.or_, upgrades, newest)
        ).decode

        def decode_any(row: bytes) -> Row:
            try:
                found = any_version(row)
            except msgspec.MsgspecError as error:
                raise self._mismatch(row) from error
            except UnicodeDecodeError:
                raise self._mismatch(row) from None
            return found if type(found) is newest else upgrades[type(found)](found)

        return decode_any

    def _mismatch(self, row: bytes) -> ValueMismatch | StaleDescriptor:
        name, version = f"{self.descriptor.application}/{self.descriptor.state}", self.descriptor.value.version
        if (newer := version_of(row)) > version:
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

    def _row_decoder(self) -> Callable[[bytes], Row]:
        converted = [(name, kind.to_python) for name, kind in self._types]
        if all(convert is None for _, convert in converted):
            return self._decode
        make, decode = self._row, self._decode
        fields = [(name, optional(convert)) for name, convert in converted]

        def decode_converted(row: bytes) -> Row:
            stored = decode(row)
            try:
                return make(*[convert(stored[name]) for name, convert in fields])
            except NO_SUCH_VALUE:
                # Not as the cause: it may hold the value.
                raise self._mismatch(row) from None

        return decode_converted

"""Keys and rows as bytes. Pure: standard library and msgspec only. docs/keys.md and docs/values.md say it for others.

A storage key is the key group (2 bytes, big-endian), then the encoded key, then, in states that have one, the map key
or the position in the list. The encoding keeps the order of each column's values, column by column, and delimits
itself: no encoded key is the beginning of another one. So ranges and prefixes of keys are ranges of bytes, and all
entries of a key stand together.

    string, binary      the bytes, 00 as 00 FF, then 00 00
    boolean             00 or 01
    smallint, int, bigint, date (days), timestamp (microseconds)
                        2, 4, 8, 4, 8 bytes, big-endian, with the sign bit flipped

A stored row is one MessagePack array: the schema's version, then the fields. Rows of the schemas that a state's newest
one evolved from (keyhole.evolution) are read as if they were of that one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from keyhole.errors import KeyMismatch, MalformedRequest, StaleDescriptor, ValueMismatch
from keyhole.evolution import Origin, origins
from keyhole.key_values import BYTES, KeyValue, plain
from keyhole.placement import HASHES, SEED, days, hash_bytes, hash_int, hash_long, micros
from keyhole.row import Row, row_class
from keyhole.storage_key import GROUP_BYTES, prefix_of
from keyhole.types import KeyColumn, KeyType, StateDescriptor, ValueField, ValueSchema
from keyhole.value_types import ValueType, optional, value_type

__all__ = ["EntryRange", "KeyCodec", "Row", "StateCodec", "encode_row"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_END = b"\0\0"
# Stored dates, timestamps and decimals that Python has no value for.
_NO_SUCH_VALUE = (ValueError, ArithmeticError)

_encode = msgspec.msgpack.Encoder().encode


def encode_row(version: int, fields: Iterable[Any]) -> bytes:
    """A stored row, of fields as they are stored (docs/values.md)."""
    return _encode([version, *fields])


def encode_bytes(data: bytes) -> bytes:
    """A string's or a binary's bytes as part of a key."""
    return (data.replace(b"\0", b"\0\xff") if b"\0" in data else data) + _END


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The first bytes after all that begin with these; None: there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def encode_integer(value: int, width: int) -> bytes:
    """A whole number as part of a key, in `width` bytes."""
    return (value + (1 << 8 * width - 1)).to_bytes(width, "big")


_ENCODE: dict[KeyType, Callable[[Any], bytes]] = {
    KeyType.STRING: lambda value: encode_bytes(value.encode()),
    KeyType.BINARY: encode_bytes,
    KeyType.BOOLEAN: lambda value: b"\1" if value else b"\0",
    KeyType.SMALLINT: lambda value: encode_integer(value, 2),
    KeyType.INT: lambda value: encode_integer(value, 4),
    KeyType.BIGINT: lambda value: encode_integer(value, 8),
    KeyType.DATE: lambda value: encode_integer(days(value), 4),
    KeyType.TIMESTAMP: lambda value: encode_integer(micros(value), 8),
}


class KeyCodec:
    """The encoding of keys with these columns; knows nothing of key groups."""

    def __init__(self, columns: Iterable[KeyColumn]) -> None:
        self.columns = tuple(columns)

    def check(self, key: object) -> tuple[Any, ...]:
        """The key's values, one per column, as Python's own types.

        Args:
            key: One value where there is one column, else a tuple or list.

        Raises:
            KeyMismatch: Another number of columns, or a value that does not fit its column's type.
            NullKey: A value is None.
        """
        values = tuple(key) if isinstance(key, (tuple, list)) else (key,)
        if len(values) != len(self.columns):
            raise KeyMismatch(
                f"the key has {len(values)} column{'s' * (len(values) != 1)}, the state's key has {len(self.columns)}: "
                f"{self._described()}",
                columns=self._described(),
            )
        return tuple(plain(column, value) for column, value in zip(self.columns, values, strict=True))

    def _described(self) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    def encode(self, key: object) -> bytes:
        """The encoded key. Raises as `check`."""
        return self.encode_values(self.check(key))

    def encode_first(self, values: Sequence[Any]) -> bytes:
        """The encoding of the first columns alone, as many as there are values: where all that begin so begin.

        Raises:
            KeyMismatch: More values than columns, or one that does not fit its column's type.
            NullKey: A value is None.
        """
        if len(values) > len(self.columns):
            raise KeyMismatch(
                f"{len(values)} values are given; the columns are {self._described()}", columns=self._described()
            )
        first = [plain(column, value) for column, value in zip(self.columns, values, strict=False)]
        return b"".join(_ENCODE[column.type](value) for column, value in zip(self.columns, first, strict=False))

    def encode_values(self, values: Sequence[Any]) -> bytes:
        """As `encode`, of values that were checked."""
        return b"".join(_ENCODE[column.type](value) for column, value in zip(self.columns, values, strict=True))

    def decode(self, data: bytes) -> tuple[KeyValue, ...]:
        """The key's values.

        Raises:
            MalformedRequest: These bytes are no key of these columns.
        """
        values, rest = self.decode_first(data)
        if rest:
            raise MalformedRequest(f"not an encoded key of {self._described()}: {len(rest)} bytes too many")
        return values

    def decode_first(self, data: bytes) -> tuple[tuple[KeyValue, ...], bytes]:
        """The key's values, and what stands after them. Raises MalformedRequest."""
        values: list[KeyValue] = []
        try:
            for column in self.columns:
                value, data = _decode(column.type, data)
                values.append(value)
        except (ValueError, OverflowError, IndexError):
            # Not as the cause: it may hold bytes of the key.
            raise MalformedRequest(f"not an encoded key of {self._described()}") from None
        return tuple(values), data


def _decode(kind: KeyType, data: bytes) -> tuple[KeyValue, bytes]:
    """One column, and the bytes after it."""
    if kind in (KeyType.STRING, KeyType.BINARY):
        raw, rest = _decode_bytes(data)
        return (raw.decode() if kind is KeyType.STRING else raw), rest
    if kind is KeyType.BOOLEAN:
        if data[0] > 1:
            raise ValueError("neither 0 nor 1")
        return data[0] == 1, data[1:]
    width = BYTES[kind]
    if len(data) < width:
        raise ValueError("too short")
    number = int.from_bytes(data[:width], "big") - (1 << 8 * width - 1)
    if kind is KeyType.DATE:
        return date.fromordinal(number + _EPOCH_DAY), data[width:]
    if kind is KeyType.TIMESTAMP:
        return _EPOCH + timedelta(microseconds=number), data[width:]
    return number, data[width:]


def _decode_bytes(data: bytes) -> tuple[bytes, bytes]:
    parts, at = [], 0
    while True:
        zero = data.index(b"\0", at)
        parts.append(data[at:zero])
        at = zero + 2
        if data[zero + 1] == 0:
            return b"".join(parts), data[at:]
        if data[zero + 1] != 0xFF:
            raise ValueError("a zero byte that is neither escaped nor the end")
        parts.append(b"\0")


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
            be done. A job can declare no such state (keyhole.coordinator.decisions.settled).

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
        self.storage_key = _storage_key_encoder(whole, len(descriptor.scan_key), descriptor.key_groups)
        self._prefix = _storage_key_encoder(self.keys, len(descriptor.scan_key), descriptor.key_groups)
        self._types = [(field.name, _type_of(field, descriptor)) for field in descriptor.value.fields]
        try:
            self._row = row_class([(name, kind.stored) for name, kind in self._types], version=descriptor.value.version)
            self._decode = self._stored_decoder()
        except (TypeError, ValueError) as error:  # whatever msgspec has against the rows of a schema
            raise _unusable(descriptor, str(error)) from error
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

    def row_to_json(self, row: bytes) -> str:
        """A stored row as a JSON object by field name (docs/values.md). Raises as `decode_row`."""
        stored = self._decode(row)
        try:
            fields = {name: optional(kind.to_json)(stored[name]) for name, kind in self._types}
        except _NO_SUCH_VALUE:
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
            older = _earlier_row(schema, places[schema.version], kinds)
            upgrades[older] = _upgrade(newest, len(schema.fields), places[schema.version], kinds)
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
            except _NO_SUCH_VALUE:
                # Not as the cause: it may hold the value.
                raise self._mismatch(row) from None

        return decode_converted


def _type_of(field: ValueField, descriptor: StateDescriptor) -> ValueType:
    try:
        return value_type(field.type)
    except ValueMismatch as error:
        raise _unusable(descriptor, f"field {field.name!r}: {error.message}", field=field.name) from None


def _unusable(descriptor: StateDescriptor, why: str, **facts: object) -> ValueMismatch:
    name = f"{descriptor.application}/{descriptor.state}"
    return ValueMismatch(
        f"state {name} can't be used: {why}. Declare its fields otherwise; where an earlier version of Keyhole has let "
        "it be declared, give the state another name",
        state=name,
        **facts,
    )


def _earlier_row(schema: ValueSchema, places: Sequence[Origin], kinds: Sequence[ValueType]) -> type[Row]:
    """What a row of an earlier schema is decoded to. Of what is dropped later it does not matter what it is."""
    kept = {place: kind.stored for place, kind in zip(places, kinds, strict=True) if isinstance(place, int)}
    return row_class(
        [(field.name, kept.get(at, Any)) for at, field in enumerate(schema.fields)], version=schema.version
    )


def _upgrade(
    newest: type[Row], fields: int, places: Sequence[Origin], kinds: Sequence[ValueType]
) -> Callable[[Row], Row]:
    """From a row of an earlier schema, of so many fields, to one of the newest."""
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


def _version_of(row: bytes) -> int:
    """Which schema version a row says it is of; 0: it is no row."""
    try:
        fields = msgspec.msgpack.decode(row)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    return fields[0] if isinstance(fields, list) and fields and type(fields[0]) is int else 0


def _storage_key_encoder(keys: KeyCodec, hashed: int, key_groups: int) -> Callable[[Any], bytes]:
    """`hashed`: how many of the columns, the first ones, the key group depends on."""
    prefixes = [prefix_of(group) for group in range(key_groups)]
    half, whole = 1 << 31, 1 << 32
    # hash_* are unsigned; Spark's pmod is of the signed number.
    shift = -whole % key_groups

    def group_of(h: int) -> bytes:
        return prefixes[(h + shift if h >= half else h) % key_groups]

    kinds = [column.type for column in keys.columns]

    def general(key: object) -> bytes:
        values = keys.check(key)
        h = SEED
        for kind, value in zip(kinds[:hashed], values, strict=False):
            h = HASHES[kind](value, h)
        return group_of(h) + keys.encode_values(values)

    def string(key: object) -> bytes:
        if type(key) is not str:
            return general(key)
        try:
            data = key.encode()
        except UnicodeEncodeError:
            data = None
        if data is None:
            # Refused there; not in the handler above, whose exception holds the key.
            return general(key)
        h = hash_bytes(data)
        return prefixes[(h + shift if h >= half else h) % key_groups] + encode_bytes(data)

    if not kinds:
        return general
    width = BYTES.get(kinds[0], 8)
    bias = 1 << 8 * width - 1
    hash_integer = hash_long if width == 8 else hash_int

    def integer(key: object) -> bytes:
        if type(key) is not int or not -bias <= key < bias:
            return general(key)
        h = hash_integer(key)
        return prefixes[(h + shift if h >= half else h) % key_groups] + (key + bias).to_bytes(width, "big")

    if kinds == [KeyType.STRING]:
        return string
    if kinds in ([KeyType.SMALLINT], [KeyType.INT], [KeyType.BIGINT]):
        return integer
    return general

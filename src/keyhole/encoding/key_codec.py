"""Keys as bytes. Pure: standard library and msgspec only. docs/keys.md says it for others.

A storage key is the key group (2 bytes, big-endian), then the encoded key, then, in states that have one, the map key
or the position in the list. The encoding keeps the order of each column's values, column by column, and delimits
itself: no encoded key is the beginning of another one. So ranges and prefixes of keys are ranges of bytes, and all
entries of a key stand together.

    string, binary      the bytes, 00 as 00 FF, then 00 00
    boolean             00 or 01
    smallint, int, bigint, date (days), timestamp (microseconds)
                        2, 4, 8, 4, 8 bytes, big-endian, with the sign bit flipped
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from keyhole.encoding.key_values import BYTES, KeyValue, plain
from keyhole.encoding.murmur3 import HASHES, SEED, days, hash_bytes, hash_int, hash_long, micros
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import KeyMismatch, MalformedRequest
from keyhole.model.state import KeyColumn, KeyType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_END = b"\0\0"
# Stored dates, timestamps and decimals that Python has no value for.
NO_SUCH_VALUE = (ValueError, ArithmeticError)


def encode_bytes(data: bytes) -> bytes:
    """Returns a string's or a binary's bytes as part of a key."""
    return (data.replace(b"\0", b"\0\xff") if b"\0" in data else data) + _END


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Returns the first bytes after all that begin with these; None: there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def encode_integer(value: int, width: int) -> bytes:
    """Returns a whole number as part of a key, in `width` bytes."""
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
    """Encodes keys that have these columns, and decodes them; knows nothing of key groups."""

    def __init__(self, columns: Iterable[KeyColumn]) -> None:
        self.columns = tuple(columns)

    def check(self, key: object) -> tuple[Any, ...]:
        """Returns the key's values, one per column, as Python's own types.

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
        """Returns the encoded key. Raises as `check`."""
        return self.encode_values(self.check(key))

    def encode_first(self, values: Sequence[Any]) -> bytes:
        """Encodes the first columns alone, as many as there are values: every key that begins with these begins so.

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

    def encode_prefix(self, values: Sequence[Any]) -> bytes:
        """As `encode_first`, of keys whose column of the last value begins so, and need not be the same.

        Raises:
            KeyMismatch: Also where that column is no text and no bytes.
            NullKey: A value is None.
        """
        encoded = self.encode_first(values)
        last = self.columns[len(values) - 1]
        if last.type not in (KeyType.STRING, KeyType.BINARY):
            raise KeyMismatch(
                f"key column {last.name} is a {last.type}, of which there is no prefix; give start and stop",
                column=last.name,
            )
        return encoded[: -len(_END)]

    def encode_values(self, values: Sequence[Any]) -> bytes:
        """Returns the encoded key, of values that `check` has passed; raises nothing."""
        return b"".join(_ENCODE[column.type](value) for column, value in zip(self.columns, values, strict=True))

    def decode(self, data: bytes) -> tuple[KeyValue, ...]:
        """Returns the key's values.

        Raises:
            MalformedRequest: These bytes are no key of these columns.
        """
        values, rest = self.decode_first(data)
        if rest:
            raise MalformedRequest(f"not an encoded key of {self._described()}: {len(rest)} bytes too many")
        return values

    def decode_first(self, data: bytes) -> tuple[tuple[KeyValue, ...], bytes]:
        """Returns the key's values, and the bytes after them. Raises MalformedRequest."""
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
    """Decodes one column. Returns its value, and the bytes after it."""
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


def key_encoder(keys: KeyCodec) -> Callable[[Any], bytes]:
    """Makes the function from a key to the encoded key, which is the storage key without its key group; that raises as
    KeyCodec.check. It takes a small part of the time that the storage key takes, as it hashes nothing.
    """
    if [column.type for column in keys.columns] != [KeyType.STRING]:
        return keys.encode

    def string(key: object) -> bytes:
        if type(key) is str:
            try:
                return encode_bytes(key.encode())
            except UnicodeEncodeError:
                pass  # refused below: this exception holds the key
        return keys.encode(key)

    return string


def storage_key_encoder(keys: KeyCodec, hashed: int, key_groups: int) -> Callable[[Any], bytes]:
    """Makes the function from a key to its storage key; that raises as KeyCodec.check.

    Args:
        hashed: How many of the columns, the first ones, the key group depends on.
        key_groups: How many there are.
    """
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

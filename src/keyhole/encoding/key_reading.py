"""Reads the columns of many storage keys, fast: as numbers, where a reader gets dates and times of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_values import BYTES
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.encoding.value_types import date_of_days, time_of_micros
from keyhole.model.state import KeyColumn, KeyType

ReadKey = Callable[[bytes], Sequence[Any]]
"""Storage key -> its columns: str, bytes, bool, and of all others int (days of a date, microseconds of a timestamp)."""

_MADE: Mapping[KeyType, Callable[[int], Any]] = {KeyType.DATE: date_of_days, KeyType.TIMESTAMP: time_of_micros}

_WIDTHS: Mapping[KeyType, int] = {KeyType.BOOLEAN: 1, **BYTES}

_Take = Callable[[bytes, int], tuple[Any, int]]


def key_reader(columns: Sequence[KeyColumn], count: int | None = None) -> ReadKey:
    """Makes what reads the first columns of storage keys that have these, of the key and then of the map key.

    It may raise any ValueError or IndexError of what is no such key: stores have none.

    Args:
        count: How many; None: all.
    """
    if len(columns) == 1:
        one = _take(columns[0].type)
        return lambda key: one(key, GROUP_BYTES)[:1]
    takes = [_take(column.type) for column in columns[:count]]

    def read(key: bytes) -> Sequence[Any]:
        at, found = GROUP_BYTES, []
        for take in takes:
            value, at = take(key, at)
            found.append(value)
        return found

    return read


def key_length(columns: Sequence[KeyColumn]) -> Callable[[bytes], int]:
    """Makes what says how many bytes of an encoded key these columns take, the first ones of it.

    Of what is no such key it says anything, or raises ValueError.
    """
    widths = [None if column.type in (KeyType.STRING, KeyType.BINARY) else _WIDTHS[column.type] for column in columns]

    def length(encoded: bytes) -> int:
        at = 0
        for width in widths:
            # As `_binary`: the first two zeros are the end.
            at = encoded.index(b"\0\0", at) + 2 if width is None else at + width
        return at

    return length


def entry_reader(codec: StateCodec) -> Callable[[bytes], tuple[Any, Any]]:
    """Makes the function from a storage key to the key and the map key, as an entry of a scan of all keys has them.

    Each is one value, or a tuple where it has several columns; the map key is None where the state has none. Lengths
    are not checked: of what is no storage key of the state it gives anything, or raises MalformedRequest.
    """
    descriptor = codec.descriptor
    # Those of a broadcast state are the entries of one key.
    first = descriptor.scan_key or descriptor.entry_key
    second = descriptor.entry_key if descriptor.scan_key else ()
    read = key_reader((*first, *second))
    made = [(at, _MADE[column.type]) for at, column in enumerate((*first, *second)) if column.type in _MADE]
    count = len(first)

    def pair(key: bytes) -> tuple[Any, Any]:
        try:
            values = read(key)
            if made:
                values = list(values)
                for at, of in made:
                    values[at] = of(values[at])
        except (ValueError, IndexError, OverflowError):
            codec.entry(key)  # which says what is wrong
            raise
        if not second:
            return (values[0] if count == 1 else tuple(values)), None
        of_key, of_entry = values[:count], values[count:]
        return (
            of_key[0] if count == 1 else tuple(of_key),
            of_entry[0] if len(of_entry) == 1 else tuple(of_entry),
        )

    return pair


def _take(kind: KeyType) -> _Take:
    """Reads one column: from where it begins to its value, and to where the next one does."""
    if kind is KeyType.STRING:
        return _string
    if kind is KeyType.BINARY:
        return _binary
    if kind is KeyType.BOOLEAN:
        return lambda data, at: (data[at] == 1, at + 1)
    width = BYTES[kind]
    bias, from_bytes = 1 << 8 * width - 1, int.from_bytes
    return lambda data, at: (from_bytes(data[at : at + width], "big") - bias, at + width)


def _binary(data: bytes, at: int) -> tuple[bytes, int]:
    # The first two zeros are the end: a zero of the value has an FF behind it.
    end = data.index(b"\0\0", at)
    raw = data[at:end]
    return raw.replace(b"\0\xff", b"\0") if b"\0" in raw else raw, end + 2


def _string(data: bytes, at: int) -> tuple[str, int]:
    raw, end = _binary(data, at)
    return raw.decode(), end

"""Spark's hash, and the key group that it puts a key in. Pure.

    key group = hash(column 1, column 2, ...) mod number of key groups, never negative

The hash is Spark's own (`org.apache.spark.unsafe.hash.Murmur3_x86_32`, seed 42), so that a stream which Spark has
already grouped by the key needs no second shuffle. It is murmur3 but for the last 1 to 3 bytes of strings: Spark mixes
each of them in as a whole, sign-extended word. vectors/ holds values that Spark computed, for this and other languages.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from keyhole.errors import NullKey
from keyhole.model.state import KeyType

try:
    from mmh3 import hash as _murmur3
except ImportError:  # it is optional: the extra `fast`
    _murmur3 = None  # type: ignore[assignment]

SEED = 42

_MASK = 0xFFFF_FFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)


def _scrambled(word: int) -> int:
    word = word * _C1 & _MASK
    return (word << 15 | word >> 17) * _C2 & _MASK


def _finished(h: int, length: int) -> int:
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


# What a byte of the tail contributes, sign-extended to a word.
_TAIL = tuple(_scrambled(byte if byte < 0x80 else byte | 0xFFFF_FF00) for byte in range(0x100))


@functools.cache
def _words(count: int) -> Callable[[bytes], tuple[int, ...]]:
    return struct.Struct(f"<{count}I").unpack


def _begun(h: int, length: int) -> int:
    """The hash before it was finished: all that `_finished` does can be undone."""
    h = (h ^ h >> 16) * 0x7ED1B41D & _MASK
    h = (h ^ h >> 13 ^ h >> 26) * 0xA5CB9243 & _MASK
    return h ^ h >> 16 ^ length


def hash_bytes_in_c(data: bytes, h: int = SEED) -> int:
    """As `hash_bytes_in_python`, by mmh3: murmur3 itself of the whole words, and Spark's own end behind it."""
    length = len(data)
    whole = length & ~3
    if whole == length:
        return _murmur3(data, h, False)
    if whole < 8:  # what comes behind is the larger part of it
        return hash_bytes_in_python(data, h)
    h = _begun(_murmur3(data[:whole], h, False), whole)
    for byte in data[whole:]:
        h ^= _TAIL[byte]
        h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & 0xFFFF_FFFF
    return _finished(h, length)


def hash_bytes_in_python(data: bytes, h: int = SEED) -> int:
    """Spark's hash of a string's UTF-8 bytes, or of a binary: unsigned, 32 bits.

    `h` is the hash of the columns before.
    """
    length = len(data)
    whole = length & ~3
    if whole:
        # The loop is written out: a call per word would double what the hash costs.
        for word in _words(whole >> 2)(data if whole == length else data[:whole]):
            word = word * 0xCC9E2D51 & 0xFFFF_FFFF
            h ^= (word << 15 | word >> 17) * 0x1B873593 & 0xFFFF_FFFF
            h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & 0xFFFF_FFFF
    for byte in data[whole:]:
        h ^= _TAIL[byte]
        h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & 0xFFFF_FFFF
    return _finished(h, length)


hash_bytes = hash_bytes_in_python if _murmur3 is None else hash_bytes_in_c
"""Spark's hash of a string's UTF-8 bytes, or of a binary, by the quicker of the two ways that there is."""


def hash_int(value: int, h: int = SEED) -> int:
    """Spark's hash of a boolean (0 or 1), a smallint, an int or a date (days). Unsigned."""
    return _finished(_mixed(h, value & _MASK), 4)


def hash_long(value: int, h: int = SEED) -> int:
    """Spark's hash of a bigint or a timestamp (microseconds). Unsigned."""
    return _finished(_mixed(_mixed(h, value & _MASK), value >> 32 & _MASK), 8)


def _mixed(h: int, word: int) -> int:
    h ^= _scrambled(word)
    return ((h << 13 & _MASK | h >> 19) * 5 + 0xE6546B64) & _MASK


def days(value: date) -> int:
    """A date as the number of days since 1970-01-01, negative before it."""
    return value.toordinal() - _EPOCH_DAY


def micros(value: datetime) -> int:
    """A datetime with a time zone as microseconds since 1970, UTC."""
    return (value - _EPOCH) // _MICROSECOND


HASHES: Mapping[KeyType, Callable[[Any, int], int]] = {
    KeyType.STRING: lambda value, h: hash_bytes(value.encode(), h),
    KeyType.BINARY: hash_bytes,
    KeyType.BOOLEAN: hash_int,
    KeyType.SMALLINT: hash_int,
    KeyType.INT: hash_int,
    KeyType.BIGINT: hash_long,
    KeyType.DATE: lambda value, h: hash_int(days(value), h),
    KeyType.TIMESTAMP: lambda value, h: hash_long(micros(value), h),
}
"""By key type: (Python value, the hash of the columns before) -> hash, unsigned."""


def spark_hash(values: Sequence[object], types: Sequence[KeyType], seed: int = SEED) -> int:
    """What `hash(columns)` gives in Spark: a signed 32-bit integer.

    Args:
        values: One per column: str, bytes, bool, int, date, or a datetime with a time zone.

    Raises:
        NullKey: A value is None. Spark would skip it; a state has no null keys.
    """
    h = seed & _MASK
    for value, kind in zip(values, types, strict=True):
        if value is None:
            raise NullKey(f"a key column of type {kind} is null; a state has no null keys")
        h = HASHES[kind](value, h)
    return h - (h >> 31 << 32)


def key_group(values: Sequence[object], types: Sequence[KeyType], key_groups: int) -> int:
    """The key group: Spark's `pmod(hash(columns), key_groups)`. Raises as `spark_hash`."""
    return spark_hash(values, types) % key_groups

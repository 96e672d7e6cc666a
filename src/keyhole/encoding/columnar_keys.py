"""Key groups and storage keys, a column at a time.

The same as murmur3.key_group and StateCodec.storage_key give for one key; tests hold them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyhole.encoding.murmur3 import SEED, hash_bytes
from keyhole.model.state import KeyType

_Words = npt.NDArray[np.uint32]
# Longer strings are hashed one at a time: by the column, one of 1 MB among 10,000 short ones took 8 s.
_LONG = 1024
# The whole numbers by which Spark hashes, and we order, each type.
_NUMBER = {
    KeyType.SMALLINT: pa.int16(),
    KeyType.INT: pa.int32(),
    KeyType.BIGINT: pa.int64(),
    KeyType.DATE: pa.int32(),
    KeyType.TIMESTAMP: pa.int64(),
}


def key_groups(columns: Sequence[pa.Array], types: Sequence[KeyType], number: int) -> npt.NDArray[np.uint16]:
    """The key group of each row, a column at a time: by murmur3.key_group, whose docstring has the formula.

    Args:
        columns: The key's, of equal length and without nulls.
        types: Of each column.
        number: How many key groups there are.

    Returns:
        One number for each row, uint16.
    """
    hashes: _Words = np.full(len(columns[0]), SEED, dtype=np.uint32)
    for column, kind in zip(columns, types, strict=True):
        hashes = _hash(column, kind, hashes)
    groups: npt.NDArray[np.uint16] = np.mod(hashes.view(np.int32).astype(np.int64), number).astype(np.uint16)
    return groups


def storage_keys(
    columns: Sequence[pa.Array], types: Sequence[KeyType], number: int, hashed: int | None = None
) -> pa.BinaryArray:
    """The storage key of each row: StateCodec.storage_key, a column at a time.

    Args:
        hashed: How many of the columns, the first ones, are the key; default: all. The others are the map key.
    """
    groups = key_groups(columns[:hashed], types[:hashed], number).astype(">u2")
    parts = [_fixed(groups.tobytes(), 2, len(groups))]
    parts += [_key_part(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pc.binary_join_element_wise(*parts, b"")


def _key_part(column: pa.Array, kind: KeyType) -> pa.BinaryArray:
    if kind in (KeyType.STRING, KeyType.BINARY):
        escaped = pc.replace_substring(column.cast(pa.binary()), pattern=b"\0", replacement=b"\0\xff")
        return pc.binary_join_element_wise(escaped, b"\0\0", b"")
    if kind is KeyType.BOOLEAN:
        return _fixed(column.cast(pa.uint8()).to_numpy().tobytes(), 1, len(column))
    values = column.cast(_NUMBER[kind]).to_numpy()
    width = values.dtype.itemsize
    unsigned = values.view(f"u{width}") ^ np.array(1 << 8 * width - 1, dtype=f"u{width}")
    return _fixed(unsigned.astype(f">u{width}").tobytes(), width, len(column))


def _fixed(data: bytes, width: int, count: int) -> pa.BinaryArray:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def _hash(column: pa.Array, kind: KeyType, h: _Words) -> _Words:
    if kind in (KeyType.STRING, KeyType.BINARY):
        return _hash_bytes(column.cast(pa.binary()), h)
    if kind is KeyType.BOOLEAN:
        return _finished(_mixed(h, column.cast(pa.uint8()).to_numpy().astype(np.uint32)), np.uint32(4))
    values = column.cast(_NUMBER[kind]).to_numpy()
    if values.dtype.itemsize < 8:
        return _finished(_mixed(h, values.astype(np.int32).view(np.uint32)), np.uint32(4))
    words = values.view(np.uint64)
    low, high = (words & np.uint64(0xFFFF_FFFF)).astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
    return _finished(_mixed(_mixed(h, low), high), np.uint32(8))


def _hash_bytes(column: pa.BinaryArray, h: _Words) -> _Words:
    _, offset_buffer, data_buffer = column.buffers()
    if not len(column):
        return h
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    h, seeds = h.copy(), h
    # Word by word, over the rows that are that long: as many steps as the longest string has words.
    for at in range(0, min(int(lengths.max()), _LONG) & ~3, 4):
        rows = np.flatnonzero(lengths >= at + 4)
        place = starts[rows] + at
        word = sum(data[place + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
        h[rows] = _mixed(h[rows], word)
    for tail in range(3):
        rows = np.flatnonzero(lengths & 3 > tail)
        byte = data[starts[rows] + (lengths[rows] & ~3) + tail]
        h[rows] = _mixed(h[rows], byte.view(np.int8).astype(np.int32).view(np.uint32))
    h = _finished(h, lengths.astype(np.uint32))
    for row in np.flatnonzero(lengths > _LONG):
        h[row] = hash_bytes(data[starts[row] : starts[row] + lengths[row]].tobytes(), int(seeds[row]))
    return h


def _mixed(h: _Words, word: Any) -> _Words:
    word = word * np.uint32(0xCC9E2D51)
    word = (word << np.uint32(15) | word >> np.uint32(17)) * np.uint32(0x1B873593)
    h = h ^ word
    return (h << np.uint32(13) | h >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(h: _Words, length: Any) -> _Words:
    h = h ^ length
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)

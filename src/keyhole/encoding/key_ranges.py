"""Between which keys a predicate can be true of anything: one range of bytes. Pure.

    customer = 'a'                          of the key (customer, day): all that begin with 'a'
    customer = 'a' and day >= '2026-01-01'  of those the ones from that day on
    customer in ('a', 'c') and total > 5    from 'a' to 'c'
    day >= '2026-01-01'                     all: the first column may be anything

It may hold keys that the predicate is not true of, and lacks none that it is true of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from keyhole.encoding.key_codec import encode_bytes, encode_integer, end_of_prefix
from keyhole.encoding.key_values import BYTES
from keyhole.encoding.predicate_binding import Bound, BoundAll, BoundAny, BoundComparison, BoundField, BoundList
from keyhole.model.predicates import ComparedBy
from keyhole.model.state import KeyColumn, KeyType


class EncodedKeys(NamedTuple):
    """Encoded keys, map keys included, without their key group: from `first` (inclusive) to `end` (exclusive).

    Attributes:
        end: None: there is no bound.
    """

    first: bytes
    end: bytes | None

    @property
    def is_empty(self) -> bool:
        """Whether no key is in it."""
        return self.end is not None and self.end <= self.first

    @property
    def is_one_value(self) -> bool:
        """Whether all keys in it have the same bytes there."""
        return bool(self.first) and self.end == end_of_prefix(self.first)


ALL_KEYS = EncodedKeys(b"", None)
_NONE = EncodedKeys(b"\1", b"\1")


def key_range(of: Bound, columns: Sequence[KeyColumn]) -> EncodedKeys:
    """Where whatever the predicate is true of stands.

    Args:
        columns: Of the key, and behind them those of the map key.
    """
    before = b""
    for at, column in enumerate(columns):
        found = _range(of, at, column)
        if found is None:
            break
        if found.is_empty:
            return found
        if not found.is_one_value:
            return EncodedKeys(before + found.first, end_of_prefix(before) if found.end is None else before + found.end)
        before += found.first
    return EncodedKeys(before, end_of_prefix(before))


def _range(of: Bound, at: int, column: KeyColumn) -> EncodedKeys | None:
    """Of the bytes of one column; None: it may have any value."""
    match of:
        case BoundAll(parts):
            known = [found for part in parts if (found := _range(part, at, column)) is not None]
            return _both(known) if known else None
        case BoundAny(parts):
            each = [_range(part, at, column) for part in parts]
            whole = [found for found in each if found is not None]
            return _around(whole) if len(whole) == len(each) else None
        case BoundList(field, values, negated=False) if _is(field, at):
            return _around([_compared(ComparedBy.EQUAL, value, column) or ALL_KEYS for value in values])
        case BoundComparison(field, operator, value) if _is(field, at):
            return _compared(operator, value, column)
    return None


def _is(field: BoundField, at: int) -> bool:
    return field.in_key and not field.inner and field.at == at


def _both(ranges: Sequence[EncodedKeys]) -> EncodedKeys:
    ends = [of.end for of in ranges if of.end is not None]
    return EncodedKeys(max(of.first for of in ranges), min(ends) if ends else None)


def _around(ranges: Sequence[EncodedKeys]) -> EncodedKeys:
    there = [of for of in ranges if not of.is_empty]
    if not there:
        return _NONE
    ends = [of.end for of in there if of.end is not None]
    return EncodedKeys(min(of.first for of in there), max(ends) if len(ends) == len(there) else None)


def _compared(operator: ComparedBy, value: Any, column: KeyColumn) -> EncodedKeys | None:
    if operator is ComparedBy.NOT_EQUAL:
        return None
    if column.type in (KeyType.STRING, KeyType.BINARY):
        same = encode_bytes(value.encode() if column.type is KeyType.STRING else value)
        return _from_to(operator, same, end_of_prefix(same))
    if column.type is KeyType.BOOLEAN:
        same = b"\1" if value else b"\0"
        return _from_to(operator, same, end_of_prefix(same))
    return _of_numbers(operator, value, BYTES[column.type])


def _from_to(operator: ComparedBy, same: bytes, behind: bytes | None) -> EncodedKeys:
    """Args: same: What it is compared with. behind: What comes after all that begin so; None: nothing does."""
    match operator:
        case ComparedBy.LESS:
            return EncodedKeys(b"", same)
        case ComparedBy.AT_MOST:
            return EncodedKeys(b"", behind)
        case ComparedBy.GREATER:
            return _NONE if behind is None else EncodedKeys(behind, None)
        case ComparedBy.AT_LEAST:
            return EncodedKeys(same, None)
    return EncodedKeys(same, behind)


def _of_numbers(operator: ComparedBy, value: Any, width: int) -> EncodedKeys | None:
    """What it is compared with may be no whole number, and none that the column can have."""
    least, most = -(1 << 8 * width - 1), (1 << 8 * width - 1) - 1
    if not math.isfinite(value):
        return None
    low = least if operator in (ComparedBy.LESS, ComparedBy.AT_MOST) else math.ceil(value)
    high = most if operator in (ComparedBy.GREATER, ComparedBy.AT_LEAST) else math.floor(value)
    if operator is ComparedBy.GREATER:
        low = math.floor(value) + 1
    elif operator is ComparedBy.LESS:
        high = math.ceil(value) - 1
    low, high = max(low, least), min(high, most)
    if low > high:
        return _NONE
    return EncodedKeys(encode_integer(low, width), end_of_prefix(encode_integer(high, width)))

"""Which values of an indexed field, or of another column, a predicate can be true of: ranges of bytes. Pure.

    customer = 'a' and total > 5, by customer    ->  [(01 61 00 00, 01 61 00 01)]
    customer is null or customer in ('a', 'b')   ->  three ranges
    customer = 'a' or total > 5                  ->  None: any

They may hold values that it is not true of, and lack none that it is true of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from keyhole.encoding.indexed_fields import NULL, THERE, IndexBound, IndexedField
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.predicate_binding import (
    Bound,
    BoundAll,
    BoundAny,
    BoundComparison,
    BoundField,
    BoundList,
    BoundNull,
)
from keyhole.model.predicates import ComparedBy


class ValueRange(NamedTuple):
    """From `first` (inclusive) to `end` (exclusive): of values' bytes, with whatever stands behind them."""

    first: bytes
    end: bytes

    @property
    def is_one_value(self) -> bool:
        """Whether all in it have the same bytes."""
        return self.first != THERE and self.end == _after(self.first)


class IndexedValues(NamedTuple):
    """What a predicate asks of one index: ascending ranges that do not meet. None: it is true of no entry."""

    field: IndexedField
    ranges: Sequence[ValueRange]

    @property
    def is_one_value(self) -> bool:
        """Whether what is found stands in the order of the rows' keys."""
        return len(self.ranges) == 1 and self.ranges[0].is_one_value


def _after(value: bytes) -> bytes:
    end = end_of_prefix(value)
    assert end is not None  # it begins with NULL or THERE
    return end


_NULLS = ValueRange(NULL, _after(NULL))
_ALL_BUT_NULL = ValueRange(THERE, _after(THERE))


def indexed_values(of: Bound, fields: Sequence[IndexedField]) -> list[IndexedValues]:
    """By which indexes the predicate can be looked up, those first that are asked for single values."""
    found = [
        IndexedValues(field, ranges)
        for field in fields
        if (ranges := value_ranges(of, partial(_is, field), field.bound)) is not None
    ]
    return sorted(found, key=lambda of: not all(part.is_one_value for part in of.ranges))


def value_ranges(
    of: Bound, is_asked: Callable[[BoundField], bool], bound: Callable[[Any], IndexBound]
) -> list[ValueRange] | None:
    """Which values of one column the predicate can be true of. None: any.

    Args:
        is_asked: Whether a field is that column.
        bound: Where what it is compared with stands among its values.
    """
    match of:
        case BoundAll(parts):
            each = (value_ranges(part, is_asked, bound) for part in parts)
            known = [ranges for ranges in each if ranges is not None]
            if not known:
                return None
            common = known[0]
            for other in known[1:]:
                common = _both(common, other)
            return common
        case BoundAny(parts):
            found: list[ValueRange] = []
            for part in parts:
                ranges = value_ranges(part, is_asked, bound)
                if ranges is None:
                    return None
                found += ranges
            return _joined(found)
        case BoundNull(asked, negated) if is_asked(asked):
            return [_ALL_BUT_NULL if negated else _NULLS]
        case BoundList(asked, values, negated=False) if is_asked(asked):
            return _joined(_equal(bound(value)) for value in values)
        case BoundComparison(asked, operator, value) if is_asked(asked):
            return _compared(operator, bound(value))
    return None


def _is(field: IndexedField, asked: BoundField) -> bool:
    return not asked.in_key and not asked.inner and asked.at == field.at


def _equal(to: IndexBound) -> ValueRange:
    return ValueRange(to.bytes, _after(to.bytes))


def _compared(operator: ComparedBy, to: IndexBound) -> list[ValueRange] | None:
    # Of a bound that is not exact what has the same bytes may be on either side.
    same = _equal(to)
    match operator:
        case ComparedBy.EQUAL:
            part = same
        case ComparedBy.LESS | ComparedBy.AT_MOST:
            part = ValueRange(THERE, same.first if operator is ComparedBy.LESS and to.exact else same.end)
        case ComparedBy.GREATER | ComparedBy.AT_LEAST:
            first = same.end if operator is ComparedBy.GREATER and to.exact else same.first
            part = ValueRange(first, _ALL_BUT_NULL.end)
        case _:
            return None
    return [part] if part.first < part.end else []


def _both(some: Iterable[ValueRange], others: Sequence[ValueRange]) -> list[ValueRange]:
    """What is in one of `some` and in one of `others`; either ascending."""
    found, at = [], 0
    for part in some:
        while at < len(others) and others[at].end <= part.first:
            at += 1
        for other in others[at:]:
            if other.first >= part.end:
                break
            found.append(ValueRange(max(part.first, other.first), min(part.end, other.end)))
    return found


def _joined(ranges: Iterable[ValueRange]) -> list[ValueRange]:
    """Ascending, those that overlap as one."""
    found: list[ValueRange] = []
    for part in sorted(ranges):
        # Those that only touch stay apart: a few single values are looked up one by one.
        if found and part.first < found[-1].end:
            found[-1] = ValueRange(found[-1].first, max(found[-1].end, part.end))
        else:
            found.append(part)
    return found

"""Computes aggregates of stored entries, a piece at a time, and puts what several servers computed together. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any

import msgspec

from keyhole.encoding.key_reading import key_reader
from keyhole.encoding.predicate_binding import FLOATS, WHOLE, BoundField, bound_field, is_compared
from keyhole.encoding.row_codec import refusal_of
from keyhole.encoding.row_fields import fields_reader
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.encoding.value_types import optional, value_type
from keyhole.errors import TooLarge, ValueMismatch
from keyhole.model.aggregates import AggregateKind, AskedAggregate
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName

# Sums of as many decimals as there may be entries lose no digit.
_EXACT = Context(prec=100)
# As Spark: an average of decimals has so many places more.
_MORE_PLACES = 4
_MOST_PLACES = 38


@dataclass(slots=True)
class TopEntry:
    """An entry of a `top`: the value that it is ordered by, as stored; its storage key; its row."""

    value: Any
    key: bytes
    row: bytes


@dataclass(slots=True)
class Partial:
    """What is known of one aggregate after some entries.

    Attributes:
        count: COUNT: of how many; AVERAGE: the values of the sum.
        value: SUM, AVERAGE: the sum; MIN, MAX: the value. As stored, but decimals; None: there was none yet.
        top: TOP: in order.
    """

    count: int = 0
    value: Any = None
    top: list[TopEntry] = field(default_factory=list)


class BoundAggregate:
    """An aggregate of one state: how it is begun, gone on with, put together, and given.

    Raises:
        ValueMismatch: The state has no such field, or this is not computed of its type; the message names the field.
    """

    def __init__(self, descriptor: StateDescriptor, of: AskedAggregate) -> None:
        self.of = of
        self.field: BoundField | None = None if of.path is None else bound_field(of.path, descriptor)
        kind = self.field.type if self.field else TypeName("bigint")
        self.type = kind
        self._check(kind)
        self._floats, self._decimal = kind.kind in FLOATS, kind.kind == "decimal"

    def _check(self, kind: TypeName) -> None:
        sums = self.of.kind in (AggregateKind.SUM, AggregateKind.AVERAGE)
        compares = self.of.kind in (AggregateKind.MIN, AggregateKind.MAX, AggregateKind.TOP)
        if (sums and kind.kind not in (*WHOLE, *FLOATS, "decimal")) or (compares and not is_compared(kind)):
            assert self.field is not None
            raise ValueMismatch(
                f"field {self.field.name!r} is of type {kind.kind}, of which there is no {self.of.kind.name.lower()}",
                field=self.field.name,
                type=kind.kind,
            )

    def add(self, partial: Partial, values: Sequence[Any], keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Goes on with the values of entries, as stored; None: the field is null. Keys and rows are theirs."""
        if self.of.kind is AggregateKind.TOP:
            there = [
                TopEntry(self._number(value), key, row)
                for value, key, row in zip(values, keys, rows, strict=True)
                if value is not None
            ]
            partial.top = self._first([*partial.top, *there])
            return
        known = [value for value in values if value is not None] if None in values else values
        if self.of.kind is AggregateKind.COUNT or not known:
            partial.count += len(known)
            return
        if self._decimal:
            known = list(map(Decimal, known))
        self.merge(partial, Partial(len(known), self._of(known)))

    def merge(self, partial: Partial, other: Partial) -> None:
        """Goes on with what is known of other entries."""
        partial.count += other.count
        partial.top = self._first([*partial.top, *other.top]) if other.top else partial.top
        if partial.value is None or other.value is None:
            partial.value = other.value if partial.value is None else partial.value
        else:
            partial.value = self._of([partial.value, other.value])

    def result(self, partial: Partial) -> Any:
        """What a reader gets, but of TOP."""
        if self.of.kind is AggregateKind.COUNT:
            return partial.count
        if partial.value is None:
            return None
        if self.of.kind is AggregateKind.AVERAGE:
            if not self._decimal:
                return partial.value / partial.count
            places = min(self.type.digits[1] + _MORE_PLACES, _MOST_PLACES)
            with localcontext(_EXACT):
                average: Decimal = partial.value / partial.count
                return average.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
        if self._decimal:
            return partial.value
        return optional(value_type(self.type.kind).to_python)(partial.value)

    def _of(self, values: Sequence[Any]) -> Any:
        """The sum, least or greatest of values, of one at least."""
        if self.of.kind in (AggregateKind.SUM, AggregateKind.AVERAGE):
            with localcontext(_EXACT):
                return sum(values)
        pick: Callable[[Iterable[Any]], Any] = min if self.of.kind is AggregateKind.MIN else max
        if not self._floats:
            return pick(values)
        numbers = [value for value in values if value == value]
        # NaN is above all others.
        if not numbers or (pick is max and len(numbers) < len(values)):
            return float("nan")
        return pick(numbers)

    def _number(self, value: Any) -> Any:
        return Decimal(value) if self._decimal else value

    def _first(self, entries: list[TopEntry]) -> list[TopEntry]:
        entries.sort(key=lambda entry: entry.key[GROUP_BYTES:])
        entries.sort(key=self._rank, reverse=not self.of.smallest)  # which keeps equal ones as they are
        return entries[: self.of.entries]

    def _rank(self, entry: TopEntry) -> Any:
        return (entry.value != entry.value, entry.value) if self._floats else entry.value


class EntryAggregation:
    """Aggregates of the entries of one state, computed as they are read.

    Args:
        most_bytes: What the rows of all `top` may take together.

    Raises:
        ValueMismatch: As BoundAggregate.
    """

    def __init__(self, descriptor: StateDescriptor, aggregates: Sequence[AskedAggregate], most_bytes: int) -> None:
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self.bound = [BoundAggregate(descriptor, one) for one in aggregates]
        self.partials = [Partial() for _ in aggregates]
        fields = [one.field for one in self.bound if one.field is not None]
        in_row = {(of.at, of.inner) for of in fields if not of.in_key}
        self._read = fields_reader(descriptor, in_row) if in_row else None
        columns = (*descriptor.scan_key, *descriptor.entry_key)
        self._read_key = key_reader(columns) if any(of.in_key for of in fields) else None

    def add(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Storage keys, and the rows of these.

        Raises:
            ValueMismatch, StaleDescriptor: A row is none of the state's, or newer than the descriptor.
            TooLarge: The entries of a `top` have no place in one answer.
        """
        try:
            read = [] if self._read is None else list(map(self._read, rows))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise refusal_of(self._descriptor, rows) from None
        read_keys = [] if self._read_key is None else list(map(self._read_key, keys))
        for one, partial in zip(self.bound, self.partials, strict=True):
            one.add(partial, keys if one.field is None else _values(one.field, read, read_keys), keys, rows)
        if sum(len(entry.row) for partial in self.partials for entry in partial.top) > self._most_bytes:
            raise TooLarge(
                f"the entries of a top take more than {self._most_bytes >> 20} MiB; ask for fewer of them",
                limit=self._most_bytes,
            )


def _values(of: BoundField, read: Sequence[Any], read_keys: Sequence[Sequence[Any]]) -> Sequence[Any]:
    if of.in_key:
        return [key[of.at] for key in read_keys]
    found: Sequence[Any] = list(map(operator.attrgetter(f"_{of.at}"), read))
    for at in of.inner:
        inner = operator.attrgetter(f"_{at}")
        found = [None if value is None else inner(value) for value in found]
    return found

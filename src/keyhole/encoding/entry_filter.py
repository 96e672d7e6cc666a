"""Tests stored entries against a predicate: it is compiled once, and costs a few comparisons an entry. Pure.

    kept = EntryFilter(descriptor, field("max") > 30).kept([(storage_key, row), ...])

Of a key and of a row only the fields that the predicate asks for are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from keyhole.encoding.key_reading import key_reader
from keyhole.encoding.predicate_binding import (
    FLOATS,
    Bound,
    BoundAll,
    BoundAny,
    BoundComparison,
    BoundField,
    BoundList,
    BoundNull,
    bound,
)
from keyhole.encoding.row_codec import refusal_of
from keyhole.encoding.row_fields import fields_reader
from keyhole.model.predicates import ComparedBy, Predicate, is_nan
from keyhole.model.state import StateDescriptor

StoredEntry: TypeAlias = tuple[bytes, bytes]
"""Storage key and row, without what stands around a row in some stores (keyhole.encoding.envelope)."""


class EntryFilter:
    """Of one state, as it is described now. Thread-safe.

    Raises:
        ValueMismatch, MalformedRequest: As predicate_binding.bound.
    """

    def __init__(self, descriptor: StateDescriptor, predicate: Predicate) -> None:
        of = bound(predicate, descriptor)
        self._descriptor = descriptor
        self._kept = _FilterSource(descriptor).filter(of)

    def kept(self, entries: Sequence[StoredEntry]) -> list[StoredEntry]:
        """Those of which the predicate is true, in their order.

        Raises:
            ValueMismatch, StaleDescriptor: A row is none of the state's, or newer than the descriptor.
        """
        try:
            return self._kept(entries)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise refusal_of(self._descriptor, (row for _, row in entries)) from None

    def passes(self, storage_key: bytes, row: bytes) -> bool:
        """Whether the predicate is true of one entry. Raises as `kept`."""
        return bool(self.kept(((storage_key, row),)))


class _FilterSource:
    """Makes Python of a predicate. It holds places, operators and names of constants: no text of whoever asks."""

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor
        self._names: dict[str, Any] = {"Decimal": Decimal}

    def filter(self, of: Bound) -> Callable[[Sequence[StoredEntry]], list[StoredEntry]]:
        """From entries to those of them that pass."""
        parts = of.parts if isinstance(of, BoundAll) else (of,)
        fields = list(_fields(of))
        # What needs no row is asked first.
        of_key = [part for part in parts if all(field.in_key for field in _fields(part))]
        others = [part for part in parts if part not in of_key]
        steps: list[str] = []
        if any(field.in_key for field in fields):
            columns = (*self._descriptor.scan_key, *self._descriptor.entry_key)
            count = max(field.at for field in fields if field.in_key) + 1
            read_key = self._constant(key_reader(columns, count))
            steps.append(f"(k := {read_key}(e[0]))")
        steps += map(self._expression, of_key)
        in_row = {(field.at, field.inner) for field in fields if not field.in_key}
        if in_row:
            steps.append(f"(r := {self._constant(fields_reader(self._descriptor, in_row))}(e[1])) is not None")
        steps += map(self._expression, others)
        # Names of ours alone: see the class.
        made: Any = eval(f"lambda es: [e for e in es if {' and '.join(steps) or 'True'}]", self._names)  # noqa: S307
        kept: Callable[[Sequence[StoredEntry]], list[StoredEntry]] = made
        return kept

    def _expression(self, of: Bound) -> str:
        match of:
            case BoundAll(parts):
                return f"({' and '.join(map(self._expression, parts)) or 'True'})"
            case BoundAny(parts):
                return f"({' or '.join(map(self._expression, parts)) or 'False'})"
            case BoundNull(field, negated):
                there = " and ".join(_there(field)) or "True"
                return f"({there})" if negated else f"(not ({there}))"
            case BoundComparison(field, operator, value):
                return self._known(field, self._comparison(field, operator, value))
            case BoundList(field, values, negated):
                return self._known(field, self._membership(field, values, negated=negated))

    def _comparison(self, field: BoundField, operator: ComparedBy, value: Any) -> str:
        if field.type.kind not in FLOATS:
            return f"{_operand(field)} {operator.value} {self._constant(value)}"
        # NaN equals itself, and is above all others.
        if not is_nan(value):
            plain = f"v {operator.value} {self._constant(value)}"
            return f"({plain} or v != v)" if operator in (ComparedBy.GREATER, ComparedBy.AT_LEAST) else plain
        match operator:
            case ComparedBy.EQUAL | ComparedBy.AT_LEAST:
                return "v != v"
            case ComparedBy.NOT_EQUAL | ComparedBy.LESS:
                return "v == v"
            case ComparedBy.AT_MOST:
                return "True"
            case ComparedBy.GREATER:
                return "False"

    def _membership(self, field: BoundField, values: Sequence[Any], *, negated: bool) -> str:
        numbers = frozenset(value for value in values if not is_nan(value))
        found = f"{_operand(field)} in {self._constant(numbers)}"
        if any(map(is_nan, values)):
            found = f"({found} or v != v)"
        return f"(not {found})" if negated else found

    def _known(self, field: BoundField, test: str) -> str:
        """The test of `v`, where it is not null."""
        if field.in_key:
            return f"((v := k[{field.at}]) is not None and {test})"
        steps = _there(field)
        steps[-1] = f"(v := {steps[-1].removesuffix(' is not None')}) is not None"
        return f"({' and '.join(steps)} and {test})"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name


def _operand(field: BoundField) -> str:
    return "Decimal(v)" if field.type.kind == "decimal" else "v"


def _there(field: BoundField) -> list[str]:
    """What must hold, so that it is not null: of the structs around it first."""
    if field.in_key:
        return []
    steps, at = [], f"r._{field.at}"
    for inner in (*field.inner, None):
        steps.append(f"{at} is not None")
        at = f"{at}._{inner}"
    return steps


def _fields(of: Bound) -> Iterator[BoundField]:
    if isinstance(of, (BoundAll, BoundAny)):
        for part in of.parts:
            yield from _fields(part)
    else:
        yield of.field

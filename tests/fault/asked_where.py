"""Predicates that readers ask entries for, and whether one is true of an entry: in other words than Keyhole's. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tests.fault.workload import LEASES, SPANS, STOPS, TALLIES

KEY, MAP_KEY, FIELDS = 0, 1, 2
"""Places of columns: the key, the map key, and from here on the fields of the value."""

_MAPPED = frozenset({TALLIES, SPANS, LEASES, STOPS})
"""States whose map key has a name: the positions of a list have none."""

COMPARISONS: Mapping[str, Callable[[Any, Sequence[Any]], bool]] = {
    "==": lambda value, of: value == of[0],
    "!=": lambda value, of: value != of[0],
    "<": lambda value, of: value < of[0],
    "<=": lambda value, of: value <= of[0],
    ">": lambda value, of: value > of[0],
    ">=": lambda value, of: value >= of[0],
    "between": lambda value, of: of[0] <= value <= of[1],
    "in": lambda value, of: value in of,
}
"""What a column's value may be to the values that it is compared with."""

KnownEntry = tuple[str, int | None, tuple[int, ...]]
"""The key, the map key (None: the state has one value per key), and the fields."""


class Compared(msgspec.Struct, frozen=True, array_like=True):
    """A column, by its place, against some values."""

    column: int
    by: str
    values: tuple[int | str, ...]


class Where(msgspec.Struct, frozen=True, array_like=True):
    """True of entries of which all parts are, or with `any_of` one of them at least; with `opposite` of all others."""

    parts: tuple[Compared, ...]
    any_of: bool = False
    opposite: bool = False

    def has(self, key: str, map_key: int | None, fields: Sequence[int]) -> bool:
        columns = (key, map_key, *fields)
        found = (COMPARISONS[of.by](columns[of.column], of.values) for of in self.parts)
        return (any(found) if self.any_of else all(found)) is not self.opposite


def drawn_where(draw: random.Random, state: str, known: Sequence[KnownEntry]) -> Where:
    """Compares with what entries of the state have had, so that it is true of some, and often just so.

    Args:
        known: At least one entry.
    """
    parts = tuple(_compared(draw, state, known) for _ in range(draw.choice((1, 1, 2))))
    return Where(parts, any_of=draw.random() < 0.3, opposite=draw.random() < 0.2)


def _compared(draw: random.Random, state: str, known: Sequence[KnownEntry]) -> Compared:
    rows = [(key, map_key, *fields) for key, map_key, fields in draw.choices(known, k=3)]
    others = [KEY, *([MAP_KEY] if state in _MAPPED else []), *range(FIELDS, len(rows[0]))]
    # Mostly the first field: where there is an index, it is of that.
    column = draw.choice((FIELDS, draw.choice(others)))
    values = [row[column] for row in rows]
    by = draw.choice(list(COMPARISONS))
    if by == "between":
        return Compared(column, by, tuple(sorted(values[:2])))
    return Compared(column, by, tuple(values if by == "in" else values[:1]))

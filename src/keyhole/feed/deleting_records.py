"""Which rows of a source topic delete, and what a deletion does that has no order beside rows that have one. Pure.

--delete-when __deleted=true --order-by lsn
{"id": 7, "name": "x", "lsn": 21, "__deleted": "true"}    a deletion of order 21: a row of order 20 is not put any more
key {"id": 7}, no value (a tombstone)                     a deletion without an order: see Unordered
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class Unordered(enum.StrEnum):
    """What becomes of a deletion without an order, where rows have one: nobody can tell which of these are older."""

    REFUSE = "refuse"
    """It is a dead letter: whoever has no other deletions must not lose them unheard."""
    DELETE = "delete"
    """It deletes whatever is there, and is not remembered: an older row that comes behind it counts."""
    IGNORE = "ignore"
    """It says nothing new: as Debezium's tombstones, each of which comes behind a deletion that has an order."""


@dataclass(frozen=True)
class Deletions:
    """Which records delete, beside those without a value.

    Attributes:
        column: Of a row, that says so; empty: no row deletes.
        text: What it holds then: a text, or a number or boolean as JSON writes it.
        unordered: Counts in a state with `order_by` alone.
    """

    column: str = ""
    text: str = ""
    unordered: Unordered = Unordered.DELETE

    def said_by(self, row: Mapping[str, Any]) -> bool:
        """Whether a row, as JSON has it, deletes."""
        if not self.column:
            return False
        found = row.get(self.column)
        if type(found) in (bool, int, float):
            return _encode(found).decode() == self.text
        return type(found) is str and found == self.text


NO_ROWS = Deletions()
"""Records without a value delete, and no others."""

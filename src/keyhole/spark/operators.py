"""Operator state: elements that belong to the subtasks of an operator, not to keys, and follow them when their number
changes (Flink's list and union-list state). The words in which a job declares one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Mode = Literal["list", "union"]

MOST_SUBTASKS = 10_000
"""More are a mistake; a batch keeps the number that it once had."""


@dataclass(frozen=True)
class Subtask:
    """Which part of the operator a call is for.

    Attributes:
        index: Its number, from 0 to `count` - 1.
        count: How many subtasks there are in this batch.
        restored: Their number has changed since the last batch: the elements were dealt out anew.
    """

    index: int
    count: int
    restored: bool


class Operator(Protocol):
    """What each subtask makes of its elements and of its rows of a batch.

        class Seen:
            def process(self, subtask, elements, rows):
                return sorted({*elements, *(row.word for row in rows)})

            def result(self, elements):
                return {"words": len(elements)}

    Runs in Spark's Python workers, so it must be picklable or importable there. A batch that is run again must give the
    same elements: nothing here may depend on time or chance. What a method raises ends the query. Elements are plain
    data, as MessagePack holds it (a tuple comes back as a list; a set, say, is refused).

    Where their shape or meaning has changed, an operator has a `version`, a whole number that grows (default: 1), and a
    method upgrade(elements, version). It makes of all elements that an earlier version of a subtask held those of this
    one.
    """

    def process(self, subtask: Subtask, elements: list[Any], rows: Iterator[Any]) -> Sequence[Any]:
        """The subtask's elements after the batch. Need not be called where the batch has no rows for any subtask.

        Args:
            elements: Those before it. Where the number of subtasks has changed: of a list state the share of this one,
                of a union state all elements of all subtasks before.
            rows: The subtask's, whose columns are attributes, in any order. To be read once.
        """

    def result(self, elements: Sequence[Any]) -> Mapping[str, Any] | Sequence[Any]:
        """What readers get of a subtask: the fields of the declared result, by name or in their order."""


@dataclass(frozen=True)
class Subtasks:
    """An operator state's function, and over how many subtasks it runs; None: as many as the batch has partitions."""

    operator: Operator
    mode: Mode
    count: int | None

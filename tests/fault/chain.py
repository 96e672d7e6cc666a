"""What the workload's aggregating state adds up, and its operators likewise. Imported by Spark's workers too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BASE, LIMIT = 1_000_003, (1 << 61) - 1

RESULT = ("count", "total", "chain")


class Chain:
    """How many amounts there were, their sum, and a number that depends on each of them and on their order."""

    def create(self) -> list[int]:
        return [0, 0, 0]

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        count, total, chain = accumulator
        return [count + 1, total + row.amount, (chain * BASE + row.amount) % LIMIT]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        moved = one[2] * pow(BASE, other[0], LIMIT)
        return [one[0] + other[0], one[1] + other[1], (moved + other[2]) % LIMIT]

    def result(self, accumulator: list[int]) -> Mapping[str, int]:
        return dict(zip(RESULT, accumulator, strict=True))


def folded(elements: Sequence[list[int]]) -> list[int]:
    """What accumulators amount to, in a way that depends on each of them and on their order."""
    count = total = chain = 0
    for of in elements:
        count, total, chain = (count + of[0]) % LIMIT, (total + of[1]) % LIMIT, (chain * BASE + of[2]) % LIMIT
    return [count, total, chain]


class Ledger:
    """An operator whose subtasks have accumulators of a Chain each. The first takes the rows, ordered by `n`."""

    def process(self, subtask: Any, elements: list[Any], rows: Iterator[Any]) -> Sequence[Any]:
        chain = Chain()
        first, *others = elements or [chain.create()]
        for row in sorted(rows, key=lambda row: row.n):
            first = chain.add(first, row)
        return [first, *others]

    def result(self, elements: Sequence[Any]) -> Mapping[str, int]:
        return Chain().result(folded(elements))


class Roster(Ledger):
    """The same of a union state: a subtask that is given all elements makes one of them."""

    def process(self, subtask: Any, elements: list[Any], rows: Iterator[Any]) -> Sequence[Any]:
        return super().process(subtask, [folded(elements)], rows)

"""What an operator's subtasks hold after every epoch: dealt out, or given to all, as their number changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.fault.chain import BASE, LIMIT
from tests.fault.workload import ROSTERS, Change, Row

Element = tuple[int, ...]

_NOTHING: Element = (0, 0, 0)


def chained(before: Row, amount: int) -> Element:
    """How many amounts there were, their sum, and what depends on each of them and on their order."""
    count, total, chain = before or _NOTHING
    return count + 1, total + amount, (chain * BASE + amount) % LIMIT


@dataclass
class Subtasks:
    """Of one state: the elements of each subtask."""

    state: str
    _elements: list[list[Element]] = field(default_factory=list)

    def epoch(self, number: int, changes: Sequence[Change]) -> Iterator[tuple[str, Element]]:
        """What is told of each subtask from an epoch on that has these rows, and so many subtasks; those that are no
        more hold nothing.
        """
        before = len(self._elements)
        if before and number != before:
            everything = [element for of in self._elements for element in of]
            union = self.state == ROSTERS
            self._elements = [everything if union else everything[index::number] for index in range(number)]
        elements = self._elements or [[] for _ in range(number)]
        self._elements = [self._processed(index, number, of, changes) for index, of in enumerate(elements)]
        for index in range(max(before, number)):
            yield str(index), _amount(self._elements[index]) if index < number else _NOTHING

    def _processed(self, index: int, number: int, elements: list[Element], changes: Sequence[Change]) -> list[Element]:
        first, *others = [_amount(elements)] if self.state == ROSTERS else elements or [_NOTHING]
        for change in changes:
            if int(change.key) % number == index:
                first = chained(first, change.fields[0])
        return [first, *others]


def _amount(elements: Sequence[Element]) -> Element:
    """What a subtask tells of its elements."""
    count = sum(of[0] for of in elements) % LIMIT
    total = sum(of[1] for of in elements) % LIMIT
    chain = 0
    for of in elements:
        chain = (chain * BASE + of[2]) % LIMIT
    return count, total, chain

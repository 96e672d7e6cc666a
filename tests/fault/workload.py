"""What the drivers write, as a function of a seed: any batch can be made again, and any state recounted. Pure.

Two states are fed by the same batches. `values` has the last row of a key, which names the batch it comes from. `sums`
adds up: an epoch that is applied twice, or not at all, shows for ever after.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

Row = tuple[int, ...] | None
"""A state's fields; None: absent, or to be deleted."""

VALUES = "values"
SUMS = "sums"
KEYS = 48
KEY_GROUPS = 8


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Attributes:
        values: By key, the new row (batch, number); None deletes the key.
        amounts: Rows to be summed: key and amount; several of a key.
    """

    number: int
    values: Mapping[str, Row]
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Workload:
    """All batches of one seed. `deletes`: some rows delete their key (which Spark's update mode can't)."""

    seed: int
    deletes: bool = True

    def batch(self, number: int) -> Batch:
        """The batch of this number, from 0 on; always the same."""
        draw = random.Random(f"{self.seed} {number}")
        # Mostly small, so that epochs leave key groups untouched; some empty, some of everything.
        size = draw.choice((0, 1, 2, 4, 8, 8, 16, KEYS))
        values: dict[str, Row] = {}
        for key in draw.sample(range(KEYS), size):
            deleted = self.deletes and draw.random() < 0.15
            values[name(key)] = None if deleted else (number, draw.randrange(1 << 40))
        amounts = tuple((name(draw.randrange(KEYS)), draw.randrange(1, 1000)) for _ in range(size))
        return Batch(number, values, amounts)


def name(key: int) -> str:
    return f"key-{key}"


def names() -> list[str]:
    """All keys."""
    return [name(key) for key in range(KEYS)]


Fold = Callable[[Row, Row], Row]


def replaced(_: Row, row: Row) -> Row:
    """Kind VALUE."""
    return row


def summed(before: Row, row: Row) -> Row:
    """Kind REDUCING: (sum of the amounts, their number, the highest)."""
    assert row is not None
    if before is None:
        return row
    return before[0] + row[0], before[1] + row[1], max(before[2], row[2])


def values_of(batch: Batch) -> Iterator[tuple[str, Row]]:
    yield from batch.values.items()


def amounts_of(batch: Batch) -> Iterator[tuple[str, Row]]:
    yield from ((key, (amount, 1, amount)) for key, amount in batch.amounts)


STATES: Mapping[str, tuple[Callable[[Batch], Iterator[tuple[str, Row]]], Fold]] = {
    VALUES: (values_of, replaced),
    SUMS: (amounts_of, summed),
}
"""By state: its rows of a batch, and how they come to what was there. Further kinds join here."""


@dataclass
class Recount:
    """Every state after every epoch. Epoch e is batch e - 1: a run's first epoch is 1."""

    workload: Workload
    _changes: dict[tuple[str, str], list[tuple[int, Row]]] = field(default_factory=dict)
    _epoch: int = 0

    def row(self, state: str, key: str, epoch: int) -> Row:
        """What the state holds of the key once the epoch is committed, and no later one."""
        self._count(epoch)
        changes = self._changes.get((state, key), [])
        at = bisect_right(changes, epoch, key=lambda change: change[0])
        return changes[at - 1][1] if at else None

    def epochs(self, state: str, key: str, row: Row, up_to: int) -> list[tuple[int, int]]:
        """The ranges of epochs (first, last) after which the key has this row: where a wrong answer may come from."""
        self._count(up_to)
        changes = [(0, None), *self._changes.get((state, key), [])]
        lasts = [epoch - 1 for epoch, _ in changes[1:]] + [up_to]
        return [(first, last) for (first, held), last in zip(changes, lasts, strict=True) if held == row]

    def _count(self, epoch: int) -> None:
        while self._epoch < epoch:
            batch = self.workload.batch(self._epoch)
            self._epoch += 1
            for state, (rows, fold) in STATES.items():
                for key, row in rows(batch):
                    changes = self._changes.setdefault((state, key), [])
                    changes.append((self._epoch, fold(changes[-1][1] if changes else None, row)))

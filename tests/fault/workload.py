"""What the drivers write, as a function of a seed: any batch can be made again, and so any state recounted. Pure.

All kinds of states, fed by the same batches. In `values`, `notices`, `spans` and `trails` each row names
the batch it comes from. `sums`, `tallies` and `chains` add up: an epoch that is applied twice, or not at all, shows for
ever after. `leases` add up and `loans` are replaced, and expire by event time; so do `streaks` and `guests`, by the
clock. Fed by Spark only: `ledgers` and `rosters` are of an operator's subtasks, whose number changes; `alerts` depend
on what a batch reads of `notices`; `places`, `routes` and `stops` are the variables of a processor that are exposed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from keyhole.encoding.columnar import Op

Row = tuple[int, ...] | None
"""A state's fields; None: absent."""

VALUES = "values"
SUMS = "sums"
TALLIES = "tallies"
SPANS = "spans"
TRAILS = "trails"
CHAINS = "chains"
NOTICES = "notices"
LEASES = "leases"
LOANS = "loans"
GUESTS = "guests"
STREAKS = "streaks"
LEDGERS = "ledgers"
ROSTERS = "rosters"
ALERTS = "alerts"
PLACES = "places"
ROUTES = "routes"
STOPS = "stops"

KEYS = 24
MOST_SUBTASKS = 3
KEY_GROUPS = 4
MAP_KEYS = 12
MAX_LENGTH = 5
LEASE_MS = 6_000
STAY_MS = 3_000


@dataclass(frozen=True)
class Change:
    """One row that the drivers write.

    Attributes:
        key: Of OPERATORS: a subtask's number, in digits; where there are fewer, the remainder says which.
        map_key: None: the state has none, or the row is of the whole key.
        fields: Empty: the row deletes or clears.
    """

    key: str
    op: Op = Op.PUT
    map_key: int | None = None
    fields: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One micro-batch: the rows of each state, in their order. A state that gets none is missing."""

    number: int
    changes: Mapping[str, tuple[Change, ...]]

    def of(self, state: str) -> tuple[Change, ...]:
        return self.changes.get(state, ())


@dataclass(frozen=True)
class Workload:
    """All batches of one seed."""

    seed: int

    def batch(self, number: int) -> Batch:
        """The batch of this number, from 0 on; always the same."""
        changes: dict[str, tuple[Change, ...]] = {}
        for state, drawn in {**DRAWN, **BY_CLOCK, **OF_SPARK}.items():
            # Of its own, so that a state's rows don't depend on which others there are.
            draw = random.Random(f"{self.seed} {number} {state}")
            # Mostly small, so that epochs leave key groups, and whole states, untouched; some of everything.
            keys = names(state)
            # But rows for operators, which Spark may call or not for a batch that has none for any of their subtasks.
            least = 1 if state in OPERATORS else 0
            size = min(draw.choice((least, least, least, 1, 2, 4, 8, KEYS)), len(keys))
            if size:
                keys = draw.sample(keys, size)
                changes[state] = tuple(change for key in keys for change in drawn(draw, number, key))
        return Batch(number, changes)


def watermark_ms(number: int) -> int:
    """Before the batch of this number: a second more for each batch, and three more for each seventh."""
    return 1000 * (number + 1 + number // 7 * 3)


def subtasks(seed: int, start: int) -> int:
    """How many subtasks operators have from this start of the driver on, from 0; another number with each."""
    draw = random.Random(f"{seed} subtasks")
    number = draw.randint(1, MOST_SUBTASKS)
    for _ in range(start):
        number = draw.choice([other for other in range(1, MOST_SUBTASKS + 1) if other != number])
    return number


def name(key: int) -> str:
    return f"key-{key}"


def names(state: str = "") -> list[str]:
    """All keys of the state; those that most states have, if none is named."""
    if state in OPERATORS:
        return [str(subtask) for subtask in range(MOST_SUBTASKS)]
    return [name(key) for key in range(KEYS)]


def _replaced(draw: random.Random, number: int, key: str) -> Iterator[Change]:
    if draw.random() < 0.15:
        yield Change(key, Op.DELETE)
    else:
        yield Change(key, fields=(number, draw.randrange(1 << 40)))


def _summed(draw: random.Random, number: int, key: str) -> Iterator[Change]:
    for _ in range(draw.randint(1, 3)):
        amount = draw.randrange(1, 1000)
        yield Change(key, fields=(amount, 1, amount))


def _summed_or_deleted(draw: random.Random, number: int, key: str) -> Iterator[Change]:
    if draw.random() < 0.1:
        yield Change(key, Op.DELETE)
    else:
        yield from _summed(draw, number, key)


def _tallied(draw: random.Random, number: int, key: str) -> Iterator[Change]:
    if draw.random() < 0.1:
        yield Change(key, Op.CLEAR)
    for map_key in draw.sample(range(MAP_KEYS), draw.randint(0, 3)):
        if draw.random() < 0.1:
            yield Change(key, Op.DELETE, map_key)
        else:
            yield from (Change(key, Op.PUT, map_key, of.fields) for of in _summed(draw, number, key))


def _spanned(draw: random.Random, number: int, key: str) -> Iterator[Change]:
    if draw.random() < 0.15:
        yield Change(key, Op.CLEAR)
    for map_key in draw.sample(range(MAP_KEYS), draw.randint(0, 5)):
        if draw.random() < 0.2:
            yield Change(key, Op.DELETE, map_key)
        else:
            yield Change(key, Op.PUT, map_key, (number, draw.randrange(1 << 40)))


def _trailed(draw: random.Random, number: int, key: str) -> Iterator[Change]:
    kind = draw.random()
    if kind < 0.1:
        yield Change(key, Op.CLEAR)
    op = Op.REPLACE if kind > 0.85 else Op.APPEND
    for _ in range(draw.choice((0, 1, 1, 2, 3, MAX_LENGTH + 2))):
        yield Change(key, op, fields=(number, draw.randrange(1 << 40)))


def _chained(draw: random.Random, number: int, key: str) -> Iterator[Change]:
    if draw.random() < 0.05:
        yield Change(key, Op.DELETE)
    for _ in range(draw.randint(0, 3)):
        yield Change(key, fields=(draw.randrange(1, 1000),))


def _entered(draw: random.Random, number: int, subtask: str) -> Iterator[Change]:
    for _ in range(draw.randint(1, 3)):
        yield Change(subtask, fields=(draw.randrange(1, 1000),))


_Drawn = Callable[[random.Random, int, str], Iterator[Change]]

DRAWN: Mapping[str, _Drawn] = {
    VALUES: _replaced,
    SUMS: _summed,
    TALLIES: _tallied,
    SPANS: _spanned,
    TRAILS: _trailed,
    CHAINS: _chained,
    NOTICES: _replaced,
    LEASES: _tallied,
    LOANS: _replaced,
}
"""By state that any driver can feed: the rows of one key in one batch."""

BY_CLOCK: Mapping[str, _Drawn] = {GUESTS: _replaced, STREAKS: _summed_or_deleted}
"""The same of those whose entries expire by processing time: only where no clock is made to jump."""

EXPOSED: Mapping[str, _Drawn] = {PLACES: _replaced, ROUTES: _trailed, STOPS: _spanned}
"""The same of a processor's variables (tests.fault.journeys), which only a driver with Spark has."""

OPERATORS: Mapping[str, _Drawn] = {LEDGERS: _entered, ROSTERS: _entered}
"""The same of operators (tests.fault.chain), which only a driver with Spark has."""

OF_SPARK: Mapping[str, _Drawn] = {**OPERATORS, ALERTS: _replaced, **EXPOSED}
"""The same of all that only a driver with Spark can feed."""

SPARK_STATES = (
    (VALUES, SPANS, CHAINS, SUMS, LEASES, LEDGERS, ROSTERS),
    (TALLIES, TRAILS, NOTICES, ALERTS, PLACES, ROUTES, STOPS),
)
"""What episodes with Spark have, in turn: each state costs something per batch, and few batches tell little."""

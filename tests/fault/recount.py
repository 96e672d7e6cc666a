"""What readers may ask, and the right answer to it after every epoch. Pure: nothing here is Keyhole's own code."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

import msgspec

from keyhole.encoding.columnar import Op
from tests.fault.asked_where import Where
from tests.fault.subtasks import Subtasks, chained
from tests.fault.workload import (
    ALERTS,
    BY_CLOCK,
    CHAINS,
    GUESTS,
    LEASE_MS,
    LEASES,
    LEDGERS,
    LOANS,
    MAX_LENGTH,
    MOST_SUBTASKS,
    NOTICES,
    OPERATORS,
    PLACES,
    ROSTERS,
    ROUTES,
    SPANS,
    STAY_MS,
    STOPS,
    STREAKS,
    SUMS,
    TALLIES,
    TRAILS,
    VALUES,
    Batch,
    Change,
    Row,
    Workload,
    names,
    watermark_ms,
)


class EntryOf(msgspec.Struct, frozen=True, array_like=True, tag="entry"):
    """A Get of one entry of a key."""

    key: str
    map_key: int


class ScanOf(msgspec.Struct, frozen=True, array_like=True, tag="scan"):
    """A Scan of a key's entries; of a broadcast state, of the whole: then the key is empty, and keys are entries.

    `start` (inclusive) and `stop` (exclusive) are None where there is no bound; `limit` is 0.
    """

    key: str
    start: int | str | None = None
    stop: int | str | None = None
    descending: bool = False
    limit: int = 0


class PartOf(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Of all that a state holds of a key what a predicate is true of."""

    key: str
    where: Where


Question: TypeAlias = str | EntryOf | ScanOf | PartOf
"""A string: a Get of this key."""

Shown: TypeAlias = tuple[int | tuple[int | str, ...], ...] | None
"""An answer. Of a Get: the fields; None: absent. Of a Scan: by entry, in order, its map key and then its fields."""

Entries = tuple[tuple[int | str, ...], ...]


def key_of(question: Question) -> str:
    return question if isinstance(question, str) else question.key


def whole(state: str, key: str, where: Where | None = None) -> Question:
    """What tells all that a state holds of a key, or what the predicate is true of."""
    if where is not None:
        return PartOf(key, where)
    return ScanOf(key) if SHAPES[state].entries else key


def part(state: str, of: PartOf, shown: Shown) -> Shown:
    """What the predicate is true of, of all that a state holds of the key."""
    if SHAPES[state].entries:
        return tuple(entry for entry in shown or () if of.where.has(of.key, entry[0], entry[1:]))  # type: ignore[index]
    return shown if shown is not None and of.where.has(of.key, None, shown) else None  # type: ignore[arg-type]


def _last(_: Shown, changes: Sequence[Change]) -> Row:
    return changes[-1].fields or None


def _merged(before: Row, changes: Sequence[Change]) -> Row:
    """Sum, number and highest. Rows of an epoch have no order: a deletion takes the others of its key along."""
    if any(change.op is Op.DELETE for change in changes):
        return None
    rows = [change.fields for change in changes] + ([before] if before is not None else [])
    return sum(row[0] for row in rows), sum(row[1] for row in rows), max(row[2] for row in rows)


def _summed(before: Shown, changes: Sequence[Change]) -> Shown:
    return _merged(before, changes)  # type: ignore[arg-type]  # a Row


def _aggregated(before: Shown, changes: Sequence[Change]) -> Shown:
    row: Row = before  # type: ignore[assignment]
    for change in changes:
        row = None if change.op is Op.DELETE else chained(row, change.fields[0])
    return row


def _entries(merge: Callable[[Row, Sequence[Change]], Row]) -> Callable[[Shown, Sequence[Change]], Shown]:
    def folded(before: Shown, changes: Sequence[Change]) -> Shown:
        cleared = any(change.op is Op.CLEAR for change in changes)
        held = {} if cleared else {entry[0]: entry[1:] for entry in before or ()}  # type: ignore[index]
        of_entries = sorted((c for c in changes if c.map_key is not None), key=lambda c: c.map_key or 0)
        for map_key, group in groupby(of_entries, lambda change: change.map_key):
            assert map_key is not None
            row = merge(held.pop(map_key, None), list(group))  # type: ignore[arg-type]
            if row is not None:
                held[map_key] = row
        return tuple((map_key, *held[map_key]) for map_key in sorted(held))  # type: ignore[type-var]

    return folded


def _appended(before: Shown, changes: Sequence[Change]) -> Entries:
    cleared = any(change.op is not Op.APPEND for change in changes)
    held: Entries = () if cleared else before or ()  # type: ignore[assignment]
    first = 1 + int(held[-1][0]) if held else 0
    elements = [change.fields for change in changes if change.fields]
    return (*held, *((first + at, *fields) for at, fields in enumerate(elements)))


def _bounded(before: Shown, changes: Sequence[Change]) -> Shown:
    return _appended(before, changes)[-MAX_LENGTH:]


@dataclass(frozen=True)
class Shape:
    """What a state is like.

    Attributes:
        fold: What a key has after an epoch, from what it had before and the epoch's rows of it. Of OPERATORS, where
            keys are not alone: see tests.fault.subtasks.
        entries: A key has several; `fold` makes what a Scan of all tells.
        gets: What there is can be asked for one by one, too.
        scans_keys: A Scan is of the whole state.
        ttl_ms: How long entries live, by event time or, in states of BY_CLOCK, by the clock; 0: for ever.
    """

    fold: Callable[[Shown, Sequence[Change]], Shown]
    entries: bool = False
    gets: bool = True
    scans_keys: bool = False
    ttl_ms: int = 0


SHAPES: Mapping[str, Shape] = {
    VALUES: Shape(_last),
    SUMS: Shape(_summed),
    TALLIES: Shape(_entries(_merged), entries=True),
    SPANS: Shape(_entries(_last), entries=True),
    TRAILS: Shape(_bounded, entries=True, gets=False),
    CHAINS: Shape(_aggregated),
    NOTICES: Shape(_last, scans_keys=True),
    LEASES: Shape(_entries(_merged), entries=True, ttl_ms=LEASE_MS),
    LOANS: Shape(_last, ttl_ms=LEASE_MS),
    GUESTS: Shape(_last, ttl_ms=STAY_MS),
    STREAKS: Shape(_summed, ttl_ms=STAY_MS),
    LEDGERS: Shape(_aggregated),
    ROSTERS: Shape(_aggregated),
    ALERTS: Shape(_last),
    PLACES: Shape(_last),
    ROUTES: Shape(_appended, entries=True, gets=False),
    STOPS: Shape(_entries(_last), entries=True),
}


@dataclass
class Recount:
    """Every state after every epoch. Epoch e is batch e - 1: a run's first epoch is 1.

    But those of BY_CLOCK, of which epochs alone don't tell (tests.fault.expiring).

    Attributes:
        pins: By batch, the epoch of NOTICES that it reads.
        numbers: By state and batch, how many subtasks an operator has.
    """

    workload: Workload
    pins: Mapping[int, int] = field(default_factory=dict)
    numbers: Mapping[tuple[str, int], int] = field(default_factory=dict)
    _history: dict[tuple[str, str], list[tuple[int, Shown]]] = field(default_factory=dict)
    _ends: dict[tuple[str, str], dict[int | None, int]] = field(default_factory=dict)
    _subtasks: Mapping[str, Subtasks] = field(default_factory=lambda: {state: Subtasks(state) for state in OPERATORS})
    _epoch: int = 0

    def answer(self, state: str, question: Question, epoch: int) -> Shown:
        """What is told once the epoch is committed, and no later one."""
        self._count(epoch)
        if isinstance(question, PartOf):
            return part(state, question, self.answer(state, whole(state, question.key), epoch))
        if isinstance(question, str):
            return self._content(state, question, epoch)
        if isinstance(question, EntryOf):
            found = [entry[1:] for entry in self._entries(state, question.key, epoch) if entry[0] == question.map_key]
            return found[0] if found else None  # type: ignore[return-value]
        return _asked(self._entries(state, question.key, epoch), question)

    def epochs(self, state: str, question: Question, answer: Shown, up_to: int) -> list[tuple[int, int]]:
        """The ranges of epochs (first, last) after which this is the answer: where a wrong one may come from."""
        self._count(up_to)
        keys = [key] if (key := key_of(question)) else names(state)
        changed = sorted({0, *(epoch for of in keys for epoch, _ in self._history.get((state, of), ()))})
        lasts = [epoch - 1 for epoch in changed[1:]] + [up_to]
        return [
            (first, last)
            for first, last in zip(changed, lasts, strict=True)
            if self.answer(state, question, first) == answer
        ]

    def _content(self, state: str, key: str, epoch: int) -> Shown:
        changes = self._history.get((state, key), [])
        at = bisect_right(changes, epoch, key=lambda change: change[0])
        return changes[at - 1][1] if at else None

    def _entries(self, state: str, key: str, epoch: int) -> Entries:
        if key:
            return self._content(state, key, epoch) or ()  # type: ignore[return-value]
        return tuple((name, *row) for name in sorted(names()) if (row := self._content(state, name, epoch)) is not None)  # type: ignore[misc]

    def _count(self, epoch: int) -> None:
        while self._epoch < epoch:
            batch = self.workload.batch(self._epoch)
            self._epoch += 1
            for state, shape in SHAPES.items():
                if state in BY_CLOCK:
                    continue
                if shape.ttl_ms:
                    self._expire(state)
                if state in OPERATORS:
                    self._deal(state, batch)
                    continue
                for key, changes in by_key(self._changes(state, batch)):
                    history = self._history.setdefault((state, key), [])
                    history.append((self._epoch, shape.fold(history[-1][1] if history else None, changes)))
                    # By the time that it is once the batch's own rows are in.
                    ends = watermark_ms(batch.number + 1) + shape.ttl_ms
                    of_key = self._ends.setdefault((state, key), {})
                    of_key |= {of.map_key: ends for of in changes if of.fields}

    def _deal(self, state: str, batch: Batch) -> None:
        number = self.numbers.get((state, batch.number), MOST_SUBTASKS)
        for key, content in self._subtasks[state].epoch(number, batch.of(state)):
            self._history.setdefault((state, key), []).append((self._epoch, content))

    def _changes(self, state: str, batch: Batch) -> Iterator[Change]:
        """As tasks get them: each row of ALERTS has the number of its key's notice, or 0."""
        for change in batch.of(state):
            if state == ALERTS and change.fields:
                notice: Row = self._content(NOTICES, change.key, self.pins.get(batch.number, 0))  # type: ignore[assignment]
                yield replace(change, fields=(*change.fields, notice[1] if notice else 0))
            else:
                yield change

    def _expire(self, state: str) -> None:
        """What has expired by the epoch's watermark is no more, neither to readers nor to the epoch's own rows."""
        now = watermark_ms(self._epoch - 1)
        for key in names():
            history, ends = self._history.get((state, key)), self._ends.get((state, key), {})
            held = history[-1][1] if history else None
            if not history or not held:
                continue
            living: Shown
            if SHAPES[state].entries:
                living = tuple(entry for entry in held if ends[entry[0]] > now)  # type: ignore[index]
            else:
                living = held if ends[None] > now else None
            if living != held:
                history.append((self._epoch, living))


def by_key(changes: Iterable[Change]) -> Iterable[tuple[str, list[Change]]]:
    """The rows of each key, in their order."""
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.key, []).append(change)
    return found.items()


def _asked(entries: Entries, scan: ScanOf) -> Entries:
    start, stop = scan.start, scan.stop
    inside = [
        entry
        for entry in entries
        if (start is None or entry[0] >= start) and (stop is None or entry[0] < stop)  # type: ignore[operator]
    ]
    if scan.descending:
        inside.reverse()
    return tuple(inside[: scan.limit or None])

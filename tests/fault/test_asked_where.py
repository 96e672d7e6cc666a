"""Predicates mean to the recount what they mean to Keyhole, and watches by them are judged by what they are true of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from keyhole.encoding.entry_filter import EntryFilter
from keyhole.encoding.predicate_binding import bound
from tests.fault.asked_where import COMPARISONS, FIELDS, Compared, KnownEntry, Where, drawn_where
from tests.fault.checker import check
from tests.fault.history import Seen, Watched
from tests.fault.questions import predicate
from tests.fault.recount import SHAPES, whole
from tests.fault.states import CODECS
from tests.fault.test_checker import RECOUNT, at, history
from tests.fault.watched_rules import WATCHED_RULES
from tests.fault.watching_readers import SELECTING
from tests.fault.workload import CHAINS, DRAWN, SUMS, VALUES, names

# The harness itself, without processes.
pytestmark = pytest.mark.core

EPOCH = 20
TELLS, ONCE, MISSES = (rule.__name__ for rule in WATCHED_RULES)
# What it is true of changes with nearly every epoch.
LATE = Where((Compared(FIELDS, "between", (12, 18)),))


def known(state: str, epoch: int = EPOCH) -> list[KnownEntry]:
    """All entries after an epoch."""
    found: list[KnownEntry] = []
    for key in names(state):
        answer = RECOUNT.answer(state, whole(state, key), epoch) or ()
        if SHAPES[state].entries:
            found += [(key, entry[0], entry[1:]) for entry in answer]  # type: ignore[index, misc]  # entries
        elif answer:
            found.append((key, None, answer))  # type: ignore[arg-type]  # fields
    return found


@pytest.mark.parametrize("state", [VALUES, SUMS, CHAINS])
def test_predicates_are_true_of_what_keyhole_says(state: str) -> None:
    draw, rows, codec = random.Random(state), known(state), CODECS[state]
    stored = [(codec.prefix(key), msgspec.msgpack.encode((1, *fields))) for key, _, fields in rows]
    used, found = set[str](), set[int]()
    for _ in range(400):
        where = drawn_where(draw, state, rows)
        asked = predicate(state, where)
        assert asked is not None
        kept = EntryFilter(codec.descriptor, asked).kept(stored)
        assert kept == [entry for entry, row in zip(stored, rows, strict=True) if where.has(*row)], where
        used |= {part.by for part in where.parts}
        found.add(len(kept))
    assert used == set(COMPARISONS)
    assert len(found) > len(rows) / 3


@pytest.mark.parametrize("state", DRAWN)
def test_predicates_are_of_fields_that_the_state_has(state: str) -> None:
    draw = random.Random(state)
    for _ in range(50):
        asked = predicate(state, drawn_where(draw, state, known(state)))
        assert asked is not None
        bound(asked, CODECS[state].descriptor)


def met(key: str, epoch: int) -> tuple[int, ...] | None:
    return RECOUNT.answer(VALUES, whole(VALUES, key, LATE), epoch)  # type: ignore[return-value]  # fields


def watched(epoch: int, changes: Sequence[Seen]) -> Watched:
    began, ended = at(epoch) + 0.1, at(epoch) + 0.2
    return Watched(SELECTING, 1, began, ended, VALUES, tuple(changes), epoch, where=LATE)


def selected() -> list[Watched]:
    """A right watch of what a predicate is true of, from epoch 12 on."""
    first = [Seen(key, None, met(key, 12), 12, snapshot=True) for key in names() if met(key, 12)]
    later = [
        watched(
            epoch,
            [
                Seen(key, None, met(key, epoch), epoch, snapshot=False)
                for key in names()
                if met(key, epoch) != met(key, epoch - 1)
            ],
        )
        for epoch in range(13, 30)
    ]
    return [watched(12, first), *later]


def with_false_row(of: list[Watched]) -> None:
    """An entry of which the predicate becomes false comes with its row, and not as a deletion."""
    for place, one in enumerate(of):
        for number, seen in enumerate(one.changes):
            row = RECOUNT.answer(VALUES, seen.key, seen.epoch)
            if seen.fields is None and row is not None:
                changes = list(one.changes)
                changes[number] = msgspec.structs.replace(seen, fields=row)
                of[place] = msgspec.structs.replace(one, changes=tuple(changes))
                return
    raise AssertionError("the predicate becomes false of no entry")


def without_a_deletion(of: list[Watched]) -> None:
    for place, one in enumerate(of):
        if any(seen.fields is None for seen in one.changes):
            kept = tuple(seen for seen in one.changes if seen.fields is not None)
            of[place] = msgspec.structs.replace(one, changes=kept)
            return
    raise AssertionError("nothing is deleted")


def twice(of: list[Watched]) -> None:
    of.append(next(one for one in of if one.changes))


def test_a_watch_of_what_a_predicate_is_true_of_is_right() -> None:
    right = history()
    right.events += selected()
    verdict = check(right)
    assert verdict.right, verdict.violations


def test_a_deletion_of_what_the_watch_has_not_got_is_right() -> None:
    """Where nobody knows what there was before, one comes."""
    key = next(of for of in names() if RECOUNT.answer(VALUES, of, 25) and not met(of, 25) and not met(of, 24))
    more = selected()
    place = next(number for number, one in enumerate(more) if one.complete == 25)
    gone = Seen(key, None, None, 25, snapshot=False)
    assert all(seen.key != key for seen in more[place].changes)
    more[place] = msgspec.structs.replace(more[place], changes=(*more[place].changes, gone))
    right = history()
    right.events += more
    assert check(right).right


@pytest.mark.parametrize(
    ("rule", "change"),
    [(TELLS, with_false_row), (MISSES, without_a_deletion), (ONCE, twice)],
)
def test_a_watch_by_a_predicate_is_wrong_that_has(rule: str, change: Callable[[list[Watched]], None]) -> None:
    doctored, more = history(), selected()
    change(more)
    doctored.events += more
    assert rule in check(doctored, {rule}).violated

"""The checker says yes to right scans of whole states and right counts, and catches each way to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.fault.asked_where import FIELDS, KEY, Compared, Where
from tests.fault.checker import check
from tests.fault.history import Asked, Claim, Counted, Event, KeysOf, Scanned
from tests.fault.recount import ScanOf
from tests.fault.test_checker import OWNED, RECOUNT, at, history
from tests.fault.whole_answers import key_group
from tests.fault.whole_rules import WHOLE_RULES
from tests.fault.workload import NOTICES, SPANS, SUMS, TRAILS, VALUES, names

# The harness itself, without processes.
pytestmark = pytest.mark.core

ROWS = "every_answer_has_the_row_of_its_epoch"
COUNTS = "a_count_is_that_of_its_epochs"
LACKS = "a_scan_has_nothing_of_a_key_group_only_where_there_was_nothing"
ALL = KeysOf()
# Rows of the last batch before epoch 20 are in each key group, and others.
LATE = KeysOf(where=Where((Compared(FIELDS, ">=", (19,)),)))
NOBODY = KeysOf(where=Where((Compared(KEY, "==", ("key-99",)),)))


def claim(epoch: int, **changes: object) -> Claim:
    return msgspec.structs.replace(OWNED, epoch=epoch, **changes)


def entries(state: str, epoch: int, of: KeysOf = ALL) -> list[tuple[str, int | None, tuple[int, ...]]]:
    """What the state has after the epoch, in order."""
    found: list[Any] = []
    for key in sorted(filter(of.has, names(state))):
        if state in (SPANS, TRAILS):
            right = RECOUNT.answer(state, ScanOf(key), epoch) or ()
            found += [(key, entry[0], tuple(entry[1:])) for entry in right]  # type: ignore[index]
        elif (right := RECOUNT.answer(state, key, epoch)) is not None:
            found.append((key, None, right))
    if of.where is not None:
        found = [entry for entry in found if of.where.has(*entry)]
    return found[::-1] if of.order == "descending" else found


def scanned(
    state: str,
    epoch: int,
    of: KeysOf = ALL,
    asked: Asked | None = None,
    epochs: Callable[[str], int] = lambda _: 0,
    kept: Callable[[str], bool] = lambda _: True,
) -> Scanned:
    """A right scan, right after the epoch was complete: but for the keys that are not kept.

    Args:
        epochs: By key, by how many epochs what is told of it is older; its claim says so.
    """
    older = sorted({epochs(key) for key in names(state)})
    shown = [
        (*entry, older.index(before))
        for before in older
        for entry in entries(state, epoch - before, of)
        if epochs(entry[0]) == before and kept(entry[0])
    ]
    claims = tuple(claim(epoch - before) for before in older)
    return Scanned("whole", at(epoch) + 0.1, at(epoch) + 0.2, state, asked or Asked(0), of, tuple(shown), claims)


def counted(state: str, count: int, *epochs: int, of: KeysOf = ALL) -> Counted:
    last = max(epochs)
    return Counted("whole", at(last) + 0.1, at(last) + 0.2, state, Asked(0), of, count, tuple(map(claim, epochs)))


def of_group_0(state: str) -> Callable[[str], int]:
    """1 of keys of the first key group, else 0."""
    return lambda key: int(key_group(state, key) == 0)


def mixed(state: str) -> Scanned:
    """Its last half is as of some epochs before, and says that it is of this one."""
    before = {(key, map_key): fields for key, map_key, fields in entries(state, 15)}
    right = scanned(state, 20)
    shown = [
        (key, map_key, before.get((key, map_key), fields) if place > len(right.entries) // 2 else fields, number)
        for place, (key, map_key, fields, number) in enumerate(right.entries)
    ]
    assert tuple(shown) != right.entries
    return msgspec.structs.replace(right, entries=tuple(shown))


def out_of_order() -> Scanned:
    right = scanned(SPANS, 20, KeysOf(order="ascending"))
    return msgspec.structs.replace(right, entries=right.entries[::-1])


def twice() -> Scanned:
    right = scanned(SUMS, 20)
    return msgspec.structs.replace(right, entries=(*right.entries, right.entries[0]))


def with_what_is_false() -> Scanned:
    right = scanned(VALUES, 20)
    assert len(entries(VALUES, 20, LATE)) < len(right.entries)
    return msgspec.structs.replace(right, of=LATE)


def beyond() -> Scanned:
    return msgspec.structs.replace(scanned(SUMS, 20), of=KeysOf("key-2"))


RIGHT: dict[str, Callable[[], Event]] = {
    "all of a state": lambda: scanned(SUMS, 20),
    "all of a map": lambda: scanned(SPANS, 20),
    "all of a list": lambda: scanned(TRAILS, 20),
    "all of a broadcast state": lambda: scanned(NOTICES, 20),
    "a range from the last key down": lambda: scanned(SPANS, 20, KeysOf("key-12", "key-5", "descending")),
    "a range without a key": lambda: scanned(SUMS, 20, KeysOf("key-5", "key-12")),
    "two key groups of two epochs": lambda: scanned(SUMS, 20, epochs=of_group_0(SUMS)),
    "a snapshot": lambda: scanned(SUMS, 20, asked=Asked(0, as_of_epoch=20)),
    "a snapshot of a range without a key": lambda: scanned(
        SUMS, 20, KeysOf("key-5", "key-12"), Asked(0, as_of_epoch=20)
    ),
    "nothing of a key group, of before anything was in it": lambda: scanned(SUMS, 0),
    "a count": lambda: counted(SPANS, len(entries(SPANS, 20)), 20),
    "a count of a range": lambda: counted(
        SPANS, len(entries(SPANS, 20, KeysOf("key-12", "key-5"))), 20, of=KeysOf("key-12", "key-5")
    ),
    "what a predicate is true of": lambda: scanned(VALUES, 20, LATE),
    "entries of a map that a predicate is true of": lambda: scanned(SPANS, 20, LATE),
    "a predicate that is true of nothing": lambda: scanned(VALUES, 20, NOBODY, Asked(0, as_of_epoch=20)),
    "a count of what a predicate is true of": lambda: counted(SPANS, len(entries(SPANS, 20, LATE)), 20, of=LATE),
    "a count of nothing": lambda: counted(VALUES, 0, 20, of=NOBODY),
    "a count of key groups of two epochs": lambda: counted(
        SPANS, len(scanned(SPANS, 20, epochs=of_group_0(SPANS)).entries), 19, 20
    ),
}

DOCTORED: dict[str, tuple[str, Callable[[], Event]]] = {
    "a scan that mixes epochs": (ROWS, lambda: mixed(SUMS)),
    "a scan of a map that mixes epochs": (ROWS, lambda: mixed(SPANS)),
    "a scan that lacks a key": (ROWS, lambda: scanned(SUMS, 20, kept=lambda key: key != "key-7")),
    "a range that lacks a key": (
        ROWS,
        lambda: scanned(SPANS, 20, KeysOf("key-2"), kept=lambda key: key != "key-7"),
    ),
    "a snapshot of another epoch": (
        "an_epoch_that_is_asked_for_is_that_epoch",
        lambda: scanned(SUMS, 20, asked=Asked(0, as_of_epoch=19)),
    ),
    "a scan of an older epoch than asked for": ("min_epoch_is_kept", lambda: scanned(SUMS, 20, asked=Asked(21))),
    "a snapshot that lacks a key group": (
        LACKS,
        lambda: scanned(SUMS, 20, asked=Asked(0, as_of_epoch=20), kept=lambda key: key_group(SUMS, key) != 1),
    ),
    "a scan that lacks a key group": (
        LACKS,
        lambda: scanned(SUMS, 20, asked=Asked(19), kept=lambda key: key_group(SUMS, key) != 1),
    ),
    "a key group of two epochs": (
        "a_scan_has_each_key_group_as_of_one_epoch",
        lambda: scanned(SUMS, 20, epochs=lambda key: int(key == "key-7")),
    ),
    "an entry that comes twice": ("a_scan_has_what_was_asked_for_once_and_in_its_order", twice),
    "entries in another order": ("a_scan_has_what_was_asked_for_once_and_in_its_order", out_of_order),
    "what the predicate is false of": (ROWS, with_what_is_false),
    "a predicate's scan that lacks a key": (
        ROWS,
        lambda: scanned(VALUES, 20, LATE, kept=lambda key: key != entries(VALUES, 20, LATE)[0][0]),
    ),
    "a predicate's scan that lacks a key group": (
        LACKS,
        lambda: scanned(VALUES, 20, LATE, Asked(0, as_of_epoch=20), kept=lambda key: key_group(VALUES, key) != 1),
    ),
    "a count of what a predicate is false of": (
        COUNTS,
        lambda: counted(SPANS, len(entries(SPANS, 20)), 20, of=LATE),
    ),
    "keys beyond the range": ("a_scan_has_what_was_asked_for_once_and_in_its_order", beyond),
    "a count of one too few": (
        COUNTS,
        lambda: counted(SPANS, len(entries(SPANS, 20)) - 1, 20),
    ),
    "a count of another epoch": (
        COUNTS,
        lambda: counted(SPANS, len(entries(SPANS, 20)), 10),
    ),
}


def test_right_scans_and_counts_are_right() -> None:
    """Together: the rules look at each by itself."""
    of = history()
    of.events += [right() for right in RIGHT.values()]
    verdict = check(of)
    assert verdict.right, verdict.violations


@pytest.mark.parametrize(("rule", "more"), DOCTORED.values(), ids=DOCTORED)
def test_a_history_is_wrong_that_has(rule: str, more: Callable[[], Event]) -> None:
    doctored = history()
    doctored.events.append(more())
    assert rule in check(doctored, {rule}).violated


def test_each_rule_has_a_history_that_breaks_it() -> None:
    assert {rule.__name__ for rule in WHOLE_RULES} <= {rule for rule, _ in DOCTORED.values()}


def test_an_answer_is_counted_for_each_key_of_a_scan() -> None:
    of = history()
    before = check(of, {COUNTS}).answers
    of.events.append(scanned(SUMS, 20))
    assert check(of, {COUNTS}).answers == before + len(names(SUMS))

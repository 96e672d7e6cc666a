"""The recount knows the right answer to every question, after every epoch; here it is told in other words."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from keyhole.encoding.columnar import Op
from tests.fault.chain import RESULT, Chain, Ledger, Roster
from tests.fault.questions import drawn
from tests.fault.recount import SHAPES, EntryOf, Question, Recount, ScanOf, whole
from tests.fault.workload import (
    ALERTS,
    BY_CLOCK,
    CHAINS,
    DRAWN,
    GUESTS,
    KEYS,
    LEASE_MS,
    LEASES,
    LEDGERS,
    LOANS,
    MAP_KEYS,
    MAX_LENGTH,
    MOST_SUBTASKS,
    NOTICES,
    OF_SPARK,
    OPERATORS,
    PLACES,
    ROSTERS,
    ROUTES,
    SPANS,
    STOPS,
    STREAKS,
    SUMS,
    TALLIES,
    TRAILS,
    VALUES,
    Change,
    Workload,
    names,
    subtasks,
    watermark_ms,
)

# The harness itself, without processes.
pytestmark = pytest.mark.core

WORKLOAD = Workload(9)
RECOUNT = Recount(WORKLOAD)
EPOCHS = 60
EXACT = (*DRAWN, *OF_SPARK)
ALL = (*EXACT, *BY_CLOCK)
BATCHES = [WORKLOAD.batch(number) for number in range(EPOCHS)]


@pytest.mark.parametrize("state", [VALUES, NOTICES, PLACES])
def test_the_last_row_of_a_key_stays_until_it_is_deleted(state: str) -> None:
    rows = {change.key: change.fields or None for batch in BATCHES for change in batch.of(state)}
    assert {key: RECOUNT.answer(state, key, EPOCHS) for key in names()} == {key: rows.get(key) for key in names()}
    assert RECOUNT.answer(state, names()[0], 0) is None


def test_sums_are_of_all_amounts() -> None:
    sums = Counter[str]()
    for batch in BATCHES:
        for change in batch.of(SUMS):
            sums[change.key] += change.fields[0]
    assert {key: (RECOUNT.answer(SUMS, key, EPOCHS) or (0,))[0] for key in names()} == {
        key: sums[key] for key in names()
    }


def test_chains_are_what_the_aggregator_makes_of_them_epoch_by_epoch() -> None:
    class Row(NamedTuple):
        amount: int

    chain, held = Chain(), dict[str, list[int]]()
    for batch in BATCHES:
        of_keys = defaultdict[str, list[Change]](list)
        for change in batch.of(CHAINS):
            of_keys[change.key].append(change)
        for key, changes in of_keys.items():
            gathered = chain.create()
            for change in changes:
                if change.op is Op.DELETE:
                    held.pop(key, None)
                else:
                    gathered = chain.add(gathered, Row(change.fields[0]))
            if gathered[0]:
                held[key] = chain.merge(held[key], gathered) if key in held else gathered
    results = {key: chain.result(of) for key, of in held.items()}
    answers = {key: RECOUNT.answer(CHAINS, key, EPOCHS) for key in names()}
    assert {key: dict(zip(RESULT, row, strict=True)) for key, row in answers.items() if row is not None} == results


class OperatorRow(NamedTuple):
    n: int
    amount: int


@pytest.mark.parametrize(("state", "operator"), [(LEDGERS, Ledger()), (ROSTERS, Roster())])
def test_operators_hold_what_they_make_of_what_they_are_given_epoch_by_epoch(state: str, operator: Ledger) -> None:
    numbers = {(state, number): subtasks(9, number // 4) for number in range(EPOCHS)}
    recount = Recount(WORKLOAD, numbers=numbers)
    held: list[list[Any]] = []
    most = 0
    for number, batch in enumerate(BATCHES):
        now = numbers[state, number]
        given = held
        if held and len(held) != now:
            flat = [element for of in held for element in of]
            given = [
                flat if state == ROSTERS else [of for at, of in enumerate(flat) if at % now == index]
                for index in range(now)
            ]
        rows = list(enumerate(batch.of(state)))
        held = [
            list(
                operator.process(
                    None,
                    given[index] if given else [],
                    iter([OperatorRow(n, of.fields[0]) for n, of in reversed(rows) if int(of.key) % now == index]),
                )
            )
            for index in range(now)
        ]
        most = max(most, now)
        expected = [operator.result(of) for of in held] + [operator.result([])] * (most - now)
        answers = [recount.answer(state, key, number + 1) for key in names(state)]
        assert [dict(zip(RESULT, row, strict=True)) for row in answers if row] == expected
        assert answers[most:] == [None] * (MOST_SUBTASKS - most)


def test_no_amount_is_lost_or_counted_twice_where_the_number_of_subtasks_changes() -> None:
    numbers = {(LEDGERS, number): subtasks(1, number) for number in range(EPOCHS)}
    recount, amounts = Recount(WORKLOAD, numbers=numbers), 0
    for number, batch in enumerate(BATCHES):
        amounts += sum(change.fields[0] for change in batch.of(LEDGERS))
        answers = [recount.answer(LEDGERS, key, number + 1) for key in names(LEDGERS)]
        assert sum(row[1] for row in answers if row) == amounts  # type: ignore[misc]


def test_each_start_of_a_driver_has_another_number_of_subtasks() -> None:
    drawn = [[subtasks(seed, start) for start in range(10)] for seed in range(20)]
    assert all(one != other for of in drawn for one, other in pairwise(of))
    assert {number for of in drawn for number in of} == set(range(1, MOST_SUBTASKS + 1))
    assert {of[0] for of in drawn} == set(range(1, MOST_SUBTASKS + 1))


def test_an_entry_with_a_lifetime_is_what_came_since_it_expired_last() -> None:
    expired = 0
    for key, map_key in ((key, map_key) for key in names() for map_key in range(MAP_KEYS)):
        total, ends = 0, 0
        for number, batch in enumerate(BATCHES):
            if total and ends <= watermark_ms(number):
                total, expired = 0, expired + 1
            changes = [change for change in batch.of(LEASES) if change.key == key]
            of_entry = [change for change in changes if change.map_key == map_key]
            if any(change.op is Op.CLEAR for change in changes) or Op.DELETE in {change.op for change in of_entry}:
                total = 0
            if amounts := [change.fields[0] for change in of_entry if change.fields]:
                total, ends = total + sum(amounts), watermark_ms(number + 1) + LEASE_MS
            answer = RECOUNT.answer(LEASES, EntryOf(key, map_key), number + 1)
            assert (answer[0] if answer else 0) == total
    assert expired > 100


def test_a_value_with_a_lifetime_is_the_last_row_until_it_expires() -> None:
    expired = 0
    for key in names():
        row: tuple[int, ...] | None = None
        ends = 0
        for number, batch in enumerate(BATCHES):
            if row and ends <= watermark_ms(number):
                row, expired = None, expired + 1
            for change in batch.of(LOANS):
                if change.key == key:
                    row, ends = change.fields or None, watermark_ms(number + 1) + LEASE_MS
            assert RECOUNT.answer(LOANS, key, number + 1) == row
    assert expired > 20


def test_an_alert_has_the_notice_that_its_batch_has_read() -> None:
    pins = {number: number // 3 * 2 for number in range(EPOCHS)}
    recount, noticed = Recount(WORKLOAD, pins), set[bool]()
    for number, batch in enumerate(BATCHES):
        for change in batch.of(ALERTS):
            notice = (recount.answer(NOTICES, change.key, pins[number]) or (0, 0))[1]
            expected = (*change.fields, notice) if change.fields else None
            assert recount.answer(ALERTS, change.key, number + 1) == expected
            noticed.add(notice != 0)
    assert noticed == {True, False}


@pytest.mark.parametrize("state", [SPANS, TALLIES, STOPS])
def test_an_entry_is_what_came_since_it_was_deleted_or_its_key_cleared(state: str) -> None:
    held: dict[tuple[str, int], tuple[int, ...]] = {}
    for batch in BATCHES:
        changes = batch.of(state)
        cleared = {change.key for change in changes if change.op is Op.CLEAR}
        deleted = {(change.key, change.map_key) for change in changes if change.op is Op.DELETE}
        held = {entry: row for entry, row in held.items() if entry[0] not in cleared and entry not in deleted}
        for key, _, map_key, fields in ((c.key, c.op, c.map_key, c.fields) for c in changes if c.fields):
            assert map_key is not None
            before = held.get((key, map_key))
            if state != TALLIES or before is None:
                held[key, map_key] = fields
            else:
                held[key, map_key] = (before[0] + fields[0], before[1] + 1, max(before[2], fields[2]))
    answers = {
        (key, map_key): RECOUNT.answer(state, EntryOf(key, map_key), EPOCHS)
        for key in names()
        for map_key in range(MAP_KEYS)
    }
    assert {entry: row for entry, row in answers.items() if row is not None} == held


@pytest.mark.parametrize(("state", "most"), [(TRAILS, MAX_LENGTH), (ROUTES, 1000)])
def test_a_list_has_the_last_elements_at_positions_that_grow(state: str, most: int) -> None:
    for key in names():
        elements: list[tuple[int, ...]] = []
        for batch in BATCHES:
            changes = [change for change in batch.of(state) if change.key == key]
            if any(change.op in (Op.CLEAR, Op.REPLACE) for change in changes):
                elements = []
            elements = (elements + [change.fields for change in changes if change.fields])[-most:]
        answer = RECOUNT.answer(state, ScanOf(key), EPOCHS)
        assert answer is not None
        assert [entry[1:] for entry in answer] == elements  # type: ignore[index]
        assert all(after[0] == before[0] + 1 for before, after in pairwise(answer))  # type: ignore[index]


def test_a_scan_has_what_is_within_its_bounds_in_its_order_up_to_its_limit() -> None:
    key = max(names(), key=lambda key: len(RECOUNT.answer(SPANS, ScanOf(key), EPOCHS) or ()))
    entries = RECOUNT.answer(SPANS, ScanOf(key), EPOCHS) or ()
    assert len(entries) > 4
    start, stop = entries[1][0], entries[3][0]  # type: ignore[index]
    assert RECOUNT.answer(SPANS, ScanOf(key, start, stop), EPOCHS) == entries[1:3]
    assert RECOUNT.answer(SPANS, ScanOf(key, start, descending=True, limit=2), EPOCHS) == entries[:-3:-1]
    assert RECOUNT.answer(SPANS, ScanOf(key), 0) == ()


def test_a_broadcast_state_is_scanned_whole() -> None:
    answer = RECOUNT.answer(NOTICES, ScanOf(""), EPOCHS)
    assert answer is not None
    assert answer == tuple(
        (key, *row) for key in sorted(names()) if (row := RECOUNT.answer(NOTICES, key, EPOCHS)) is not None
    )
    assert RECOUNT.answer(NOTICES, ScanOf("", limit=1), EPOCHS) == answer[:1]


@pytest.mark.parametrize("state", EXACT)
def test_the_epochs_of_an_answer_are_those_after_which_it_is_right(state: str) -> None:
    asked = whole(state, names(state)[-1])
    answer = RECOUNT.answer(state, asked, 30)
    found = {epoch for first, last in RECOUNT.epochs(state, asked, answer, EPOCHS) for epoch in range(first, last + 1)}
    assert found == {epoch for epoch in range(EPOCHS + 1) if RECOUNT.answer(state, asked, epoch) == answer}


def test_batches_of_every_size_and_all_that_a_row_can_do_come_up() -> None:
    for state in ALL:
        sizes = {len({change.key for change in batch.of(state)}) for batch in BATCHES}
        assert sizes == {1, 2, 3} if state in OPERATORS else sizes >= {0, 1}
    assert any(len(batch.of(VALUES)) == KEYS for batch in BATCHES)
    done = {state: {change.op for batch in BATCHES for change in batch.of(state)} for state in ALL}
    assert done == {
        VALUES: {Op.PUT, Op.DELETE},
        SUMS: {Op.PUT},
        TALLIES: {Op.PUT, Op.DELETE, Op.CLEAR},
        SPANS: {Op.PUT, Op.DELETE, Op.CLEAR},
        TRAILS: {Op.APPEND, Op.REPLACE, Op.CLEAR},
        CHAINS: {Op.PUT, Op.DELETE},
        NOTICES: {Op.PUT, Op.DELETE},
        LEASES: {Op.PUT, Op.DELETE, Op.CLEAR},
        LOANS: {Op.PUT, Op.DELETE},
        GUESTS: {Op.PUT, Op.DELETE},
        STREAKS: {Op.PUT, Op.DELETE},
        LEDGERS: {Op.PUT},
        ROSTERS: {Op.PUT},
        ALERTS: {Op.PUT, Op.DELETE},
        PLACES: {Op.PUT, Op.DELETE},
        ROUTES: {Op.APPEND, Op.REPLACE, Op.CLEAR},
        STOPS: {Op.PUT, Op.DELETE, Op.CLEAR},
    }


def test_readers_ask_everything_that_a_state_can_be_asked() -> None:
    draw = random.Random(1)
    asked: dict[str, list[Question]] = {state: [q for _ in range(100) for q in drawn(draw, state)] for state in ALL}
    for state, shape in SHAPES.items():
        scans = [question for question in asked[state] if isinstance(question, ScanOf)]
        assert bool(scans) is (shape.entries or shape.scans_keys)
        assert (len(scans) < len(asked[state])) is shape.gets
        if scans:
            assert {scan.descending for scan in scans} == {True, False}
            assert {scan.start is None for scan in scans} == {scan.stop is None for scan in scans} == {True, False}
            assert {bool(scan.limit) for scan in scans} == {True, False}

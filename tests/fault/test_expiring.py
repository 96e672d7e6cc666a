"""Of entries that expire by processing time, the checker takes any answer near the end of their life, and else one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from keyhole.protocol.failpoints import Step
from tests.fault.checker import check
from tests.fault.expiring import SKEW_MS, Clock, Expiring
from tests.fault.history import CHANGELOG, OWNER, STANDBY, Asked, Claim, EpochStep, Held, History, Read
from tests.fault.recount import Shown, by_key
from tests.fault.workload import BY_CLOCK, GUESTS, STAY_MS, STREAKS, Workload, names

# The harness itself, without processes.
pytestmark = pytest.mark.core

SEED = 9
EPOCHS = 63
WALL_MS = 1_700_000_000_000
WORKLOAD = Workload(SEED)
BATCHES = [WORKLOAD.batch(number) for number in range(EPOCHS + 1)]
STAY = STAY_MS / 1000
SKEW = SKEW_MS / 1000


def begins(epoch: int) -> float:
    """None when an entry expires; every fifth after a pause, in which everything does."""
    return 100.0 + 0.7 * epoch + epoch // 5 * 2 * STAY


def step(step: Step, epoch: int, at: float, late_ms: int = 0) -> EpochStep:
    return EpochStep(at, int(WALL_MS + 1000 * at) + late_ms, step, epoch, 77, (GUESTS, STREAKS))


STEPS = [
    step(of, epoch, begins(epoch) + after)
    for epoch in range(1, EPOCHS + 1)
    for of, after in ((Step.DRIVER_BEFORE_STAGE, 0), (Step.DRIVER_BEFORE_COMMIT, 0.02), (Step.DRIVER_COMPLETE, 0.2))
]


def expiring(steps: Sequence[EpochStep] = STEPS) -> Expiring:
    return Expiring(WORKLOAD, dict.fromkeys(BY_CLOCK, Clock(steps)))


def plainly(state: str, epoch: int, at: float) -> dict[str, Shown]:
    """What each key has at a time, where that is not near any entry's end."""
    held: dict[str, tuple[tuple[int, ...], float]] = {}
    for of in range(1, epoch + 1):
        held = {key: entry for key, entry in held.items() if entry[1] > begins(of)}
        for key, changes in by_key(BATCHES[of - 1].of(state)):
            before, _ = held.pop(key, (None, 0.0))
            rows = [change.fields for change in changes]
            if () in rows:
                continue
            if state == STREAKS:
                rows += [before] if before else []
                rows = [(sum(row[0] for row in rows), sum(row[1] for row in rows), max(row[2] for row in rows))]
            held[key] = rows[-1], begins(of) + STAY
    return {key: held[key][0] if key in held and held[key][1] > at else None for key in names()}


@pytest.mark.parametrize("state", BY_CLOCK)
def test_an_entry_is_told_until_it_expires_and_what_comes_later_begins_anew(state: str) -> None:
    answers, epochs = expiring(), set()
    for epoch in range(EPOCHS + 1):
        for at in (begins(epoch) + 0.5, begins(epoch) + STAY - 0.5, begins(epoch) + STAY + 0.5):
            rows = plainly(state, epoch, at)
            epochs |= {epoch for row in rows.values() if row}
            assert {key: answers.answers(state, key, epoch, at, at) for key in names()} == {
                key: {row} for key, row in rows.items()
            }
    assert len(epochs) > EPOCHS / 2


# A key that is written after a pause, and by no epoch of the second after.
GUEST, EPOCH = next(
    (key, epoch)
    for epoch in range(5, EPOCHS, 5)
    for key, changes in by_key(BATCHES[epoch - 1].of(GUESTS))
    if changes[-1].fields and key not in dict(by_key(BATCHES[epoch].of(GUESTS)))
)
ROW = plainly(GUESTS, EPOCH, begins(EPOCH))[GUEST]


@pytest.mark.parametrize(
    ("after", "lasts", "expected"),
    [
        (STAY - 2 * SKEW, 0, {ROW}),
        (STAY - 2 * SKEW, 3 * SKEW, {ROW, None}),
        (STAY - SKEW / 2, 0, {ROW, None}),
        (STAY + SKEW / 2, 0, {ROW, None}),
        (STAY + 2 * SKEW, 0, {None}),
    ],
)
def test_near_its_end_either_answer_is_right(after: float, lasts: float, expected: set[Shown]) -> None:
    at = begins(EPOCH) + after
    assert expiring().answers(GUESTS, GUEST, EPOCH, at, at + lasts) == expected


def test_of_an_epoch_that_was_run_again_either_run_may_have_written_it() -> None:
    answers = expiring([*STEPS, step(Step.DRIVER_BEFORE_STAGE, EPOCH, begins(EPOCH) + 1)])
    for after, expected in ((STAY - 0.5, {ROW}), (STAY + 0.5, {ROW, None}), (STAY + 1.5, {None})):
        at = begins(EPOCH) + after
        assert answers.answers(GUESTS, GUEST, EPOCH, at, at) == expected


def test_an_epoch_is_committed_once_its_rows_are_staged_and_no_later_round_counts() -> None:
    before = [of for of in STEPS if of.epoch != EPOCH]
    begun = step(Step.DRIVER_BEFORE_STAGE, EPOCH, begins(EPOCH))
    rounds = [step(Step.DRIVER_BEFORE_COMMIT, EPOCH, begins(EPOCH) + after) for after in (1, 3)]
    answers = expiring([*before, begun, *rounds])
    for after, expected in ((STAY - 0.5, {ROW}), (STAY + 0.5, {ROW, None}), (STAY + 1.5, {None})):
        at = begins(EPOCH) + after
        assert answers.answers(GUESTS, GUEST, EPOCH, at, at) == expected


def test_a_process_that_is_held_up_between_its_two_clocks_makes_no_time_uncertain() -> None:
    answers = expiring([step(Step.DRIVER_COMPLETE, 1, begins(1), late_ms=5000), *STEPS])
    at = begins(EPOCH) + STAY - 0.5
    assert answers.answers(GUESTS, GUEST, EPOCH, at, at) == {ROW}


def read_of(row: Shown, after: float, role: str = OWNER, epoch: int = EPOCH) -> Read:
    began = begins(EPOCH) + after
    claim = Claim("a", role, epoch, 1, 1, unconfirmed=False, as_of_ms=0, lag_epochs=0)
    return Read("r", began, began + 0.01, GUESTS, Asked(0), (GUEST,), (row,), (claim,))


def held(where: str, role: str, after: float, at: float) -> list[Held]:
    """At the end: what there is at a time, told after the last epoch."""
    asked = begins(EPOCHS) + after
    return [
        Held(where, role, state, EPOCHS, plainly(state, EPOCHS, at), asked, asked + 0.01) for state in (GUESTS, STREAKS)
    ]


def history() -> History:
    """A right one, whose copies are asked right after the last epoch."""
    copies = [
        copy
        for where, role in (("a", OWNER), ("b", STANDBY), (CHANGELOG, CHANGELOG))
        for copy in held(where, role, 0.5, begins(EPOCHS) + 0.5)
    ]
    reads = [
        read_of(ROW, 0.5),
        read_of(None, STAY + 0.5),
        read_of(ROW, 0.6, STANDBY),
        read_of(None, STAY + 0.5, STANDBY),
    ]
    return History(SEED, EPOCHS, (GUESTS, STREAKS), [*STEPS, *reads, *copies])


def test_a_right_history_is_right() -> None:
    verdict = check(history())
    assert verdict.right, verdict.violations


ROWS, END = "every_answer_has_the_row_of_its_epoch", "the_end_equals_the_recount"


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        (ROWS, [read_of(ROW, STAY + 0.5, STANDBY)]),
        (ROWS, [read_of(None, 0.5)]),
        (ROWS, [read_of((1, 2), STAY)]),
        (END, held("c", STANDBY, STAY + 0.5, begins(EPOCHS))),
        (END, held("c", STANDBY, 0.5, begins(EPOCHS) + STAY + 0.5)),
        ("no_owner_takes_back_what_was_told", [read_of(ROW, 0.7), read_of(None, 0.8, epoch=EPOCH - 1)]),
    ],
    ids=["expired", "gone too soon", "never written", "expired at the end", "gone at the end", "taken back"],
)
def test_a_history_is_wrong_that_has_what_is(rule: str, more: list[Read | Held]) -> None:
    doctored = history()
    doctored.events += more
    assert rule in check(doctored).violated


def test_an_entry_that_has_expired_is_not_taken_back() -> None:
    gone = history()
    gone.events.append(read_of(None, STAY + 0.6, epoch=EPOCH - 1))
    assert check(gone).violated == {}

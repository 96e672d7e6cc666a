"""What readers may notice while a cluster is taken apart (tests/e2e): the limits, on what readers have seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole import errors
from tests.e2e.limits import ALONE, API_SERVER, BOUNDS, DRIVER, EXECUTOR, SINCE, STARTING, surplus
from tests.e2e.reads import Gaps, gaps

AWAY = f"{DRIVER}, {ALONE[0]}"
REASONS = st.sampled_from(["SERVER_LOST", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN_STATE"])


def seen(errors: dict[str, int], longest_seconds: float = 0.3, epoch_seconds: float = 3.0) -> Gaps:
    said = {reason: f"why it was {reason}" for reason in errors}
    return Gaps(100, longest_seconds, errors, said, (), {"owner": 100}, epoch_seconds)


@pytest.mark.parametrize("step", [EXECUTOR, DRIVER, "proxy deleted", "a step that nobody has named", SINCE])
@given(reason=REASONS, count=st.integers(1, 200))
def test_where_another_one_holds_the_same_no_read_may_fail_whatever_with(step: str, reason: str, count: int) -> None:
    assert surplus(step, seen({})) == ()
    (problem,) = surplus(step, seen({reason: count}, longest_seconds=4.0))
    assert problem.startswith(f"{step}: {count} reads failed with {reason}, and none may")
    assert f"why it was {reason}" in problem


@pytest.mark.parametrize(("failed", "gap_seconds"), [(21, 37.434), (25, 45.518), (1, 0.0), (0, 400.0)])
def test_while_nobody_holds_the_state_a_read_may_fail_for_each_timeout_of_the_gap(
    failed: int, gap_seconds: float
) -> None:
    assert surplus(AWAY, seen({"DEADLINE_EXCEEDED": failed}, gap_seconds)) == ()


def test_reads_that_fail_at_once_in_place_of_waiting_are_too_many() -> None:
    (problem,) = surplus(AWAY, seen({"DEADLINE_EXCEEDED": 101}, 37.4))
    assert "101 reads failed (DEADLINE_EXCEEDED) in a gap of 37.4 s, and at most 25 may, each after 1.5 s" in problem


def test_nothing_else_may_come_of_a_state_that_nobody_holds() -> None:
    (problem,) = surplus(AWAY, seen({"DEADLINE_EXCEEDED": 3, "SERVER_LOST": 1}, 37.4))
    assert problem.startswith(f"{AWAY}: 1 reads failed with SERVER_LOST, and none may")


def test_before_the_first_answer_any_number_may_find_nobody_and_none_may_fail_otherwise() -> None:
    early = {"SERVER_LOST": 101, "UNKNOWN_APPLICATION": 694, "UNKNOWN_STATE": 133}
    assert surplus(STARTING, seen(early)) == ()
    (problem,) = surplus(STARTING, seen(early | {"UNAUTHENTICATED": 1}))
    assert "1 reads failed with UNAUTHENTICATED" in problem


def test_each_bound_names_reasons_that_there_are_and_says_why() -> None:
    known = {of.reason for of in vars(errors).values() if isinstance(of, type) and hasattr(of, "reason")}
    for step, bound in BOUNDS.items():
        assert bound.reasons <= known, step
        assert bound.why


def test_what_a_reader_has_printed_is_counted_by_the_step_that_it_was_in() -> None:
    lines = [
        {"at": 1.0, "seconds": 2.0, "error": "SERVER_LOST", "why": "early"},
        {"at": 3.0, "seconds": 0.1, "found": True, "epoch": 1, "role": "owner"},
        {"at": 4.0, "seconds": 2.0, "error": "SERVER_LOST", "why": "late"},
        {"at": 6.5, "seconds": 0.1, "found": True, "epoch": 2, "role": "owner"},
    ]
    assert surplus(STARTING, gaps(lines, 0, 3.0)) == ()
    (problem,) = surplus(SINCE, gaps(lines, 3.0, 7.0))
    assert problem.endswith("late")


def test_a_longer_gap_than_a_step_may_have_is_too_long() -> None:
    (problem,) = surplus(EXECUTOR, seen({}, longest_seconds=5.1))
    assert problem == f"{EXECUTOR}: 5.1 s without an answer, and at most 5 s may pass"
    assert surplus(EXECUTOR, seen({}, longest_seconds=5.0)) == ()
    assert surplus(SINCE, seen({}, longest_seconds=600.0, epoch_seconds=600.0)) == ()


@pytest.mark.parametrize(("step", "most"), [(API_SERVER, 60), ("proxy deleted", 120), (EXECUTOR, 240), (DRIVER, 420)])
def test_each_step_says_how_long_there_may_be_no_new_epoch(step: str, most: int) -> None:
    assert surplus(step, seen({}, epoch_seconds=float(most))) == ()
    (problem,) = surplus(step, seen({}, epoch_seconds=most + 0.5))
    assert problem == f"{step}: {most + 0.5} s without a new epoch, and at most {most} s may pass"


def test_the_time_without_a_new_epoch_is_between_the_first_sights_of_newer_ones() -> None:
    sights = [(0.0, 7), (4.0, 8), (5.0, 8), (6.0, 7), (13.0, 9), (14.0, 9)]
    lines = [{"at": at, "seconds": 0.5, "found": True, "epoch": epoch, "role": "owner"} for at, epoch in sights]
    assert gaps(lines, 0.0, 20.0).epoch_seconds == 9.0
    # What came after the last one counts too, and what was before the first one.
    assert gaps(lines, 0.0, 30.0).epoch_seconds == 16.5
    assert gaps([], 0.0, 30.0).epoch_seconds == 30.0

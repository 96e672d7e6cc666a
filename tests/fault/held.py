"""That the rules hold, whatever the schedule of faults: what the tests of all seeds assert."""

from __future__ import annotations

from pathlib import Path

from tests.fault.availability import LEAST_ANSWERED
from tests.fault.cluster import Machine, Plan
from tests.fault.direct_readers import DIRECT
from tests.fault.episode import run_episode
from tests.fault.history import History, Read
from tests.fault.summary import Summary, selected

SCHEDULED_SECONDS = 75.0
"""Enough for all kinds of faults, by the seeds that the tests have; `python -m tests.fault` goes on for longer."""


_LEAST_ANSWERS = 1000
"""Under which a history says little. On a slow machine readers go on until there are as many."""


def assert_rules_hold(plan: Plan, directory: Path, machine: Machine) -> None:
    """Under the schedule of faults that the plan's seed gives."""
    history = run_episode(plan, None, directory, machine, _has_answers)
    assert _has_answers(history)
    summary = Summary()
    summary.add(history, plan.seconds)
    print(summary.last())
    assert summary.violations == []
    completed, wanted = history.epochs_under_faults, plan.epochs_under_faults
    assert completed >= wanted, (
        f"{completed} epochs were completed under faults: an episode is evidence from {wanted} on"
    )
    assert summary.faults["lose_executor"] > 0 or not plan.executors
    assert summary.answers > _LEAST_ANSWERS
    assert summary.selected > 0
    assert summary.availability["harmless"].fraction > LEAST_ANSWERED


def _has_answers(history: History) -> bool:
    reads = [event for event in history.events if isinstance(event, Read)]
    directly = any(read.reader == DIRECT for read in reads)
    return sum(len(read.keys) for read in reads) > _LEAST_ANSWERS and selected(history) > 0 and directly

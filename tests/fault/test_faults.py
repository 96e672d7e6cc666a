"""Ten minutes of faults with fixed seeds, and the rules that hold all the same. For hours: `python -m tests.fault`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.availability import availability
from tests.fault.checker import check
from tests.fault.cluster import Machine, Plan
from tests.fault.episode import run_episode
from tests.fault.summary import Summary
from tests.fault.workload import STATES

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

# Of reads that may be answered by a standby, while one fault leaves a copy of every key group within reach.
LEAST_ANSWERED = 0.9


@pytest.mark.parametrize(("seed", "spark", "replicas"), [(1, False, 1), (2, False, 0), (3, True, 0)])
def test_under_any_schedule_of_faults_nothing_is_lost_nothing_twice_and_no_answer_is_wrong(
    seed: int, spark: bool, replicas: int, tmp_path: Path, machine: Machine
) -> None:
    plan = Plan(seed, 150.0, tuple(STATES), spark=spark, replicas=replicas, staged_bytes=2000 * (seed % 2))
    history = run_episode(plan, None, tmp_path, machine)
    summary = Summary()
    summary.add(history, plan.seconds)
    print(summary.last())
    verdict = check(history)
    assert verdict.violations == []
    assert verdict.epochs > (3 if spark else 20)
    assert verdict.answers > 1000
    assert availability(history)["harmless"].fraction > LEAST_ANSWERED

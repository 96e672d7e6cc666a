"""Minutes of faults with fixed seeds, and the rules that hold all the same. For hours: `python -m tests.fault`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.availability import LEAST_ANSWERED, availability
from tests.fault.checker import check
from tests.fault.cluster import Machine, Plan
from tests.fault.episode import run_episode
from tests.fault.summary import Summary
from tests.fault.workload import DRAWN, SPARK_STATES

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1500)]

_THOROUGH = pytest.mark.thorough("seeds 1 and 4 run always")


@pytest.mark.parametrize(
    ("seed", "states", "spark", "executors", "replicas"),
    [
        (1, tuple(DRAWN), False, 0, 1),
        pytest.param(2, tuple(DRAWN), False, 0, 0, marks=_THOROUGH),
        pytest.param(3, SPARK_STATES[0], True, 0, 0, marks=_THOROUGH),
        (4, SPARK_STATES[1], True, 2, 0),
    ],
    ids=["1", "2", "3-spark", "4-spark-executors"],
)
def test_under_any_schedule_of_faults_nothing_is_lost_nothing_twice_and_no_answer_is_wrong(
    seed: int,
    states: tuple[str, ...],
    spark: bool,
    executors: int,
    replicas: int,
    tmp_path: Path,
    machine: Machine,
) -> None:
    plan = Plan(
        seed,
        150.0,
        states,
        spark=spark,
        executors=executors,
        replicas=replicas,
        staged_bytes=2000 * (seed % 2),
    )
    history = run_episode(plan, None, tmp_path, machine)
    summary = Summary()
    summary.add(history, plan.seconds)
    print(summary.last())
    verdict = check(history)
    assert verdict.violations == []
    # Drivers and executors that are killed take a busy machine's time to come again.
    assert verdict.epochs > (20 if not spark else 2 if not executors else 0)
    assert summary.faults["lose_executor"] > 0 or not executors
    assert verdict.answers > 1000
    assert availability(history)["harmless"].fraction > LEAST_ANSWERED

"""Minutes of faults with fixed seeds, and the rules that hold all the same. For hours: `python -m tests.fault`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.cluster import Machine, Plan
from tests.fault.held import SCHEDULED_SECONDS, assert_rules_hold
from tests.fault.workload import BY_CLOCK, DRAWN

pytestmark = pytest.mark.timeout(1500)


# Seeds whose schedules have all kinds of faults. Clocks jump in the second: they can't where entries expire by them.
@pytest.mark.parametrize(
    ("seed", "replicas", "states"), [(5, 1, (*DRAWN, *BY_CLOCK)), (2, 0, tuple(DRAWN))], ids=["5", "2-clocks-jump"]
)
def test_under_any_schedule_of_faults_nothing_is_lost_nothing_twice_and_no_answer_is_wrong(
    seed: int, replicas: int, states: tuple[str, ...], tmp_path: Path, machine: Machine
) -> None:
    plan = Plan(
        seed,
        SCHEDULED_SECONDS,
        states,
        replicas=replicas,
        staged_bytes=2000 * (seed % 2),
        epochs_under_faults=20,
    )
    assert_rules_hold(plan, tmp_path, machine)

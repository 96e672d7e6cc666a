"""A minute of faults with a fixed seed, and the rules that hold all the same. For hours: `python -m tests.fault`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.cluster import Machine, Plan
from tests.fault.held import SCHEDULED_SECONDS, assert_rules_hold
from tests.fault.workload import BY_CLOCK, DRAWN

pytestmark = pytest.mark.timeout(1500)

# Its schedule has all kinds of faults, but for clocks that jump: they can't where entries expire by them.
SEED = 1681


def test_under_any_schedule_of_faults_nothing_is_lost_nothing_twice_and_no_answer_is_wrong(
    tmp_path: Path, machine: Machine
) -> None:
    plan = Plan(
        SEED,
        SCHEDULED_SECONDS,
        (*DRAWN, *BY_CLOCK),
        replicas=1,
        reader_pause_seconds=0.3,
        hedge_quantile=0.9,
        staged_bytes=2000,
        epochs_under_faults=20,
    )
    assert_rules_hold(plan, tmp_path, machine)

"""Minutes of faults with fixed seeds, and the rules that hold all the same. For hours: `python -m tests.fault`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.cluster import Machine, Plan
from tests.fault.held import SCHEDULED_SECONDS, assert_rules_hold
from tests.fault.workload import DRAWN

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(("seed", "replicas"), [(1, 1), (2, 0)], ids=["1", "2"])
def test_under_any_schedule_of_faults_nothing_is_lost_nothing_twice_and_no_answer_is_wrong(
    seed: int, replicas: int, tmp_path: Path, machine: Machine
) -> None:
    plan = Plan(seed, SCHEDULED_SECONDS, tuple(DRAWN), replicas=replicas, staged_bytes=2000 * (seed % 2))
    assert_rules_hold(plan, tmp_path, machine, least_epochs=20)

"""The same as test_faults, with a driver and executors of Spark's that are killed, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.cluster import Machine, Plan
from tests.fault.held import SCHEDULED_SECONDS, assert_rules_hold
from tests.fault.workload import LOANS, SPARK_STATES

pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize(
    ("seed", "states", "executors"),
    # Seeds whose schedules have all kinds of faults that a driver with Spark can be under; of servers that join and of
    # stores that are lost one of the two each. `loans` are here as clocks jump.
    [(1267, (*SPARK_STATES[0], LOANS), 0), (1679, SPARK_STATES[1], 2)],
    ids=["1267", "1679-executors"],
)
def test_with_spark_nothing_is_lost_nothing_twice_and_no_answer_is_wrong(
    seed: int, states: tuple[str, ...], executors: int, tmp_path: Path, machine: Machine
) -> None:
    plan = Plan(
        seed,
        SCHEDULED_SECONDS,
        states,
        spark=True,
        executors=executors,
        replicas=0,
        # An epoch takes seconds, and as long as readers leave it the processor.
        reader_pause_seconds=0.8,
        hedge_quantile=0.9 if executors else 0.0,
        staged_bytes=0 if executors else 2000,
    )
    assert_rules_hold(plan, tmp_path, machine)

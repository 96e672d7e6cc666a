"""A job whose aggregator changes from run to run, on real servers, whatever goes wrong: it counts as one over all rows.

The epochs are those of real tasks: what spark.worker.aggregating stages of what the owners hold, each time anew.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.errors import KeyholeError
from tests.support.aggregating_tasks import NAMES, Tasks, found
from tests.support.examples import examples
from tests.support.simulation import DriverDiedError, Fault
from tests.support.versions import aggregating


class Plan(NamedTuple):
    """An epoch, in a run of some version of the class; `fault`: what goes wrong first, at which server and message."""

    grows: bool
    rows: dict[str, list[int]]
    fault: tuple[str, str, Fault] | None


FAULTS = (Fault.DRIVER_DIES, Fault.DRIVER_DIES_AFTER, Fault.ANSWER_IS_LOST, Fault.SERVER_DIES, Fault.SERVER_DIES_AFTER)
plans = st.builds(
    Plan,
    st.booleans(),
    st.dictionaries(st.sampled_from(NAMES), st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1),
    st.none()
    | st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["ReadBase", "Stage", "Commit"]),
        st.sampled_from([*FAULTS, Fault.SERVER_LOSES_ITS_STORE]),
    ),
)


@given(st.lists(plans, min_size=2, max_size=6))
@settings(max_examples=examples(80), deadline=None)
def test_a_job_whose_class_changes_counts_as_one_over_all_rows(epochs: list[Plan]) -> None:
    world = Tasks(aggregating(1), "ab", standbys=1)
    version, counted = 1, {name: list[int]() for name in NAMES}
    try:
        for number, plan in enumerate(epochs):
            if plan.fault is not None:
                server, method, fault = plan.fault
                world.faults_at[server, method] = fault
                with contextlib.suppress(DriverDiedError, KeyholeError):
                    world.run_epoch(number, plan.rows, strict=True)  # type: ignore[arg-type]  # see Tasks
                world.faults_at.clear()
                for of in world.servers.values():
                    of.start()
            # Only now: the epoch that this run runs again may have been begun by one of the earlier version.
            if plan.grows and version < 3:
                version += 1
                world.starts_anew(version)
            world.run_epoch(number, plan.rows, strict=True)  # type: ignore[arg-type]
            for name, numbers in plan.rows.items():
                counted[name] += numbers
        world.settle()
        expected = {name: (sum(numbers), len(numbers)) for name, numbers in counted.items() if numbers}
        assert found(world) == [expected, expected]
        assert {table.descriptor.class_version for of in world.servers.values() for table in of.tables.values()} == {
            version
        }
    finally:
        world.close()

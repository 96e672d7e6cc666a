"""How pytest-xdist's processes share out the tests: in which order, and which of them stay together.

A pytest plugin (tests/conftest.py loads it). Tests of one file share fixtures, so that a file is one process's, as with
`--dist=loadfile`. An episode of faults shares nothing with another one: each goes to whichever process is free. The
files of tests/processes that run Spark in the tests' own process are one process's, too, as each would start a Spark.

A process is given its next test, or file, while it still runs the one before: what is given away last decides how long
the others wait for the end. So what takes longest is begun first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

WITH_SPARK = (
    "tests/processes/test_bootstrapping.py",
    "tests/processes/test_broadcast_servers.py",
    "tests/processes/test_broadcast_updates.py",
    "tests/processes/test_kafka_away_in_real_time.py",
    "tests/processes/test_kafka_security.py",
    "tests/processes/test_lost_kafka.py",
    "tests/processes/test_schema_changes.py",
)
"""What runs Spark in the tests' own process, where files have stacks of their own."""

# Longest first, by what their names begin with; all others come after these, in the order of their names.
LONGEST = (
    "tests/fault/test_driver_faults.py::test_with_spark_nothing_is_lost_nothing_twice_and_no_answer_is_wrong[1679-executors]",
    "tests/fault/test_driver_faults.py::",
    "tests/fault/test_planted.py::test_a_planted_bug_of_each_kind_that_only_spark_has_is_caught",
    # Short: with three processes it waits behind the longest one, and nothing else does.
    "tests/fuzz/",
    "tests/fault/test_faults.py::",
    "tests/fault/test_planted.py::test_a_planted_bug_of_each_kind_is_caught",
    "tests/fault/",
    *WITH_SPARK,
    "tests/processes/test_kill_driver.py",
    "tests/processes/test_dashboards.py",
    "tests/processes/test_kill_server.py",
    "tests/processes/test_jobs.py",
    "tests/processes/test_killed_savepoints.py",
    "tests/processes/test_kafka_away_from_a_feed.py",
    "tests/processes/test_demo.py",
    "tests/processes/test_killed_moves_to_real_time.py",
    "tests/processes/test_console_pages.py",
    "tests/processes/test_checkpoint_forks.py",
    "tests/processes/test_standby_driver.py",
    "tests/processes/test_secrets.py",
    "tests/processes/test_local_cluster.py",
    "tests/processes/test_first_state.py",
    "tests/processes/test_up_and_down.py",
    "tests/processes/test_object_store.py",
    "tests/processes/test_metrics_of_a_run.py",
    "tests/processes/test_lag_of_updates.py",
    "tests/processes/test_feed_command.py",
    "tests/processes/test_replicas.py",
    "tests/processes/test_kafka_outages.py",
    "tests/processes/test_terminal_on_a_stack.py",
    "tests/processes/test_draining.py",
    "tests/processes/test_retired_queries.py",
    "tests/processes/test_following_kafka.py",
    "tests/processes/test_notebook.py",
    "tests/spark/test_temperature_monitor.py",
    "tests/spark/test_documented_kinds.py",
    "tests/spark/test_savepoints.py",
    "tests/spark/test_exposed_states.py",
    "tests/spark/test_broadcast_pins.py",
    "tests/spark/test_operator_state.py",
    "tests/spark/test_queryable_processor.py",
    "tests/spark/test_declaring.py",
    "tests/spark/test_job_failures.py",
    "tests/spark/test_state_kinds.py",
    "tests/spark/test_idle_queries.py",
    "tests/spark/test_fraud_detection.py",
    "tests/spark/test_whole_jobs.py",
    "tests/spark/test_vital_signs.py",
    "tests/spark/test_vital_signs_reads.py",
    "tests/contract/test_followers.py",
)

_ALONE = ("tests/fault/", "tests/fuzz/")

# Of two cores, three processes left a third idle in the tiers core, smoke and spark, and two fifths in processes.
_MORE_WORKERS = {"core": 2, "smoke": 2, "spark": 2, "processes": 3}


def place(nodeid: str) -> int:
    """Where a test stands among those of its tier."""
    return next((number for number, begins in enumerate(LONGEST) if nodeid.startswith(begins)), len(LONGEST))


def unit(nodeid: str) -> str:
    """What is given to a process together: those tests have it in common."""
    if nodeid.startswith(_ALONE):
        return nodeid
    file = nodeid.partition("::")[0]
    return "with Spark" if file in WITH_SPARK else file


def unshared(file: str, fixtures: Iterable[str]) -> str | None:
    """What is wrong with a file that runs Spark in the tests' own process, and isn't known to; None: nothing."""
    if "spark" not in fixtures or file in WITH_SPARK or not file.startswith("tests/processes/"):
        return None
    return f"{file} runs Spark in the tests' own process: add it to WITH_SPARK in tests/support/sharing.py"


class Sharing(LoadFileScheduling):
    """pytest-xdist's own, with units of ours."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def workers(tier: str, processors: int) -> int:
    """How many processes run a tier's tests: more than there are processors, by how long its tests wait for others.

    Args:
        tier: An expression of markers; it goes by the first.
    """
    return processors + _MORE_WORKERS.get(tier.partition(" ")[0], 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return workers(config.option.markexpr, processors)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing | None:
    """In place of `--dist=loadfile`; any other one is as asked for."""
    return Sharing(config, log) if config.getoption("dist") == "loadfile" else None

"""Which files of the tier processes begin first, and which share one process. A pytest plugin (tests/conftest.py loads
it).

pytest-xdist gives each of its processes whole files, in the order in which they were collected. One that takes minutes
and begins last has the other processes wait; and each process that runs one test with Spark in it starts a Spark.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support.tiers import TIERS, tier_of

_FOLDER = "tests/processes/"

# What takes a minute or more, longest first.
_LONG = (
    "test_dashboards.py",
    "test_jobs.py",
    "test_bootstrapping.py",
    "test_kill_server.py",
    "test_kill_driver.py",
    "test_local_cluster.py",
    "test_killed_savepoints.py",
    "test_demo.py",
    "test_metrics_of_a_run.py",
    "test_draining.py",
    "test_replicas.py",
)

# What runs Spark in the tests' own process.
_WITH_SPARK = frozenset(
    (
        "test_bootstrapping.py",
        "test_broadcast_servers.py",
        "test_broadcast_updates.py",
        "test_kafka_security.py",
        "test_lost_kafka.py",
        "test_schema_changes.py",
    )
)


def turn_of(name: str) -> int:
    """When a file of the tier begins, by its name: the lower, the earlier."""
    if name in _LONG:
        return _LONG.index(name)
    # Beside the first of those that it shares a process with.
    return _LONG.index("test_bootstrapping.py") if name in _WITH_SPARK else len(_LONG)


def scope_of(nodeid: str) -> str:
    """What is given to one process as a whole."""
    file = nodeid.partition("::")[0]
    return f"{_FOLDER} with Spark" if _is_with_spark(file) else file


def _is_with_spark(file: str) -> bool:
    return file.startswith(_FOLDER) and file.removeprefix(_FOLDER) in _WITH_SPARK


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After tests.support.tiers has put the tiers in their order.

    Raises:
        pytest.UsageError: A file begins to use Spark in its own process, and isn't told here.
    """
    for item in items:
        file = item.nodeid.partition("::")[0]
        if tier_of(item) == "processes" and "spark" in getattr(item, "fixturenames", ()) and not _is_with_spark(file):
            raise pytest.UsageError(f"{file} runs Spark in its own process: add it to tests/support/turns.py")
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, int]:
    tier = tier_of(item)
    return -TIERS.index(tier), turn_of(item.path.name) if tier == "processes" else 0


class Turns(LoadFileScheduling):
    """Whole files, and some files together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """In place of `--dist=loadfile`."""
    return Turns(config, log) if config.getvalue("dist") == "loadfile" else None

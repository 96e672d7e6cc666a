"""What readers notice where nobody but the executors' own sidecars holds the state, by where these keep their stores.

Executors and their sidecars end with their driver: until the next ones have restored, nobody answers. That is measured
here, not bounded; what is told before and after is checked with every read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import installed
from tests.e2e.kube import await_
from tests.e2e.limits import ALONE, DRIVER, EXECUTOR
from tests.e2e.release import PATIENCE, STORE_CLASS, Platform
from tests.e2e.steps import disturbed, replaced

pytestmark = pytest.mark.timeout(1800)

# Spark asks for claims that only one pod may use, which folders of a node can't be.
_ONCE = r"jobs[0].sparkConf.spark\.kubernetes\.legacy\.useReadWriteOnceAccessMode"


@pytest.fixture(scope="module", params=["emptyDir", "persistentClaim"])
def alone(tag: str, request: pytest.FixtureRequest) -> Iterator[Platform]:
    """A release without replicas, whose executors keep their stores in a volume of this kind."""
    settings = {"replica.enabled": "false"}
    store = "jobDefaults.stateServer.store"
    if request.param == "persistentClaim":
        settings |= {f"{store}.volume": request.param, f"{store}.size": "1Gi"}
        settings |= {f"{store}.storageClassName": STORE_CLASS, _ONCE: "true"}
    with installed(tag, request.param.lower(), settings) as made:
        await_(lambda: len(made.space.ready("spark-executor")) == 2, PATIENCE, "two executors")
        yield made


def test_an_executor_pod_is_deleted(alone: Platform) -> None:
    disturbed(alone, f"{EXECUTOR}, {_kind(alone)}", *replaced(alone, "spark-executor", 2))


def test_the_driver_is_deleted(alone: Platform) -> None:
    delete, driver_again = replaced(alone, "spark-driver", 1)

    def whole() -> bool:
        return driver_again() and len(alone.space.ready("spark-executor")) == 2

    disturbed(alone, f"{DRIVER}, {_kind(alone)}", delete, whole)


def _kind(platform: Platform) -> str:
    return ALONE["jobDefaults.stateServer.store.volume" in platform.settings]

"""Faults that no deletion of a pod makes, on a release of their own: what readers and writers notice of each.

A state server dies while its executor lives; the API server answers nobody for two minutes; a node is drained.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.e2e import limits, node, report
from tests.e2e.conftest import installed
from tests.e2e.kube import CommandFailed, await_, run
from tests.e2e.release import PATIENCE, Platform
from tests.e2e.steps import disturbed

pytestmark = pytest.mark.timeout(1800)

AWAY_SECONDS = 120.0


@pytest.fixture(scope="module")
def disturbable(tag: str) -> Iterator[Platform]:
    """With two executors, two proxies and a replica."""
    with installed(tag, "faults", {}) as made:
        await_(lambda: len(made.space.ready("spark-executor")) == 2, PATIENCE, "two executors")
        await_(lambda: len(made.space.ready("client-proxy")) == 2, PATIENCE, "two proxies")
        yield made


def test_a_state_server_is_killed_and_its_executor_lives(disturbable: Platform) -> None:
    (victim, *_) = disturbable.space.pods("spark-executor")
    name, before = victim["metadata"]["name"], node.restarts(victim, "state-server")

    def again() -> bool:
        (pod,) = [each for each in disturbable.space.pods("spark-executor") if each["metadata"]["name"] == name]
        return node.restarts(pod, "state-server") > before and name in disturbable.space.ready("spark-executor")

    disturbed(disturbable, limits.SERVER, lambda: node.kill(victim, "state-server"), again)


def test_the_api_server_is_away_and_nobody_reads_or_writes_less(disturbable: Platform) -> None:
    pods = {component: disturbable.space.ready(component) for component in ("spark-driver", "client-proxy")}

    def away() -> None:
        with node.without_api_server():
            time.sleep(AWAY_SECONDS)

    def answers() -> bool:
        return all(disturbable.space.ready(component) == names for component, names in pods.items())

    disturbed(disturbable, limits.API_SERVER, away, answers)


def test_a_drained_node_takes_one_proxy_at_a_time(disturbable: Platform) -> None:
    (first, second) = disturbable.space.ready("client-proxy")
    (executor, *_) = disturbable.space.pods("spark-executor")
    name = executor["spec"]["nodeName"]

    def drain() -> None:
        # What `kubectl drain` does, pod by pod: with one node nothing that is evicted has another place.
        run("kubectl", "cordon", name)
        try:
            _evict(disturbable, first)
            with pytest.raises(CommandFailed, match="disruption budget"):
                _evict(disturbable, second)
            _evict(disturbable, executor["metadata"]["name"])
            await_(lambda: first not in disturbable.space.ready("client-proxy"), PATIENCE, "an evicted proxy's end")
            before = disturbable.newest()["epoch"]
            newest = await_(
                lambda: (line := disturbable.newest())["epoch"] > before and line, PATIENCE, "an epoch without a node"
            )
            report.note("the only node is drained", epochs=newest["epoch"] - before, server=newest["server"])
        finally:
            run("kubectl", "uncordon", name)

    def whole() -> bool:
        counts = (len(disturbable.space.ready("client-proxy")), len(disturbable.space.ready("spark-executor")))
        return counts == (2, 2)

    disturbed(disturbable, limits.DRAINED, drain, whole)


def _evict(platform: Platform, pod: str) -> None:
    """As a drain asks the API for it.

    Raises:
        CommandFailed: A budget refuses it.
    """
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{platform.space.name}/pods/{pod}/eviction"
    platform.space.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))

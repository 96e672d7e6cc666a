"""A changed value rolls the pods that it is about, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.chart import CHART, JOB, KAFKA, Object, one, pods, render, spark_conf

OTHER = JOB | {"name": "other"}
FEED = {"name": "totals", "state": "shop/totals", "topic": "orders", "key": ["customer"], "reduce": ["amount=sum"]}
BEFORE: dict[str, Any] = KAFKA | {
    "jobs": [JOB, OTHER],
    "feeds": [FEED, FEED | {"name": "b", "state": "shop/b"}],
    "replica": {"enabled": True},
    "metricsExporter": {"enabled": True},
}

DRIVER, OF_OTHER = "Deployment/keyhole-temperature-monitor-driver", "Deployment/keyhole-other-driver"
EXECUTOR, OF_OTHERS = (f"ConfigMap/keyhole-{job}-spark/executor-pod.yaml" for job in ("temperature-monitor", "other"))
PROXY, REPLICA, EXPORTER = (
    "Deployment/keyhole-client-proxy",
    "StatefulSet/keyhole-replica",
    "Deployment/keyhole-metrics-exporter",
)

CHANGES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a proxy's setting": ({"clientProxy.hopTimeoutSeconds": 0.2}, {PROXY}),
    "the number of proxies": ({"clientProxy.replicas": 4}, set()),
    "the proxies' image": ({"images.clientProxy.tag": "2"}, {PROXY}),
    "the size of the replicas": ({"replica.resources.limits.memory": "3Gi"}, {REPLICA}),
    "the number of replicas": ({"replica.replicas": 3}, set()),
    "the exporter's log level": ({"metricsExporter.logLevel": "DEBUG"}, {EXPORTER}),
    # Spark takes it as a driver starts.
    "the executors' number": ({"jobs": [JOB | {"executors": {"instances": 3}}, OTHER]}, {DRIVER}),
    "a setting of Spark's": ({"jobs": [JOB | {"sparkConf": {"spark.speculation": True}}, OTHER]}, {DRIVER}),
    "a sidecar's drain": ({"jobs": [JOB | {"stateServer": {"drainSeconds": 9}}, OTHER]}, {DRIVER, EXECUTOR}),
    "a job's setting": ({"jobs": [JOB | {"settings": JOB["settings"] | {"topic": "x"}}, OTHER]}, {DRIVER}),
    "the state servers' image": (
        {"images.stateServer.tag": "2"},
        {DRIVER, EXECUTOR, OF_OTHER, OF_OTHERS, REPLICA},
    ),
    "monitoring": ({"monitoring.dashboards.enabled": True}, set()),
    "network policies": ({"networkPolicy.enabled": True}, set()),
    "a job's source": (
        {"jobs": [JOB, OTHER | {"source": {"enabled": True, "settingsPrefix": "KEYHOLE_READINGS_"}}]},
        {"Deployment/keyhole-other-source"},
    ),
    "a feed's option": (
        {"feeds": [FEED | {"standbys": 1}, FEED | {"name": "b", "state": "shop/b"}]},
        {"Deployment/keyhole-totals-feed"},
    ),
    "a time-out of the test": ({"test.timeoutSeconds": 9}, {"Job/keyhole-test"}),
}


@pytest.mark.parametrize(("change", "rolled"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_rolls_what_it_is_about_and_nothing_else(change: dict[str, Any], rolled: set[str]) -> None:
    before = {of.of: of for of in pods(render(BEFORE))}
    after = {of.of: of for of in pods(render(BEFORE, change))}
    assert {of for of in before.keys() | after.keys() if before.get(of) != after.get(of)} == rolled


@pytest.mark.parametrize("enabled", [True, "true"])
def test_how_many_executors_there_are_at_first_rolls_nothing_where_spark_chooses_their_number(enabled: object) -> None:
    def with_first(number: int) -> list[Object]:
        chosen = {"sparkConf": {"spark.dynamicAllocation.enabled": enabled}, "executors": {"instances": number}}
        return render(KAFKA | {"jobs": [JOB | chosen]})

    before, after = with_first(2), with_first(3)
    assert list(pods(before)) == list(pods(after))
    assert spark_conf(after)["spark.executor.instances"] == "3", "the next driver begins with it"


def test_the_page_on_a_larger_volume_names_claims_sets_and_pods_that_there_are() -> None:
    page = (CHART.parents[1] / "docs" / "recovery.md").read_text()
    section = page.partition("\n## A volume is too small\n")[2].partition("\n## ")[0]
    claims = {"enabled": True, "replicas": 2, "store": {"volume": "persistentClaim", "size": "20Gi"}}
    made = one(render(KAFKA, {"stateServers": claims}), "StatefulSet", "keyhole-state-server")
    [template] = made["spec"]["volumeClaimTemplates"]
    assert set(re.findall(r"(?:patch|delete) pvc (\S+)", section)) == {
        f"{template['metadata']['name']}-keyhole-state-server-0"
    }
    assert set(re.findall(r"delete statefulset (\S+) --cascade=orphan", section)) == {made["metadata"]["name"]}
    assert set(re.findall(r"delete pod (\S+)", section)) == {"keyhole-state-server-0"}


def test_another_version_of_the_chart_alone_rolls_nothing() -> None:
    """Pods' templates have no label that tells the chart's version."""
    for of in pods(render(BEFORE)):
        assert not of.metadata["labels"].keys() & {"helm.sh/chart", "app.kubernetes.io/version"}

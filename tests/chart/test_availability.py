"""A rollout and a drained node take one pod of a component at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import JOB, KAFKA, Object, names, one, pod, pods, render

FEED = {"name": "totals", "state": "shop/totals", "topic": "orders", "key": ["customer"], "reduce": ["amount=sum"]}
ALL: dict[str, Any] = KAFKA | {
    "stateServers": {"enabled": True},
    "replica": {"enabled": True, "replicas": 2},
    "feeds": [FEED],
    "jobs": [
        JOB | {"driver": {"standby": True}, "source": {"enabled": True, "settingsPrefix": "KEYHOLE_READINGS_"}},
        JOB | {"name": "apart", "driver": {"standby": True}, "stateServer": {"sidecar": False}},
        JOB | {"name": "alone", "executors": {"instances": 1}},
    ],
}


def budget(objects: list[Object], name: str) -> Object:
    """The spec of the budget that is called so."""
    spec = one(objects, "PodDisruptionBudget", name)["spec"]
    assert isinstance(spec, dict)
    return spec


def test_a_drained_node_takes_one_at_a_time_of_all_that_there_are_several_of() -> None:
    objects = render(ALL)
    for name in ("client-proxy", "state-server", "replica", "temperature-monitor-driver", "apart-driver"):
        assert budget(objects, f"keyhole-{name}")["maxUnavailable"] == 1
    # Executors have no controller that says how many there should be. Those whose driver waits aren't ready.
    assert budget(objects, "keyhole-temperature-monitor-executor")["minAvailable"] == 1
    assert budget(objects, "keyhole-apart-executor")["minAvailable"] == 3
    made = names(objects, "PodDisruptionBudget")
    assert not {name for name in made if "alone" in name or "feed" in name or "exporter" in name or "kafka" in name}


def test_a_budget_is_of_pods_that_there_are_and_lets_go_which_serve_nothing_yet() -> None:
    objects = render(ALL)
    labels = [of.metadata["labels"] for of in pods(objects)]
    for name in names(objects, "PodDisruptionBudget"):
        spec = budget(objects, name)
        # Those with key groups are not ready while they restore some, and answer reads of the others.
        serves = not name.endswith(("proxy", "driver")) and name != "keyhole-apart-executor"
        assert spec["unhealthyPodEvictionPolicy"] == ("IfHealthyBudget" if serves else "AlwaysAllow"), name
        assert len([of for of in labels if spec["selector"]["matchLabels"].items() <= of.items()]) == 1, name


def test_executors_whose_number_spark_chooses_have_no_budget() -> None:
    job = JOB | {"executors": {"instances": 4}, "sparkConf": {"spark.dynamicAllocation.enabled": "true"}}
    assert "keyhole-temperature-monitor-executor" not in names(render(KAFKA | {"jobs": [job]}), "PodDisruptionBudget")


@pytest.mark.parametrize("of", ["driver", "executors"])
def test_a_job_may_have_no_budget_or_a_larger_one(of: str) -> None:
    ends = of.removesuffix("s")

    def made(**wanted: Any) -> dict[str, Object]:
        job = JOB | {"driver": {"standby": True}, "executors": {"instances": 4}}
        objects = render(KAFKA | {"jobs": [job | {of: job[of] | {"podDisruptionBudget": wanted}}]})
        return {
            name: budget(objects, name) for name in names(objects, "PodDisruptionBudget") if f"-{name}".endswith(ends)
        }

    assert not made(enabled=False)
    (spec,) = made(maxUnavailable=2).values()
    assert spec.get("maxUnavailable", spec.get("minAvailable")) == 2


def test_an_upgrade_doubles_nothing_and_takes_one_at_a_time() -> None:
    objects = render(ALL)
    for of in pods(objects):
        kind, _, name = of.of.partition("/")
        if kind == "Deployment":
            spec = one(objects, kind, name)["spec"]
            strategy = spec["strategy"]
            rolling = strategy.get("rollingUpdate")
            if spec["replicas"] == 1 and not name.endswith("-source"):
                assert strategy == {"type": "Recreate"}, name
            elif rolling:
                assert rolling["maxSurge"] + rolling["maxUnavailable"] == 1, name


def test_the_second_driver_is_replaced_once_the_first_one_can_lead() -> None:
    objects = render(ALL)
    driver = one(objects, "Deployment", "keyhole-temperature-monitor-driver")["spec"]
    assert driver["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert driver["minReadySeconds"] == 30
    assert "tcpSocket" in pod(objects, "Deployment/keyhole-temperature-monitor-driver").containers[0]["readinessProbe"]
    assert "minReadySeconds" not in one(objects, "Deployment", "keyhole-alone-driver")["spec"]

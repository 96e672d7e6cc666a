"""What holds for every pod of every scenario, executors among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyhole import config
from keyhole.config import load
from keyhole.demo.described_jobs import described, job_names
from tests.support.chart import KAFKA, SCENARIOS, Pod, environment, names, pods, render, scenario

PODS = [pytest.param(path, id=path.stem) for path in SCENARIOS]
_CONFIGS: list[Any] = [
    *(
        kind
        for kind in vars(config).values()
        if dataclasses.is_dataclass(kind) and isinstance(getattr(kind, "PREFIX", None), str)
    ),
    *(kind for name in job_names() for kind in described(name).kinds),
]


def _containers(path: Path) -> Iterator[tuple[Pod, dict[str, Any]]]:
    for of in pods(scenario(path)):
        for container in of.containers:
            yield of, container


@pytest.mark.parametrize("path", PODS)
def test_every_pod_is_allowed_by_the_restricted_standard(path: Path) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for of in pods(scenario(path)):
        assert not of.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        security = of.spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == 185
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        kinds = {kind for volume in of.spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "configMap", "secret", "persistentVolumeClaim", "projected", "ephemeral"}
        for container in of.containers:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
            assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.parametrize("path", PODS)
def test_no_pod_waits_five_seconds_for_an_answer_of_dns_that_is_lost(path: Path) -> None:
    for of in pods(scenario(path)):
        options = {option["name"]: option.get("value") for option in of.spec["dnsConfig"]["options"]}
        assert options == {"ndots": "2", "timeout": "1", "attempts": "3", "single-request-reopen": None}


def test_how_dns_is_asked_may_be_otherwise_or_kubernetes_own() -> None:
    def options(wanted: dict[str, str | None]) -> Any:
        (of,) = [of for of in pods(render(KAFKA, {"dnsOptions": wanted})) if of.of.endswith("-client-proxy")]
        return of.spec.get("dnsConfig")

    other = options({"ndots": "5", "single-request-reopen": None, "use-vc": ""})
    assert {"name": "use-vc"} in other["options"]
    assert {"name": "ndots", "value": "5"} in other["options"]
    assert "single-request-reopen" not in str(other)
    assert options(dict.fromkeys(("ndots", "timeout", "attempts", "single-request-reopen"))) is None


@pytest.mark.parametrize("path", PODS)
def test_every_container_can_write_to_tmp_alone_and_to_volumes(path: Path) -> None:
    for of, container in _containers(path):
        volumes = {volume["name"]: volume for volume in of.spec["volumes"]}
        mounted = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert "emptyDir" in volumes[mounted["/tmp"]["name"]]
        # A claim that Spark makes is no part of the template.
        assert {mount["name"] for mount in mounted.values()} <= volumes.keys() | {"store", "data"}


@pytest.mark.parametrize("path", PODS)
def test_no_service_becomes_environment_variables(path: Path) -> None:
    """KEYHOLE_CLIENT_PROXY_PORT=tcp://..., of a release `keyhole`, would be a setting, and a wrong one."""
    assert all(of.spec["enableServiceLinks"] is False for of in pods(scenario(path)))


@pytest.mark.parametrize("path", PODS)
def test_no_image_is_the_latest(path: Path) -> None:
    for of, container in _containers(path):
        if of.of.endswith("executor-pod.yaml") and container["name"] == "spark-executor":
            assert "image" not in container  # Spark adds it
            continue
        _, colon, tag = container["image"].rpartition(":")
        assert colon
        assert tag not in ("", "latest")


@pytest.mark.parametrize("path", PODS)
def test_every_container_asks_for_at_most_a_tenth_of_a_core_and_bounds_its_memory(path: Path) -> None:
    for of, container in _containers(path):
        if container["name"] == "spark-executor":
            continue  # by spark.executor.memory and spark.kubernetes.executor.request.cores
        resources = container["resources"]
        cpu = resources["requests"]["cpu"]
        assert cpu.endswith("m"), of.of
        assert int(cpu.removesuffix("m")) <= 100, of.of
        assert resources["limits"]["memory"]


@pytest.mark.parametrize("path", PODS)
def test_only_pods_that_ask_the_api_server_have_a_token(path: Path) -> None:
    objects = scenario(path)
    accounts = names(objects, "ServiceAccount")
    for of in pods(objects):
        account = of.spec.get("serviceAccountName")
        if account is None:
            assert of.spec["automountServiceAccountToken"] is False
        else:
            assert account in accounts
            component = of.metadata["labels"]["app.kubernetes.io/component"]
            assert component in ("client-proxy", "metrics-exporter", "spark-driver")


@pytest.mark.parametrize("path", PODS)
def test_every_setting_is_one_that_its_process_knows_and_takes(path: Path) -> None:
    """The processes refuse unknown names, so a wrong one here would be a pod that never starts."""
    checked = 0
    for of, container in _containers(path):
        settings = {name: value for name, value in environment(container).items() if name.startswith("KEYHOLE_")}
        for kind in _CONFIGS:
            if any(name.startswith(kind.PREFIX) for name in settings):
                try:
                    load(kind, settings, _CONFIGS)
                except Exception as error:  # noqa: BLE001 - told with the pod's name
                    pytest.fail(f"{of.of}: {error}")
                checked += 1
    assert checked


@pytest.mark.parametrize("path", PODS)
def test_every_mounted_or_named_object_is_made_or_given(path: Path) -> None:
    objects = scenario(path)
    made = {(of["kind"], of["metadata"]["name"]) for of in objects}
    given = {"checkpoints", "keyhole-policy"}
    for of in pods(objects):
        for volume in of.spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made or volume["configMap"]["name"] in given
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", claim) in made or claim in given


@pytest.mark.parametrize("path", PODS)
def test_every_service_leads_to_pods_and_their_ports(path: Path) -> None:
    objects = scenario(path)
    for service in (of for of in objects if of["kind"] == "Service"):
        selector = service["spec"]["selector"].items()
        found = [of for of in pods(objects) if selector <= of.metadata["labels"].items()]
        if not found:
            # The state servers of a release without any are somewhere else.
            assert service["metadata"]["name"] == "keyhole-state-servers"
            continue
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            for of in found:
                ports = [p for container in of.containers for p in container.get("ports", ())]
                assert target in {p["name"] for p in ports} | {p["containerPort"] for p in ports}

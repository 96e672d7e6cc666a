"""TLS, and who may do what: which process gets which certificate, and that plaintext is chosen where there is none."""

from __future__ import annotations

from typing import Any

from tests.support.chart import CHART, KAFKA, OPERATOR, Pod, environment, one, pod, pods, render, scenario

TLS = CHART / "ci" / "tls-values.yaml"
DRIVER = "Deployment/keyhole-temperature-monitor-driver"
EXECUTOR = "ConfigMap/keyhole-temperature-monitor-spark/executor-pod.yaml"
PROXY, REPLICA, EXPORTER = (
    "Deployment/keyhole-client-proxy",
    "StatefulSet/keyhole-replica",
    "Deployment/keyhole-metrics-exporter",
)


def certificate(of: Pod, container: dict[str, Any]) -> str:
    """The Secret that the container has at /etc/keyhole/tls."""
    [mounted] = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/etc/keyhole/tls"]
    [volume] = [volume for volume in of.spec["volumes"] if volume["name"] == mounted]
    # For the group of the process, and nobody else.
    assert volume["secret"]["defaultMode"] == 0o440
    name: str = volume["secret"]["secretName"]
    return name


def test_each_component_has_its_own_certificate_or_that_of_all() -> None:
    objects = scenario(TLS)
    assert certificate(pod(objects, PROXY), pod(objects, PROXY).containers[0]) == "keyhole-client-proxy-tls"
    assert certificate(pod(objects, REPLICA), pod(objects, REPLICA).containers[0]) == "keyhole-state-server-tls"
    assert certificate(pod(objects, EXPORTER), pod(objects, EXPORTER).containers[0]) == "keyhole-tls"
    assert certificate(pod(objects, DRIVER), pod(objects, DRIVER).containers[0]) == "temperature-monitor-tls"


def test_an_executor_s_tasks_have_the_job_s_certificate_and_its_sidecar_that_of_state_servers() -> None:
    executor = pod(scenario(TLS), EXECUTOR)
    [sidecar, tasks] = executor.containers
    assert certificate(executor, sidecar) == "keyhole-state-server-tls"
    assert certificate(executor, tasks) == "temperature-monitor-tls"


def test_all_speak_tls_and_ask_for_one_name_that_all_certificates_have() -> None:
    for of in pods(scenario(TLS)):
        for container in of.containers:
            settings = environment(container)
            assert not [name for name in settings if name.endswith("_PLAINTEXT")]
            named = {name: value for name, value in settings.items() if name.endswith("_TLS_SERVER_NAME")}
            assert set(named.values()) <= {"keyhole-client-proxy.data.svc.cluster.local"}
            assert bool(named) == any(name.endswith("_TLS") and name.startswith("KEYHOLE_") for name in settings)


def test_only_readers_may_come_without_a_certificate() -> None:
    without = {
        of.of
        for of in pods(scenario(TLS))
        for container in of.containers
        if any(name.endswith("_TLS_CLIENT_CERTIFICATES") for name in environment(container))
    }
    assert without == {PROXY}


def test_servers_and_proxies_have_the_same_policy_tokens_and_issuer() -> None:
    objects = scenario(TLS)
    shown = []
    for where, prefix in ((PROXY, "KEYHOLE_CLIENT_PROXY_"), (REPLICA, "KEYHOLE_STATE_SERVER_")):
        settings = environment(pod(objects, where).containers[0])
        names = ("POLICY", "TOKENS", "JWKS", "ISSUER", "AUDIENCE")
        shown.append({name: settings[f"{prefix}{name}"] for name in names})
        volumes = pod(objects, where).spec["volumes"]
        assert {"name": "policy", "configMap": {"name": "keyhole-policy"}} in volumes
    assert shown[0] == shown[1]
    assert shown[0]["POLICY"] == "/etc/keyhole/policy/policy.toml"


def test_without_tls_plaintext_is_chosen_by_the_chart_and_probes_are_the_kubelet_s() -> None:
    objects = render(KAFKA)
    for where in (PROXY, EXPORTER):
        [container] = pod(objects, where).containers
        assert [value for name, value in environment(container).items() if name.endswith("_PLAINTEXT")] == ["allow"]
    assert "grpc" in pod(objects, PROXY).containers[0]["readinessProbe"]


def test_with_tls_probes_are_those_of_the_images() -> None:
    """The kubelet speaks gRPC without TLS only, and has no certificate to show."""
    objects = scenario(TLS)
    for where in (PROXY, REPLICA, EXPORTER):
        [container] = pod(objects, where).containers
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["exec"]["command"][:3] == ["python", "-m", "keyhole.rpc.health_check"]
        # Which is patient.
        assert "--alive" in container["livenessProbe"]["exec"]["command"]


def test_with_tls_no_container_is_ended_because_a_process_takes_long_to_begin() -> None:
    """On a node whose cores are all busy a probe's own start took more than 15 s; what it asked was well."""
    for of in pods(scenario(TLS)):
        for container in of.containers:
            for probe in (probe for name, probe in container.items() if name.endswith("Probe") and "exec" in probe):
                if "keyhole.rpc.health_check" in probe["exec"]["command"]:
                    assert probe["timeoutSeconds"] >= 60, of.of


def test_prometheus_brings_a_certificate() -> None:
    monitoring = CHART / "ci" / "monitoring-values.yaml"
    objects = render(CHART / "ci" / "small.yaml", monitoring, TLS, api=[OPERATOR])
    [endpoint] = one(objects, "PodMonitor", "keyhole")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["cert"] == {"secret": {"name": "keyhole-tls", "key": "tls.crt"}}
    assert endpoint["tlsConfig"]["serverName"] == "keyhole-client-proxy.data.svc.cluster.local"

"""Client proxies, replicas, exporter, Kafka, monitoring and network policies: what each switch does."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from keyhole.discovery import parse as spelling
from services.client_proxy.http.host_names import checked_hosts
from tests.support.chart import (
    CHART,
    JOB,
    KAFKA,
    OPERATOR,
    SMALL,
    Object,
    environment,
    names,
    one,
    pod,
    pods,
    refused,
    render,
    scenario,
)

CI = CHART / "ci"
PROXY = "Deployment/keyhole-client-proxy"


def test_proxies_know_which_applications_are_to_be_there() -> None:
    def expected(*values: Object) -> str | None:
        objects = render(KAFKA, *values)
        proxy = pod(objects, "Deployment/keyhole-client-proxy").containers[0]
        return environment(proxy).get("KEYHOLE_CLIENT_PROXY_APPLICATIONS")

    feed = {"name": "f", "state": "shop/totals", "topic": "t", "key": ["k"], "value": ["v"]}
    assert expected({"jobs": [JOB], "feeds": [feed]}) == "temperature-monitor,shop"
    assert expected() is None


def test_an_upgrade_takes_no_proxy_away_before_another_is_ready() -> None:
    deployment = one(scenario(CI / "job-values.yaml"), "Deployment", "keyhole-client-proxy")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    # What is ready: it has reached a state server.
    assert deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["grpc"] == {"port": 7400}


def test_a_proxy_that_goes_serves_on_until_nobody_is_sent_to_it_and_then_drains() -> None:
    objects = render(KAFKA, {"clientProxy.preStopSeconds": 7, "clientProxy.drainSeconds": 20})
    spec = pod(objects, PROXY).spec
    [proxy] = spec["containers"]
    assert proxy["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "7"]}}
    assert environment(proxy)["KEYHOLE_CLIENT_PROXY_DRAIN_SECONDS"] == "20"
    assert spec["terminationGracePeriodSeconds"] > 27


def test_the_number_of_proxies_is_fixed_or_the_autoscaler_s() -> None:
    def replicas(*values: dict[str, Any]) -> object:
        return one(render(KAFKA, *values), "Deployment", "keyhole-client-proxy")["spec"].get("replicas")

    assert replicas() == 2
    assert replicas({"clientProxy.replicas": 5}) == 5
    # A number here would undo the autoscaler's at every upgrade.
    assert replicas({"clientProxy.autoscaling.enabled": True}) is None


def test_an_autoscaler_scales_the_proxies() -> None:
    scaler = one(scenario(CI / "autoscaling-values.yaml"), "HorizontalPodAutoscaler", "keyhole-client-proxy")
    assert scaler["spec"]["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "keyhole-client-proxy",
    }
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 5)
    assert not names(scenario(CI / "job-values.yaml"), "HorizontalPodAutoscaler")


def test_proxies_have_one_address_and_each_its_own() -> None:
    objects = scenario(CI / "autoscaling-values.yaml")
    together = one(objects, "Service", "keyhole-client-proxy")["spec"]
    apart = one(objects, "Service", "keyhole-client-proxy-pods")["spec"]
    assert together["type"] == "LoadBalancer"
    assert apart["clusterIP"] == "None"
    assert together["selector"] == apart["selector"]


@pytest.mark.parametrize("wanted", [True, False])
def test_readers_come_over_http_too_unless_that_is_not_wanted(wanted: bool) -> None:
    objects = render(KAFKA, {"clientProxy.http": wanted, "networkPolicy.enabled": True})
    [proxy] = pod(objects, PROXY).containers
    assert (environment(proxy).get("KEYHOLE_CLIENT_PROXY_HTTP") == "0.0.0.0:7402") == wanted
    assert "KEYHOLE_CLIENT_PROXY_HTTP_ORIGINS" not in environment(proxy)
    assert ({"name": "http", "containerPort": 7402} in proxy["ports"]) == wanted
    ports = one(objects, "Service", "keyhole-client-proxy")["spec"]["ports"]
    assert [port["port"] for port in ports] == ([7400, 7402] if wanted else [7400])
    readers = one(objects, "NetworkPolicy", "keyhole-client-proxy")["spec"]["ingress"][0]
    assert ({"port": "http"} in readers["ports"]) == wanted


@pytest.mark.parametrize("domain", ["cluster.local", "cluster.example.com"])
def test_the_http_port_answers_to_the_services_names_and_to_those_that_are_listed(domain: str) -> None:
    values = {"clientProxy.httpHosts": ["reads.example.com"], "clusterDomain": domain}
    [proxy] = pod(render(KAFKA, values), PROXY).containers
    names = environment(proxy)["KEYHOLE_CLIENT_PROXY_HTTP_HOSTS"].split(",")
    service, spaced = names[:2]
    assert spaced.startswith(f"{service}.")
    assert names[2:] == [f"{spaced}.svc", f"{spaced}.svc.{domain}", "reads.example.com"]
    assert one(render(KAFKA), "Service", service)
    assert checked_hosts(names) == set(names)
    for wrong in ("*", "http://x", "x:80"):
        assert "httpHosts" in refused(KAFKA, {"clientProxy.httpHosts": [wrong]})


def test_a_proxy_has_as_many_processes_as_it_is_given() -> None:
    for given, expected in (({}, "1"), ({"clientProxy.processes": 4}, "4")):
        [proxy] = pod(render(KAFKA, given), PROXY).containers
        assert environment(proxy)["KEYHOLE_CLIENT_PROXY_PROCESSES"] == expected
    for wrong in (-1, 257, "two"):
        assert "processes" in refused(KAFKA, {"clientProxy.processes": wrong})


def test_origins_that_may_read_over_http_are_listed() -> None:
    origins = ["https://app.example.com", "http://localhost:3000"]
    [proxy] = pod(render(KAFKA, {"clientProxy.httpOrigins": origins}), PROXY).containers
    assert environment(proxy)["KEYHOLE_CLIENT_PROXY_HTTP_ORIGINS"] == ",".join(origins)
    assert "httpOrigins" in refused(KAFKA, {"clientProxy.httpOrigins": ["*"]})


def test_proxies_are_spread_unless_told_otherwise() -> None:
    spread = pod(scenario(CI / "job-values.yaml"), PROXY).spec["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    [own] = pod(scenario(CI / "placement-values.yaml"), PROXY).spec["topologySpreadConstraints"]
    assert own["whenUnsatisfiable"] == "DoNotSchedule"


def test_placement_registry_and_labels_reach_the_pods() -> None:
    objects = scenario(CI / "placement-values.yaml")
    for of in pods(objects):
        assert of.metadata["labels"]["team"] == "data"
        assert of.spec["imagePullSecrets"] == [{"name": "registry"}]
        images = [container["image"] for container in of.containers if "image" in container]
        assert all(image.startswith("registry.example.org/keyhole/") for image in images)
    assert pod(objects, PROXY).spec["tolerations"] == [{"key": "readers", "operator": "Exists"}]
    executor = pod(objects, "ConfigMap/keyhole-temperature-monitor-spark/executor-pod.yaml")
    assert executor.spec["tolerations"] == [{"key": "spark", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("name", "servers"),
    [
        (
            "job",
            "kubernetes:7410?namespace=data&selector=app.kubernetes.io/instance=keyhole,keyhole.dev/state-server=true",
        ),
        ("discovery-dns", "dns:keyhole-state-servers.data.svc.cluster.local:7410"),
        ("discovery-static", "10.0.0.1:7410,10.0.0.2:7410"),
    ],
)
def test_proxies_find_state_servers_as_is_chosen(name: str, servers: str) -> None:
    namespace_of_scenarios = render(CI / "small.yaml", CI / f"{name}-values.yaml")
    [proxy] = pod(namespace_of_scenarios, PROXY).containers
    assert environment(proxy)["KEYHOLE_CLIENT_PROXY_SERVERS"] == servers


def test_every_spelling_of_where_others_are_is_one_that_discovery_reads() -> None:
    for path in sorted(CI.glob("*-values.yaml")):
        for of in pods(scenario(path)):
            for container in of.containers:
                for name, value in environment(container).items():
                    if name.endswith(("_PROXY_SERVERS", "_EXPORTER_SERVERS", "_PROXIES", "_COORDINATORS")):
                        assert spelling.read(value), of.of


def test_the_label_that_discovery_asks_for_is_that_of_sidecars_and_replicas() -> None:
    objects = scenario(CI / "replicas-values.yaml")
    wanted = {"app.kubernetes.io/instance": "keyhole", "keyhole.dev/state-server": "true"}.items()
    found = {of.of for of in pods(objects) if wanted <= of.metadata["labels"].items()}
    assert found == {"StatefulSet/keyhole-replica", "ConfigMap/keyhole-temperature-monitor-spark/executor-pod.yaml"}
    service = one(objects, "Service", "keyhole-state-servers")["spec"]
    assert wanted <= service["selector"].items()
    assert service["publishNotReadyAddresses"] is True


def test_replicas_follow_the_applications_of_all_jobs_or_those_that_are_named() -> None:
    def followed(objects: Any) -> dict[str, str]:
        [replica] = pod(objects, "StatefulSet/keyhole-replica").containers
        return environment(replica)

    settings = followed(render(KAFKA, {"jobs": [JOB, JOB | {"name": "b"}], "replica.enabled": True}))
    assert settings["KEYHOLE_STATE_SERVER_ROLE"] == "replica"
    assert settings["KEYHOLE_STATE_SERVER_APPLICATIONS"] == "temperature-monitor,b"
    named = followed(scenario(CI / "replicas-alone-values.yaml"))
    assert named["KEYHOLE_STATE_SERVER_APPLICATIONS"] == "temperature-monitor,orders"


def test_replicas_have_claims_of_their_own_or_an_emptydir() -> None:
    with_claims = one(scenario(CI / "replicas-alone-values.yaml"), "StatefulSet", "keyhole-replica")["spec"]
    [claim] = with_claims["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "store"
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    without = one(scenario(CI / "replicas-values.yaml"), "StatefulSet", "keyhole-replica")["spec"]
    assert "volumeClaimTemplates" not in without
    assert {"name": "store", "emptyDir": {}} in without["template"]["spec"]["volumes"]


def test_proxies_may_have_no_budget_for_drained_nodes() -> None:
    off = render(KAFKA, {"clientProxy.podDisruptionBudget.enabled": False})
    assert not names(off, "PodDisruptionBudget")


def test_kafka_is_only_there_where_it_is_wanted() -> None:
    assert "keyhole-kafka" not in names(scenario(CI / "own-job-values.yaml"), "StatefulSet")
    objects = scenario(CI / "kafka-claim-values.yaml")
    spec = one(objects, "StatefulSet", "keyhole-kafka")["spec"]
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "1Gi"
    settings = environment(spec["template"]["spec"]["containers"][0])
    assert settings["KEYHOLE_KAFKA_ADVERTISE"] == "keyhole-kafka.data.svc.cluster.local:9092"
    assert settings["KEYHOLE_KAFKA_SETTINGS"] == "log.retention.hours=1"


def test_all_know_the_brokers_that_are_given() -> None:
    brokers = "kafka-0.kafka:9092,kafka-1.kafka:9092"
    known = {
        value
        for of in pods(scenario(CI / "own-job-values.yaml"))
        for container in of.containers
        for name, value in environment(container).items()
        if name.endswith("BOOTSTRAP_SERVERS")
    }
    assert known == {brokers}


def test_whoever_speaks_to_secured_brokers_has_the_file_that_their_address_names_and_proxies_have_not() -> None:
    objects = scenario(CI / "kafka-secured-values.yaml")
    speakers = 0
    for of in pods(objects):
        for container in of.containers:
            text = json.dumps(container.get("env", []))
            mounts = [each["mountPath"] for each in container["volumeMounts"]]
            named = "?settings=/etc/keyhole/kafka/kafka.properties" in text
            speakers += named
            # A Spark container speaks to Kafka for its driver, which hands the address out.
            assert named == ("/etc/keyhole/kafka" in mounts) or container["name"] == "spark-executor"
        volumes = [each["secret"]["secretName"] for each in of.spec["volumes"] if "secret" in each]
        assert ("kafka-client" in volumes) == ("client-proxy" not in of.of)
    assert speakers >= 4


def test_a_digest_comes_before_a_tag_and_a_tag_of_an_image_before_that_of_all() -> None:
    digest = f"sha256:{'0' * 64}"
    objects = render(
        KAFKA, {"image.tag": "1", "images.clientProxy.tag": "2", "images.kafka": {"tag": "3", "digest": digest}}
    )
    images = {of.of: of.containers[0]["image"] for of in pods(objects)}
    assert images[PROXY] == "keyhole/client-proxy:2"
    assert images["StatefulSet/keyhole-kafka"] == f"keyhole/kafka@{digest}"
    assert images["Job/keyhole-test"] == "keyhole/spark-job:1"


def test_nothing_reads_where_there_is_no_proxy() -> None:
    objects = render(KAFKA, {"jobs": [JOB], "clientProxy.enabled": False})
    assert not [of for of in objects if "client-proxy" in of["metadata"]["name"]]
    [driver] = pod(objects, "Deployment/keyhole-temperature-monitor-driver").containers
    assert "KEYHOLE_JOB_PROXY" not in environment(driver)


def test_network_policies_leave_each_port_to_those_who_must() -> None:
    objects = scenario(CI / "network-policy-values.yaml")
    policies = names(objects, "NetworkPolicy")
    assert policies >= {
        "keyhole-client-proxy",
        "keyhole-kafka",
        "keyhole-state-servers",
        "keyhole-temperature-monitor-driver",
        "keyhole-temperature-monitor-executor",
    }
    for of in pods(objects):
        component = of.metadata["labels"]["app.kubernetes.io/component"]
        chosen = [
            policy
            for policy in objects
            if policy["kind"] == "NetworkPolicy"
            and policy["spec"]["podSelector"]["matchLabels"].items() <= of.metadata["labels"].items()
        ]
        # Nobody has to reach these.
        assert bool(chosen) != (component in ("source", "test")), of.of
    [readers, _] = one(objects, "NetworkPolicy", "keyhole-client-proxy")["spec"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}} in readers["from"]
    servers = one(objects, "NetworkPolicy", "keyhole-state-servers")["spec"]["ingress"][0]
    [components] = servers["from"][0]["podSelector"]["matchExpressions"]
    assert set(components["values"]) == {
        "cli",
        "client-proxy",
        "feed",
        "metrics-exporter",
        "spark-driver",
        "spark-executor",
    }
    for policy in ("temperature-monitor-driver", "client-proxy", "state-servers", "metrics-exporter"):
        rules = one(objects, "NetworkPolicy", f"keyhole-{policy}")["spec"]["ingress"]
        assert "metrics" in [port["port"] for rule in rules for port in rule["ports"]], policy
    assert not names(scenario(CI / "job-values.yaml"), "NetworkPolicy")


@pytest.mark.parametrize("tls", [False, True])
def test_a_port_with_tls_is_not_said_to_be_plaintext(tls: bool) -> None:
    objects = scenario(CI / ("tls-values.yaml" if tls else "job-values.yaml"))
    ports = one(objects, "Service", "keyhole-client-proxy")["spec"]["ports"]
    assert [port.get("appProtocol") for port in ports if port["name"] == "grpc"] == [
        None if tls else "kubernetes.io/h2c"
    ]


def test_the_operator_scrapes_the_exporter_and_each_pod_with_metrics() -> None:
    objects = scenario(CI / "monitoring-values.yaml")
    monitor = one(objects, "PodMonitor", "keyhole")["spec"]
    [expression] = monitor["selector"]["matchExpressions"]
    for of in pods(objects):
        component = of.metadata["labels"]["app.kubernetes.io/component"]
        ports = {port["name"] for container in of.containers for port in container.get("ports", ())}
        assert (component in expression["values"]) == ("metrics" in ports and component != "metrics-exporter"), of.of
    for of in pods(scenario(CI / "feed-values.yaml")):
        component = of.metadata["labels"]["app.kubernetes.io/component"]
        if component in ("feed", "state-server"):
            assert component in expression["values"]
    for each in objects:
        if each["apiVersion"] == OPERATOR:
            assert each["metadata"]["labels"]["release"] == "prometheus"


def test_whatever_is_scraped_says_which_release_it_is_of() -> None:
    """The operator says in which namespace."""
    for name in ("keyhole", "12"):
        objects = render(SMALL, CI / "monitoring-values.yaml", release=name, api=[OPERATOR])
        monitors = [of["spec"] for of in objects if of["kind"] in ("ServiceMonitor", "PodMonitor")]
        endpoints = [one for of in monitors for one in (*of.get("endpoints", ()), *of.get("podMetricsEndpoints", ()))]
        assert len(endpoints) == 2
        for endpoint in endpoints:
            assert endpoint["relabelings"] == [{"targetLabel": "keyhole_release", "replacement": name}]


def test_alerts_and_dashboards_are_those_of_the_files() -> None:
    objects = scenario(CI / "monitoring-values.yaml")
    rules = yaml.safe_load((CHART / "alerts.yaml").read_text())
    alone = render(SMALL, CI / "monitoring-values.yaml", {"monitoring.monitors.enabled": False}, api=[OPERATOR])
    assert one(alone, "PrometheusRule", "keyhole")["spec"] == rules
    # What says that nothing is there says of which release, where the chart's monitors set the labels.
    absent = "absent(keyhole_exporter_view_age_seconds"
    own = absent + '{namespace="data", keyhole_release="keyhole"}'
    last = rules["groups"][0]["rules"][-1]
    last["expr"] = last["expr"].replace(f"on () {absent}", f"on (namespace, keyhole_release) {own}")
    assert own in last["expr"]
    assert one(objects, "PrometheusRule", "keyhole")["spec"] == rules
    files = {path.name: path for path in (CHART / "dashboards").glob("*.json")}
    maps = [of for of in objects if of["kind"] == "ConfigMap" and "-dashboard-" in of["metadata"]["name"]]
    shown = {name: text for of in maps for name, text in of["data"].items()}
    assert {name: json.loads(text) for name, text in shown.items()} == {
        name: json.loads(path.read_text()) for name, path in files.items()
    }
    assert all(of["metadata"]["labels"]["grafana_dashboard"] == "1" for of in maps)


def test_state_servers_have_a_lookup_port_where_it_is_asked_for_and_network_policies_let_readers_in() -> None:
    many: Object = {"jobs": [JOB], "stateServers.enabled": True, "replica.enabled": True, "networkPolicy.enabled": True}
    asked: Object = {
        "stateServers.lookupPort": True,
        "replica.lookupPort": True,
        "jobDefaults": {"stateServer": {"lookupPort": True}},
    }
    for given, expected in ((many, 0), ({**many, **asked}, 3)):
        objects = render(KAFKA, given)
        servers = [of for at in pods(objects) for of in at.containers if of["name"] == "state-server"]
        ports = [port for of in servers for port in of["ports"] if port["name"] == "lookups"]
        said = [environment(of).get("KEYHOLE_STATE_SERVER_LOOKUPS") for of in servers]
        assert len(servers) == 3
        assert ports == [{"name": "lookups", "containerPort": 7412}] * expected
        assert said == ["0.0.0.0:7412" if expected else None] * 3
    policy = one(objects, "NetworkPolicy", "keyhole-state-servers")
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": 7410}, {"port": "lookups"}]

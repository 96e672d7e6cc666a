"""Values that contradict each other are refused by name, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import JOB, KAFKA, refused, render

TLS = {"security.tls.enabled": True, "security.tls.secretName": "tls"}
FEED = {"name": "totals", "state": "shop/totals", "topic": "orders", "key": ["customer"], "reduce": ["amount=sum"]}
EXTERNAL = {"kafka": {"bootstrapServers": "kafka:9092"}}


def job(**more: Any) -> dict[str, Any]:
    """Values with one job, which has this otherwise."""
    return {"jobs": [JOB | more]}


CONTRADICTIONS = {
    "two Kafkas": (
        {"kafka": {"enabled": True, "bootstrapServers": "kafka:9092"}},
        "kafka.bootstrapServers names another one",
    ),
    "no Kafka": ({}, "kafka.bootstrapServers is empty"),
    "a password for those who don't ask": (KAFKA | {"kafka.clientSecret": "c"}, "kafka.clientSecret (c)"),
    "a size for no Kafka": (EXTERNAL | {"kafka.persistence.size": "1Gi"}, "kafka.persistence.size"),
    "static discovery of nothing": (KAFKA | {"discovery.kind": "static"}, "discovery.servers is empty"),
    "servers that nobody asks": (KAFKA | {"discovery.servers": ["a:7410"]}, "discovery.kind is kubernetes"),
    "TLS without certificates": (KAFKA | {"security.tls.enabled": True}, "security.tls.secretName"),
    "certificates without TLS": (KAFKA | {"security.tls.secretName": "tls"}, "security.tls.enabled is false"),
    "a policy without TLS": (
        KAFKA | {"security.access.policyConfigMap": "policy"},
        "security.access says who may do what, and security.tls.enabled is false",
    ),
    "tokens without a policy": (
        KAFKA | TLS | {"security.access.tokensSecret": "tokens"},
        "no policyConfigMap",
    ),
    "keys of nobody": (
        KAFKA | TLS | {"security.access": {"policyConfigMap": "p", "jwks": "https://a/b"}},
        "security.access.issuer and security.access.audience",
    ),
    "readers whom nobody asks who they are": (
        KAFKA | TLS | {"security.tls.readersNeedCertificates": False},
        "security.tls.readersNeedCertificates is false",
    ),
    "a fixed number and an autoscaler": (
        KAFKA | {"clientProxy.replicas": 3, "clientProxy.autoscaling.enabled": True},
        "clientProxy.replicas is 3",
    ),
    "a minimum above the maximum": (
        KAFKA | {"clientProxy.autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 4}},
        "minReplicas is 5",
    ),
    "as many processes as the node has cores": (KAFKA | {"clientProxy.processes": 0}, "clientProxy.processes is 0"),
    "replicas of nothing": (KAFKA | {"replica.enabled": True}, "replica.applications"),
    "an application twice": (
        KAFKA | {"replica": {"enabled": True, "applications": ["a", "a"]}},
        "replica.applications names one twice",
    ),
    "claims of no size": (
        KAFKA | job() | {"replica": {"enabled": True, "store": {"volume": "persistentClaim"}}},
        "replica.store.size is empty",
    ),
    "a class of no claim": (
        KAFKA | job() | {"replica": {"enabled": True, "store": {"storageClassName": "fast"}}},
        "replica.store.storageClassName",
    ),
    "memory on a claim": (
        KAFKA
        | job(
            stateServer={
                "store": {"kind": "memory", "volume": "persistentClaim", "size": "1Gi", "storageClassName": "a"}
            }
        ),
        "jobs[temperature-monitor].stateServer.store.kind is memory",
    ),
    "executors' claims of no size": (
        KAFKA | job(stateServer={"store": {"volume": "persistentClaim"}}),
        "jobs[temperature-monitor].stateServer.store.size is empty",
    ),
    "executors' claims of no class": (
        KAFKA | job(stateServer={"store": {"volume": "persistentClaim", "size": "1Gi"}}),
        "jobs[temperature-monitor].stateServer.store.storageClassName is empty",
    ),
    "no state servers": (
        KAFKA | job(stateServer={"sidecar": False}),
        "jobs[temperature-monitor].stateServer.sidecar is false, and there are no other state servers",
    ),
    "static discovery beside sidecars": (
        KAFKA | job() | {"discovery": {"kind": "static", "servers": ["a:7410"]}},
        "jobs[temperature-monitor].stateServer.sidecar is true, and discovery.kind is static",
    ),
    "claims of no sidecar": (
        KAFKA
        | {"stateServers": {"enabled": True}}
        | job(
            stateServer={
                "sidecar": False,
                "store": {"volume": "persistentClaim", "size": "1Gi", "storageClassName": "a"},
            }
        ),
        "jobs[temperature-monitor].stateServer.store asks for claims of the sidecars",
    ),
    "two jobs of a name": (KAFKA | {"jobs": [JOB, JOB | {"application": "other"}]}, "two jobs have the name"),
    "two jobs of an application": (
        KAFKA | {"jobs": [JOB, JOB | {"name": "again", "application": "temperature-monitor"}]},
        "two jobs have the application temperature-monitor",
    ),
    "no checkpoint": (KAFKA | job(checkpoint={}), "jobs[temperature-monitor].checkpoint is empty"),
    "two checkpoints": (
        KAFKA | job(checkpoint={"url": "s3a://a/b", "claim": {"size": "1Gi"}}),
        "has a url and a claim",
    ),
    "one checkpoint of two jobs": (
        KAFKA
        | {
            "jobs": [
                JOB | {"checkpoint": {"url": "s3a://a/b"}},
                JOB | {"name": "again", "checkpoint": {"url": "s3a://a/b/"}},
            ]
        },
        "jobs[again].checkpoint.url is s3a://a/b/, which is the checkpoint of jobs[temperature-monitor]",
    ),
    "one checkpoint of all jobs": (
        KAFKA
        | {"jobDefaults": {"checkpoint": {"url": "s3a://a/b"}}}
        | {"jobs": [JOB | {"checkpoint": {}}, JOB | {"name": "again", "checkpoint": {}}]},
        "jobs[again].checkpoint.url is s3a://a/b, which is the checkpoint of jobs[temperature-monitor]",
    ),
    "a new claim and an old one": (
        KAFKA | job(checkpoint={"claim": {"size": "1Gi", "existingClaim": "mine"}}),
        "existingClaim (mine)",
    ),
    "Spark's master": (KAFKA | job(sparkConf={"spark.master": "local[2]"}), "sparkConf has spark.master"),
    "the number of executors twice": (
        KAFKA | job(sparkConf={"spark.executor.instances": 9}),
        "sparkConf has spark.executor.instances",
    ),
    "the checkpoint as a setting": (
        KAFKA | job(settings={"topic": "readings", "checkpoint": "/tmp"}),
        "settings has checkpoint",
    ),
    "the servers as a variable": (KAFKA | job(env={"KEYHOLE_JOB_SERVERS": "a:1"}), "env has KEYHOLE_JOB_SERVERS"),
    "the checkpoint as a variable": (
        KAFKA | job(env={"KEYHOLE_TEMPERATURE_MONITOR_CHECKPOINT": "/tmp"}),
        "jobs[temperature-monitor].env has KEYHOLE_TEMPERATURE_MONITOR_CHECKPOINT",
    ),
    "a setting and a variable of its name": (
        KAFKA | job(env={"KEYHOLE_TEMPERATURE_MONITOR_TOPIC": "others"}),
        "jobs[temperature-monitor].env has KEYHOLE_TEMPERATURE_MONITOR_TOPIC",
    ),
    "an executor's variable of Spark's": (
        KAFKA | job(env={"SPARK_EXECUTOR_MEMORY": "9g"}),
        "jobs[temperature-monitor].env has SPARK_EXECUTOR_MEMORY",
    ),
    "a sidecar's store as a variable": (
        KAFKA | job(stateServer={"env": {"KEYHOLE_STATE_SERVER_STORE": "rocksdb"}}),
        "jobs[temperature-monitor].stateServer.env has KEYHOLE_STATE_SERVER_STORE",
    ),
    "a state server's port as a variable": (
        KAFKA | {"stateServers": {"enabled": True, "env": {"KEYHOLE_STATE_SERVER_PORT": "1"}}},
        "stateServers.env has KEYHOLE_STATE_SERVER_PORT",
    ),
    "a lookup port as a variable where it is off": (
        KAFKA | job(stateServer={"env": {"KEYHOLE_STATE_SERVER_LOOKUPS": "0.0.0.0:7412"}}),
        "jobs[temperature-monitor].stateServer.env has KEYHOLE_STATE_SERVER_LOOKUPS",
    ),
    "a replica's applications as a variable": (
        KAFKA | job() | {"replica": {"enabled": True, "env": {"KEYHOLE_STATE_SERVER_APPLICATIONS": "a"}}},
        "replica.env has KEYHOLE_STATE_SERVER_APPLICATIONS",
    ),
    "a proxy's port as a variable": (
        KAFKA | {"clientProxy.env": {"KEYHOLE_CLIENT_PROXY_PORT": "1"}},
        "clientProxy.env has KEYHOLE_CLIENT_PROXY_PORT",
    ),
    "the exporter's servers as a variable": (
        KAFKA | {"metricsExporter.env": {"KEYHOLE_METRICS_EXPORTER_SERVERS": "a:1"}},
        "metricsExporter.env has KEYHOLE_METRICS_EXPORTER_SERVERS",
    ),
    "plaintext as a variable": (
        KAFKA | TLS | {"clientProxy.env": {"KEYHOLE_CLIENT_PROXY_TLS": "off"}},
        "clientProxy.env has KEYHOLE_CLIENT_PROXY_TLS",
    ),
    "plaintext as a variable where there is no TLS": (
        KAFKA | {"metricsExporter.env": {"KEYHOLE_METRICS_EXPORTER_TLS": "on"}},
        "metricsExporter.env has KEYHOLE_METRICS_EXPORTER_TLS",
    ),
    "a policy as a variable": (
        KAFKA | {"stateServers": {"enabled": True, "env": {"KEYHOLE_STATE_SERVER_POLICY": "/tmp/a"}}},
        "stateServers.env has KEYHOLE_STATE_SERVER_POLICY",
    ),
    "a store's folder as a variable": (
        KAFKA | job() | {"replica": {"enabled": True, "env": {"KEYHOLE_STATE_SERVER_DIRECTORY": "/tmp"}}},
        "replica.env has KEYHOLE_STATE_SERVER_DIRECTORY",
    ),
    "a sidecar's role, by another name": (
        KAFKA | job(stateServer={"env": {"KEYHOLE_STATE_SERVER_REPLICA_GROUP": "a"}}),
        "jobs[temperature-monitor].stateServer.env has KEYHOLE_STATE_SERVER_REPLICA_GROUP",
    ),
    "HTTP as a variable where it is off": (
        KAFKA | {"clientProxy.http": False, "clientProxy.env": {"KEYHOLE_CLIENT_PROXY_HTTP": "0.0.0.0:7402"}},
        "clientProxy.env has KEYHOLE_CLIENT_PROXY_HTTP",
    ),
    "a group of drivers as a variable": (
        KAFKA | job(env={"KEYHOLE_JOB_DRIVER_GROUP": "a"}),
        "jobs[temperature-monitor].env has KEYHOLE_JOB_DRIVER_GROUP",
    ),
    "a feed's servers as a variable": (
        KAFKA | {"feeds": [FEED | {"env": {"KEYHOLE_JOB_SERVERS": "a:1"}}]},
        "feeds[totals].env has KEYHOLE_JOB_SERVERS",
    ),
    "a job's settings that are the platform's": (
        KAFKA | job(settingsPrefix="KEYHOLE_JOB_", settings={"proxy": "a:1"}),
        "settings has what is called KEYHOLE_JOB_PROXY, which the chart sets",
    ),
    "a source's brokers as a setting": (
        KAFKA | job(source={"settings": {"bootstrap_servers": "a:1"}}),
        "source.settings has bootstrap_servers",
    ),
    "Kafka's listeners as a setting": (
        {"kafka": {"enabled": True, "settings": {"listeners": "A://:1"}}},
        "kafka.settings has listeners",
    ),
    "a comma in a setting of Kafka's": (
        {"kafka": {"enabled": True, "settings": {"log.cleanup.policy": "compact,delete"}}},
        "kafka.settings has log.cleanup.policy with a comma (compact,delete)",
    ),
    "a checkpoint of bytes": (
        KAFKA | job(checkpoint={"claim": {"size": "10"}}),
        "jobs[temperature-monitor].checkpoint.claim.size is 10, which is 10 bytes",
    ),
    "a store of bytes": (
        KAFKA | job() | {"replica": {"enabled": True, "store": {"size": 10}}},
        "replica.store.size is 10, which is 10 bytes",
    ),
    "Kafka's claim of bytes": (
        {"kafka": {"enabled": True, "persistence": {"size": "800m"}}},
        "kafka.persistence.size is 800m",
    ),
    "a source without a prefix": (KAFKA | job(source={"enabled": True}), "source.settingsPrefix"),
    "a test without a record": (KAFKA | job(test={"topic": "readings"}), "test.record"),
    "too long a name": (KAFKA | job(name="a" * 40, application="a"), "longer than 50"),
    "monitors without an operator": (KAFKA | {"monitoring.monitors.enabled": True}, "monitoring.coreos.com/v1"),
}


@pytest.mark.parametrize(("values", "says"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_a_contradiction_is_refused_by_name(values: dict[str, Any], says: str) -> None:
    # Names of names are made long by the release, too.
    assert says in refused(values, release="a-release-of-keyhole" if says.startswith("longer") else "keyhole")


def test_alerts_without_the_exporter_that_they_are_about_are_refused() -> None:
    values = KAFKA | {"monitoring.alerts.enabled": True, "metricsExporter.enabled": False}
    assert "metricsExporter.enabled is false" in refused(values, api=["monitoring.coreos.com/v1"])


def test_what_is_refused_with_one_thing_is_taken_without_it() -> None:
    """So that a refusal is for the contradiction, and not for the value."""
    assert render(KAFKA, {"clientProxy.replicas": 3})
    assert render(KAFKA, {"clientProxy.autoscaling.enabled": True})
    assert render(KAFKA, {"clientProxy.processes": 0, "clientProxy.resources.limits.cpu": 2})
    assert render(EXTERNAL)
    assert render(KAFKA, job(checkpoint={"url": "s3a://a/b"}))
    assert render(KAFKA, {"jobs": [JOB, JOB | {"name": "again"}]})
    one = {"claim": {"existingClaim": "mine"}}
    assert render(KAFKA, {"jobs": [JOB | {"checkpoint": one}, JOB | {"name": "again", "checkpoint": one}]})
    static = {"discovery": {"kind": "static", "servers": ["a:7410"]}}
    assert render(KAFKA, static, job(stateServer={"sidecar": False}))
    assert render(KAFKA, job(checkpoint={"claim": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}}))
    assert render(KAFKA, {"discovery": {"kind": "static", "servers": ["a:7410"]}})

"""A job: its driver, what Spark makes executors of, and their rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keyhole.demo.described_jobs import described, job_names
from keyhole.spark.container import environ_of
from keyhole.spark.session import FILE_CHECKPOINTS, S3_CHECKPOINTS
from keyhole.spark.stacks import STACKS, SUBMIT_OPTIONS
from tests.support.chart import (
    CHART,
    JOB,
    KAFKA,
    environment,
    names,
    one,
    pod,
    pods,
    render,
    scenario,
    spark_conf,
)

CI = CHART / "ci"
DRIVER = "Deployment/keyhole-temperature-monitor-driver"
SHOP_ORDERS = "Deployment/keyhole-shop-orders-driver"
EXECUTOR = "ConfigMap/keyhole-temperature-monitor-spark/executor-pod.yaml"


def rules(objects: Any, role: str) -> dict[str, list[str]]:
    """Verbs by resource."""
    return {resource: rule["verbs"] for rule in one(objects, "Role", role)["rules"] for resource in rule["resources"]}


def test_the_state_server_is_a_native_sidecar_of_the_executor() -> None:
    """It starts before it, and stops after it; the executor waits until its loop turns, not until it has key groups."""
    executor = pod(scenario(CI / "job-values.yaml"), EXECUTOR)
    [sidecar] = executor.spec["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("state-server", "Always")
    assert sidecar["startupProbe"]["grpc"] == {"port": 7410, "service": "liveness"}
    assert sidecar["livenessProbe"]["grpc"] == {"port": 7410, "service": "liveness"}
    assert sidecar["readinessProbe"]["grpc"] == {"port": 7410}
    assert [container["name"] for container in executor.spec["containers"]] == ["spark-executor"]
    assert executor.metadata["labels"]["keyhole.dev/state-server"] == "true"


def test_a_sidecar_is_given_the_time_that_it_may_take_to_drain() -> None:
    objects = render(KAFKA, {"jobs": [JOB | {"stateServer": {"drainSeconds": 90}}]})
    executor = pod(objects, EXECUTOR)
    assert environment(executor.spec["initContainers"][0])["KEYHOLE_STATE_SERVER_DRAIN_SECONDS"] == "90"
    assert executor.spec["terminationGracePeriodSeconds"] > 90


def test_the_driver_finds_the_sidecars_by_spark_s_executors() -> None:
    [driver] = pod(scenario(CI / "job-values.yaml"), DRIVER).containers
    assert driver["args"] == ["driver", "jobs.temperature_monitor"]
    settings = environment(driver)
    assert settings["KEYHOLE_JOB_SERVERS"] == "{host}:7410"
    assert settings["KEYHOLE_JOB_APPLICATION"] == "temperature-monitor"
    assert settings["KEYHOLE_JOB_BOOTSTRAP_SERVERS"] == "keyhole-kafka.data.svc.cluster.local:9092"
    assert settings["KEYHOLE_JOB_PROXY"] == "keyhole-client-proxy.data.svc.cluster.local:7400"
    assert settings["KEYHOLE_TEMPERATURE_MONITOR_TOPIC"] == "readings"
    assert settings["KEYHOLE_TEMPERATURE_MONITOR_CHECKPOINT"] == "/var/lib/keyhole/checkpoint/temperature-monitor"


def test_a_job_as_it_is_made_by_keyhole_new_finds_its_checkpoint_and_has_settings_by_its_name() -> None:
    [driver] = pod(render(KAFKA, {"jobs": [JOB | {"name": "shop-orders", "module": "job"}]}), SHOP_ORDERS).containers
    settings = environment(driver)
    assert driver["args"] == ["driver", "job"]
    assert settings["KEYHOLE_CHECKPOINTS"] == "/var/lib/keyhole/checkpoint/shop-orders"
    assert settings["KEYHOLE_SHOP_ORDERS_CHECKPOINT"] == settings["KEYHOLE_CHECKPOINTS"]
    assert "KEYHOLE_JOB_CHECKPOINT" not in settings


@pytest.mark.parametrize("job", sorted(CI.glob("*-values.yaml")), ids=lambda path: path.stem)
def test_a_drivers_jvm_has_stacks_as_deep_as_on_one_machine(job: Path) -> None:
    objects = scenario(job)
    drivers = [of for of in pods(objects) if of.of.endswith("-driver")]
    for driver in drivers:
        [container] = driver.spec["containers"]
        environ = environ_of(container["args"], environment(container), Path("/spark"))
        assert environ[SUBMIT_OPTIONS].split()[0] == STACKS
        assert "-Xss" not in str([of["data"] for of in objects if of["kind"] == "ConfigMap"])


def test_executors_come_back_to_their_driver_by_its_service_and_belong_to_its_pod() -> None:
    objects = scenario(CI / "job-values.yaml")
    conf = spark_conf(objects)
    service = one(objects, "Service", "keyhole-temperature-monitor-driver")
    assert conf["spark.driver.host"] == "keyhole-temperature-monitor-driver.data.svc.cluster.local"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert {str(port["port"]) for port in service["spec"]["ports"]} >= {
        conf["spark.driver.port"],
        conf["spark.driver.blockManager.port"],
    }
    # Spark makes the pod of this name the owner of each executor's; the collector removes them with it.
    assert conf["spark.kubernetes.driver.pod.name"] == "${env:POD_NAME}"
    [driver] = pod(objects, DRIVER).containers
    assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in driver["env"]
    assert conf["spark.kubernetes.executor.podTemplateFile"] == "/etc/spark/executor-pod.yaml"
    assert environment(driver)["SPARK_CONF_DIR"] == "/etc/spark"


def test_there_is_never_a_second_driver_beside_the_first() -> None:
    driver = one(scenario(CI / "job-values.yaml"), "Deployment", "keyhole-temperature-monitor-driver")
    assert driver["spec"]["replicas"] == 1
    assert driver["spec"]["strategy"] == {"type": "Recreate"}


def test_each_job_of_a_release_has_its_own_of_everything() -> None:
    objects = scenario(CI / "two-jobs-values.yaml")
    drivers = {"keyhole-temperature-monitor-driver", "keyhole-tweets-driver"}
    assert drivers <= names(objects, "Deployment")
    for kind in ("Service", "ServiceAccount", "Role", "RoleBinding"):
        assert drivers <= names(objects, kind)
    tweets = pod(objects, "Deployment/keyhole-tweets-driver")
    assert tweets.containers[0]["args"] == ["driver", "jobs.tweet_impressions"]
    assert environment(tweets.containers[0])["KEYHOLE_TWEET_IMPRESSIONS_TOPIC"] == "tweets"
    assert tweets.metadata["labels"]["keyhole.dev/application"] == "tweet-impressions"
    assert spark_conf(objects, "keyhole-tweets")["spark.executor.instances"] == "1"
    assert spark_conf(objects)["spark.executor.instances"] == "2"


@pytest.mark.parametrize("name", job_names())
def test_every_job_that_there_is_runs_by_its_name_and_reads_what_its_source_writes(name: str) -> None:
    job = described(name)
    objects = scenario(CI / "every-job-values.yaml")
    [driver] = pod(objects, f"Deployment/keyhole-{job.application}-driver").containers
    [source] = pod(objects, f"Deployment/keyhole-{job.application}-source").containers
    assert driver["args"] == ["driver", f"jobs.{job.name}"]
    assert source["command"] == ["python", "-m", f"jobs.{job.name}.source"]
    read, written = environment(driver), environment(source)
    assert read["KEYHOLE_JOB_APPLICATION"] == job.application
    for setting in ("TOPIC", *job.more_topics):
        assert read[job.prefix + setting] == written[job.source_prefix + setting]
    if job.files:
        # Executors have nothing else that all of them share.
        assert read[job.prefix + job.files].startswith("/var/lib/keyhole/checkpoint/")
        assert read[job.prefix + job.files] != read[f"{job.prefix}CHECKPOINT"]


def test_every_job_that_there_is_has_its_scenario() -> None:
    folders = {path.parent.name for path in (CHART.parents[1] / "jobs").glob("*/__main__.py")}
    modules = {
        container["args"][1].removeprefix("jobs.")
        for of in pods(scenario(CI / "every-job-values.yaml"))
        for container in of.containers
        if container["name"] == "driver"
    }
    assert modules == folders == set(job_names())


def test_the_driver_may_do_what_spark_s_scheduler_does_and_no_more() -> None:
    assert rules(scenario(CI / "job-values.yaml"), "keyhole-temperature-monitor-driver") == {
        "pods": ["create", "get", "list", "watch", "delete", "deletecollection"],
        "configmaps": ["create", "deletecollection"],
    }
    # At its end Spark removes the claims that it owns: where there are none, it must not try.
    assert spark_conf(scenario(CI / "job-values.yaml"))["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    claims = rules(scenario(CI / "store-claims-values.yaml"), "keyhole-temperature-monitor-driver")
    assert claims.keys() == {"pods", "configmaps", "persistentvolumeclaims"}


def test_proxies_and_exporter_may_list_and_watch_pods_and_no_more() -> None:
    assert rules(scenario(CI / "job-values.yaml"), "keyhole-discovery") == {"pods": ["list", "watch"]}


@pytest.mark.parametrize("name", ["discovery-dns", "discovery-static"])
def test_who_finds_servers_without_the_api_has_no_rights(name: str) -> None:
    objects = scenario(CI / f"{name}-values.yaml")
    assert "keyhole-discovery" not in names(objects, "Role") | names(objects, "ServiceAccount")
    assert pod(objects, "Deployment/keyhole-client-proxy").spec["automountServiceAccountToken"] is False


def test_no_role_is_of_the_cluster_and_none_says_everything() -> None:
    for path in CI.glob("*-values.yaml"):
        for of in scenario(path):
            assert not of["kind"].startswith("ClusterRole")
            for rule in of.get("rules", ()) if of["kind"] == "Role" else ():
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                assert "secrets" not in rule["resources"]


def test_roles_are_left_to_others_where_that_is_wanted() -> None:
    objects = scenario(CI / "no-rights-values.yaml")
    assert not names(objects, "Role") | names(objects, "RoleBinding")
    assert names(objects, "ServiceAccount") == {"keyhole-discovery", "keyhole-temperature-monitor-driver"}


def test_the_checkpoint_is_mounted_by_driver_and_executors_and_outlives_the_release() -> None:
    objects = scenario(CI / "job-values.yaml")
    claim = one(objects, "PersistentVolumeClaim", "keyhole-temperature-monitor-checkpoint")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for of in (DRIVER, EXECUTOR):
        spec = pod(objects, of).spec
        assert {"name": "checkpoint", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in spec[
            "volumes"
        ]
        assert {"name": "checkpoint", "mountPath": "/var/lib/keyhole/checkpoint"} in spec["containers"][0][
            "volumeMounts"
        ]


def test_a_claim_that_exists_is_used_and_none_is_made() -> None:
    objects = scenario(CI / "existing-checkpoint-values.yaml")
    assert not names(objects, "PersistentVolumeClaim")
    volumes = pod(objects, DRIVER).spec["volumes"]
    assert {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "checkpoints"}} in volumes


def test_a_job_of_one_s_own_has_its_image_its_object_store_and_its_credentials() -> None:
    objects = scenario(CI / "own-job-values.yaml")
    driver = pod(objects, "Deployment/keyhole-orders-driver").containers[0]
    executor = pod(objects, "ConfigMap/keyhole-orders-spark/executor-pod.yaml")
    conf = spark_conf(objects, "keyhole-orders")
    assert driver["image"] == conf["spark.kubernetes.container.image"] == "shop/orders:7"
    # The state servers are of the platform's version, not of the job's.
    assert executor.spec["initContainers"][0]["image"].startswith("keyhole/state-server:")
    assert environment(driver)["KEYHOLE_ORDERS_CHECKPOINT"] == "s3a://checkpoints/orders"
    for container in (driver, executor.spec["containers"][0]):
        assert container["envFrom"] == [{"secretRef": {"name": "orders-object-store"}}]
        assert environment(container)["AWS_REGION"] == "eu-central-1"
    assert "envFrom" not in executor.spec["initContainers"][0]
    assert conf["spark.hadoop.fs.s3a.endpoint"] == "http://minio:9000"
    assert conf["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert conf["spark.sql.shuffle.partitions"] == "8"
    assert conf["spark.kubernetes.executor.limit.cores"] == "2"
    assert not names(objects, "PersistentVolumeClaim")


def test_spark_finds_the_images_connectors_and_writes_a_checkpoint_as_its_place_wants_it() -> None:
    (name,) = S3_CHECKPOINTS
    here, there = (
        spark_conf(scenario(CI / "own-job-values.yaml"), "keyhole-orders"),
        spark_conf(render(KAFKA, {"jobs": [JOB]})),
    )
    for conf in (here, there):
        for of in ("driver", "executor"):
            assert conf[f"spark.{of}.extraClassPath"] == "/opt/spark-kafka/*:/opt/spark-s3/*"
    assert here[name] == S3_CHECKPOINTS[name]
    assert there[name] == FILE_CHECKPOINTS[name]
    # An image of one's own may have another connector, without that class.
    own = {"checkpoint": {"url": "s3a://a/b"}, "sparkConf": {name: "another.Manager"}}
    assert spark_conf(render(KAFKA, {"jobs": [JOB | own]}))[name] == "another.Manager"


def test_spark_makes_a_claim_for_each_store_where_that_is_wanted() -> None:
    objects = scenario(CI / "store-claims-values.yaml")
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.store."
    conf = {name.removeprefix(claim): value for name, value in spark_conf(objects).items() if name.startswith(claim)}
    executor = pod(objects, EXECUTOR)
    [sidecar] = executor.spec["initContainers"]
    assert conf == {
        "mount.path": "/var/lib/keyhole/stores",
        "mount.readOnly": "false",
        "options.claimName": "OnDemand",
        "options.storageClass": "static",
        "options.sizeLimit": "1Gi",
    }
    # The volume is the one that Spark adds to the pod.
    assert "store" not in {volume["name"] for volume in executor.spec["volumes"]}
    assert {"name": "store", "mountPath": conf["mount.path"]} in sidecar["volumeMounts"]
    assert environment(sidecar)["KEYHOLE_STATE_SERVER_STORE"] == "rocksdb"


def test_an_emptydir_is_bounded_where_a_size_is_given() -> None:
    objects = render(KAFKA, {"jobs": [JOB | {"stateServer": {"store": {"size": "3Gi"}}}]})
    assert {"name": "store", "emptyDir": {"sizeLimit": "3Gi"}} in pod(objects, EXECUTOR).spec["volumes"]
    assert {"name": "store", "emptyDir": {}} in pod(render(KAFKA, {"jobs": [JOB]}), EXECUTOR).spec["volumes"]


def test_a_source_runs_where_it_is_wanted_and_knows_kafka() -> None:
    objects = scenario(CI / "job-values.yaml")
    [source] = pod(objects, "Deployment/keyhole-temperature-monitor-source").containers
    assert source["command"] == ["python", "-m", "jobs.temperature_monitor.source"]
    settings = environment(source)
    assert settings["KEYHOLE_READINGS_BOOTSTRAP_SERVERS"] == "keyhole-kafka.data.svc.cluster.local:9092"
    assert settings["KEYHOLE_READINGS_TOPIC"] == "readings"
    assert not [of for of in pods(scenario(CI / "own-job-values.yaml")) if of.of.endswith("-source")]


def test_of_two_drivers_one_stands_by_and_executors_come_back_to_their_own() -> None:
    objects = render(KAFKA, {"jobs": [JOB | {"driver": {"standby": True}}]})
    of = one(objects, "Deployment", "keyhole-temperature-monitor-driver")["spec"]
    assert of["replicas"] == 2
    assert of["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    driver = pod(objects, DRIVER)
    [spread] = driver.spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == of["selector"]["matchLabels"]
    [container] = driver.containers
    assert environment(container)["KEYHOLE_JOB_DRIVER_GROUP"] == "temperature-monitor"
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]
    # The name of the service is both drivers'.
    assert spark_conf(objects)["spark.driver.host"] == "${env:POD_IP}"
    alone = environment(pod(scenario(CI / "job-values.yaml"), DRIVER).containers[0])
    assert "KEYHOLE_JOB_DRIVER_GROUP" not in alone


def test_the_states_of_a_job_can_be_on_state_servers_that_stay_where_its_driver_is_lost() -> None:
    servers = {"stateServers": {"enabled": True}, "jobs": [JOB | {"stateServer": {"sidecar": False}}]}
    objects = render(KAFKA, servers)
    executor = pod(objects, EXECUTOR)
    assert [of["name"] for of in executor.containers] == ["spark-executor"]
    assert "keyhole.dev/state-server" not in executor.metadata["labels"]
    assert [of["name"] for of in executor.spec["volumes"]] == ["tmp", "checkpoint"]
    [driver] = pod(objects, DRIVER).containers
    given = environment(driver)["KEYHOLE_JOB_SERVERS"]
    assert given == "dns:keyhole-state-server.data.svc.cluster.local:7410"

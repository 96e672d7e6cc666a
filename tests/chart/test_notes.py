"""What Helm prints after an install is true."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from keyhole.cli.arguments import parser_of_all
from tests.support.chart import CHART, JOB, KAFKA, SMALL, Object, names, notes, one, pod, pods, render, spark_conf


def test_every_object_that_the_notes_name_is_there() -> None:
    values = KAFKA | {"jobs": [JOB, JOB | {"name": "other", "checkpoint": {"url": "s3a://a/b"}}]}
    said, objects = notes(values), render(values)
    assert "svc/keyhole-client-proxy " in said
    assert "keyhole-client-proxy" in names(objects, "Service")
    for name in ("temperature-monitor", "other"):
        assert f"deploy/keyhole-{name}-driver" in said
        assert f"keyhole-{name}-driver" in names(objects, "Deployment")
    assert "on the claim keyhole-temperature-monitor-checkpoint" in said
    assert "keyhole-temperature-monitor-checkpoint" in names(objects, "PersistentVolumeClaim")
    assert "checkpoint s3a://a/b" in said
    assert "helm -n data test keyhole" in said
    assert "keyhole-test" in names(objects, "Job")


def test_what_is_off_is_not_promised_and_what_follows_is_said() -> None:
    nothing = notes({"kafka": {"bootstrapServers": "kafka:9092"}, "clientProxy.enabled": False, "rbac.create": False})
    assert "There is no client proxy" in nothing
    assert "There is no job" in nothing
    assert "No Roles were made" in nothing
    assert "helm -n data test" not in nothing
    assert "Kafka is" not in nothing


def test_a_kafka_that_forgets_is_called_so() -> None:
    assert "on an emptyDir: when its pod goes, so do the changelogs" in notes(KAFKA)
    kept = notes({"kafka": {"enabled": True, "persistence": {"size": "1Gi"}}})
    assert "It is for trying out" in kept
    assert "emptyDir" not in kept


def test_what_reads_do_while_a_driver_restarts_depends_on_replicas() -> None:
    assert "reads of its states fail" in notes(KAFKA | {"jobs": [JOB]})
    with_replicas = notes(KAFKA | {"jobs": [JOB], "replica": {"enabled": True, "replicas": 2}})
    assert "Replicas: 2, of temperature-monitor" in with_replicas
    assert "reads of its states fail" not in with_replicas


def test_a_job_whose_states_are_not_beside_its_executors_is_told_so_and_both_drivers_logs_are_named() -> None:
    apart = JOB | {"driver": {"standby": True}, "stateServer": {"sidecar": False}}
    values = KAFKA | {"stateServers": {"enabled": True}, "jobs": [apart]}
    said = notes(values)
    assert "executors of each of two drivers, of which one stands by, its states on the release's own state" in said
    assert "beside each" not in said
    assert "reads of its states fail" not in said, "the servers stay"
    [selector] = [line.split(" -l ")[1] for line in said.splitlines() if " logs -f --prefix -l " in line]
    labels = pod(render(values), "Deployment/keyhole-temperature-monitor-driver").metadata["labels"]
    assert dict(of.split("=") for of in selector.split(",")).items() <= labels.items()
    both = notes(values | {"jobs": [apart, JOB | {"name": "other"}]})
    assert "reads of its states fail (other)" in both


def test_plaintext_is_told_and_whether_a_policy_bounds_it() -> None:
    assert "All ports are plaintext" in notes(KAFKA)
    assert "no NetworkPolicy says who may" in notes(KAFKA)
    assert "no NetworkPolicy" not in notes(KAFKA | {"networkPolicy.enabled": True})


def _requested(objects: list[Object]) -> tuple[float, float]:
    """Cores and GiB of all pods but that of the test: those of executors are as many as Spark makes."""

    def cores(text: Any) -> float:
        return float(str(text).removesuffix("m")) / 1000 if str(text).endswith("m") else float(text)

    def gibibytes(text: str) -> float:
        number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()  # type: ignore[union-attr]
        return float(number) / (1024 if unit == "Mi" else 1)

    cpu = memory = 0.0
    for of in pods(objects):
        kind, name = of.of.split("/")[:2]
        if kind == "Job":
            continue
        resources = [container["resources"]["requests"] for container in of.containers if "resources" in container]
        count = one(objects, kind, name).get("spec", {}).get("replicas")
        if kind == "ConfigMap":
            job = name.removesuffix("-spark")
            conf = spark_conf(objects, job)
            drivers = one(objects, "Deployment", f"{job}-driver")["spec"]["replicas"]
            count = drivers * int(conf["spark.executor.instances"])
            total = sum(int(conf[f"spark.executor.{part}"].removesuffix("m")) for part in ("memory", "memoryOverhead"))
            resources.append({"cpu": conf["spark.kubernetes.executor.request.cores"], "memory": f"{total}Mi"})
        cpu += count * sum(cores(of["cpu"]) for of in resources)
        memory += count * sum(gibibytes(of["memory"]) for of in resources)
    return cpu, memory


FEED = {"name": "totals", "state": "shop/totals", "topic": "orders", "key": ["customer"], "reduce": ["amount=sum"]}
SOURCE = {"source": {"enabled": True, "settingsPrefix": "KEYHOLE_READINGS_"}}


@pytest.mark.parametrize(
    "values",
    [
        KAFKA | {"jobs": [JOB | SOURCE]},
        {"kafka": {"bootstrapServers": "kafka:9092"}, "stateServers": {"enabled": True}, "feeds": [FEED]},
        KAFKA
        | {"jobs": [JOB | {"driver": {"standby": True}}, JOB | {"name": "b", "stateServer": {"sidecar": False}}]}
        | {"stateServers": {"enabled": True, "replicas": 3}, "replica": {"enabled": True}, "clientProxy.replicas": 3},
    ],
    ids=["a job", "a feed", "all of it"],
)
def test_the_notes_say_what_the_pods_request_together_and_how_to_see_what_waits(values: dict[str, Any]) -> None:
    said = notes(values)
    requests = re.search(r"Its pods request ([\d.]+) cores and ([\d.]+) GiB of memory together", said)
    assert requests is not None
    assert (float(requests[1]), float(requests[2])) == pytest.approx(_requested(render(values)), abs=0.06)
    (command,) = re.findall(r"^  keyhole (status --pods .*)$", said, re.MULTILINE)
    asked = parser_of_all().parse_args(command.split())
    assert (asked.pods, asked.namespace) == ("app.kubernetes.io/instance=keyhole", "data")


def test_the_page_says_what_its_smallest_values_request() -> None:
    page = (CHART.parents[1] / "docs" / "kubernetes.md").read_text()
    section = page.partition("## The smallest values\n")[2].partition("\n## ")[0]
    values = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0])
    for given in ([values], [SMALL, values]):
        requests = re.search(r"request ([\d.]+ cores and [\d.]+ GiB)", notes(*given))
        assert requests is not None
        assert requests[1] in " ".join(page.partition("## The smallest values\n")[0].split())

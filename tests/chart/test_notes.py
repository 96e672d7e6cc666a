"""What Helm prints after an install is true."""

from __future__ import annotations

from tests.support.chart import JOB, KAFKA, names, notes, pod, render


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
    [selector] = [line.split(" -l ")[1] for line in said.splitlines() if " -l " in line]
    labels = pod(render(values), "Deployment/keyhole-temperature-monitor-driver").metadata["labels"]
    assert dict(of.split("=") for of in selector.split(",")).items() <= labels.items()
    both = notes(values | {"jobs": [apart, JOB | {"name": "other"}]})
    assert "reads of its states fail (other)" in both


def test_plaintext_is_told_and_whether_a_policy_bounds_it() -> None:
    assert "All ports are plaintext" in notes(KAFKA)
    assert "no NetworkPolicy says who may" in notes(KAFKA)
    assert "no NetworkPolicy" not in notes(KAFKA | {"networkPolicy.enabled": True})

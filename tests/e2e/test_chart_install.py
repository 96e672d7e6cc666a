"""The chart against a real API server: what it takes, who may do what, what an upgrade rolls, what an uninstall leaves.

No image is needed: none of these pods has to run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import (
    CHART,
    JOB,
    KAFKA,
    SCENARIOS,
    SMALL,
    given,
    helm,
    names,
    pods,
    render,
    run_helm,
    scenario,
)
from tests.support.cluster import cluster, kubectl, kubectl_refused, listed, namespace, until

KINDS = {"servicemonitors": "ServiceMonitor", "podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"}


@pytest.fixture(scope="module")
def restricted() -> Iterator[str]:
    """A namespace that takes only pods of the restricted standard."""
    helm()
    with namespace("chart") as name:
        yield name


@pytest.fixture(scope="module")
def operator() -> Iterator[None]:
    """The kinds of the Prometheus operator, without the operator; those that are there already are left alone."""
    cluster()
    there = kubectl("get", "customresourcedefinitions", "--output", "name")
    made = [
        _definition(plural, kind) for plural, kind in KINDS.items() if f"{plural}.monitoring.coreos.com" not in there
    ]
    if made:
        kubectl("create", "--filename", "-", given=made)
        kubectl("wait", "--for=condition=Established", *(f"crd/{of['metadata']['name']}" for of in made))
    yield
    for of in made:
        kubectl("delete", "crd", of["metadata"]["name"], "--wait=false")


def _definition(plural: str, kind: str) -> dict[str, Any]:
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": anything}],
        },
    }


@contextlib.contextmanager
def installed(into: str, values: dict[str, Any]) -> Iterator[str]:
    """A release of its own namespace's name; its pods need not run."""
    run(["install", into, str(CHART), "--namespace", into, "--values", str(SMALL), *given([values])])
    try:
        yield into
    finally:
        run_helm("uninstall", into, "--namespace", into)


def run(arguments: list[str]) -> str:
    done = run_helm(*arguments, seconds=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_server_takes_every_scenario(path: Path, restricted: str, operator: None) -> None:
    """Helm's dry run asks the server for its kinds; kubectl's lets the server check every object."""
    dry = ["install", "keyhole", str(CHART), "--namespace", restricted, "--dry-run=server"]
    run([*dry, "--values", str(SMALL), "--values", str(path)])
    objects = [of | {"metadata": of["metadata"] | {"namespace": restricted}} for of in scenario(path)]
    for of in objects:
        for subject in of.get("subjects", ()):
            subject["namespace"] = restricted
    kubectl("apply", "--dry-run=server", "--filename", "-", given=objects)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_restricted_standard_takes_every_pod(path: Path, restricted: str) -> None:
    checked = []
    for number, of in enumerate(pods(scenario(path))):
        spec = dict(of.spec)
        # Admission looks for it before it looks at anything else.
        spec.pop("serviceAccountName", None)
        spec.pop("priorityClassName", None)
        for container in spec["containers"]:
            container.setdefault("image", "keyhole/spark-job:test")
        made = {volume["name"] for volume in spec["volumes"]}
        for name in {mount["name"] for one in of.containers for mount in one["volumeMounts"]} - made:
            # A claim that the StatefulSet, or Spark, adds.
            spec["volumes"] = [*spec["volumes"], {"name": name, "persistentVolumeClaim": {"claimName": name}}]
        metadata = {"name": f"pod-{number}", "namespace": restricted, "labels": of.metadata["labels"]}
        checked.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    assert kubectl("create", "--dry-run=server", "--filename", "-", given=checked).count("created") == len(checked)


def test_the_namespace_of_these_tests_refuses_what_is_not_restricted(restricted: str) -> None:
    """Or else the test above would prove nothing."""
    container = {"name": "a", "image": "keyhole/spark-job:test"}
    wrong = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": restricted},
        "spec": {"containers": [container]},
    }
    assert 'violates PodSecurity "restricted' in kubectl_refused(
        "create", "--dry-run=server", "--filename", "-", given=wrong
    )


def test_a_second_release_with_the_same_application_is_refused_by_name(restricted: str) -> None:
    [driver] = [
        of
        for of in render(KAFKA, {"jobs": [JOB]}, release="first", namespace=restricted)
        if (of["kind"], of["metadata"]["name"]) == ("Deployment", "first-temperature-monitor-driver")
    ]
    driver["spec"]["replicas"] = 0
    kubectl("create", "--namespace", restricted, "--filename", "-", given=driver)
    try:
        again = ["install", "second", str(CHART), "--namespace", restricted, "--dry-run=server", *given([KAFKA])]
        done = run_helm(*again, *given([{"jobs": [JOB]}]))
        assert done.returncode != 0
        assert (
            "the application temperature-monitor of jobs[temperature-monitor] is that of the release first"
            in done.stderr
        )
        run([*again, *given([{"jobs": [JOB | {"application": "another"}]}])])
    finally:
        kubectl("delete", "deployment", driver["metadata"]["name"], "--namespace", restricted)


def test_accounts_may_do_what_they_must_and_nothing_else() -> None:
    helm()
    with namespace("chart-rights") as name, installed(name, KAFKA | {"jobs": [JOB]}):

        def may(account: str, verb: str, *what: str) -> bool:
            subject = f"system:serviceaccount:{name}:{name}-{account}"
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": subject, "resourceAttributes": _attributes(name, verb, *what)},
            }
            answer = kubectl("create", "--filename", "-", "--output", "jsonpath={.status.allowed}", given=review)
            return answer == "true"

        scheduler = ("create", "get", "list", "watch", "delete", "deletecollection")
        assert [verb for verb in scheduler if may("discovery", verb, "pods")] == ["list", "watch"]
        assert all(may("temperature-monitor-driver", verb, "pods") for verb in scheduler)
        for account in ("discovery", "temperature-monitor-driver"):
            for what in (("secrets",), ("deployments", "apps"), ("roles", "rbac.authorization.k8s.io"), ("services",)):
                assert not any(may(account, verb, *what) for verb in ("get", "list", "create"))
            assert not may(account, "create", "pods/exec")
        assert not may("temperature-monitor-driver", "create", "persistentvolumeclaims")


def _attributes(namespace: str, verb: str, resource: str, group: str = "") -> dict[str, str]:
    resource, _, subresource = resource.partition("/")
    return {"namespace": namespace, "verb": verb, "resource": resource, "subresource": subresource, "group": group}


def test_an_upgrade_rolls_only_what_a_value_is_about_and_an_uninstall_leaves_only_claims() -> None:
    values = KAFKA | {
        "jobs": [JOB],
        "replica": {"enabled": True, "store": {"volume": "persistentClaim", "size": "1Gi"}},
        "networkPolicy.enabled": True,
    }
    helm()
    with namespace("chart-life") as name:

        def revisions(component: str) -> int:
            return len(listed(name, "replicasets", f"app.kubernetes.io/component={component}"))

        with installed(name, values):
            until(lambda: revisions("client-proxy") == revisions("spark-driver") == 1)
            upgrade = ["upgrade", name, str(CHART), "--namespace", name, "--values", str(SMALL)]
            run([*upgrade, *given([values, {"clientProxy.hopTimeoutSeconds": 0.3}])])
            until(lambda: revisions("client-proxy") == 2)
            assert revisions("spark-driver") == 1
            # It has seen the upgrade, if there was anything in it for it.
            [driver] = listed(name, "deployments", "app.kubernetes.io/component=spark-driver")
            assert driver["metadata"]["generation"] == 1
            run(
                [
                    *upgrade,
                    *given(
                        [values, {"clientProxy.hopTimeoutSeconds": 0.3, "jobs": [JOB | {"driver": {"memory": "2g"}}]}]
                    ),
                ]
            )
            until(lambda: revisions("spark-driver") == 2)
            assert revisions("client-proxy") == 2
            claims = {f"{name}-temperature-monitor-checkpoint", f"store-{name}-replica-0"}
            until(lambda: claims == {of["metadata"]["name"] for of in listed(name, "persistentvolumeclaims")})
        kinds = kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
        ours = ",".join(kind for kind in kinds if not kind.startswith("events"))

        def left() -> set[tuple[str, str]]:
            found = listed(name, ours, f"app.kubernetes.io/instance={name}") + listed(name, "secrets")
            return {(of["kind"], of["metadata"]["name"]) for of in found}

        until(lambda: left() == {("PersistentVolumeClaim", claim) for claim in claims})


def test_objects_of_one_release_are_told_from_those_of_another() -> None:
    """Names are the release's, and selectors too: two releases in one namespace don't meet."""
    first, second = (render(KAFKA, {"jobs": [JOB]}, release=release) for release in ("first", "second"))
    for kind in {of["kind"] for of in first}:
        assert not names(first, kind) & names(second, kind)
    for of in first:
        selector = of["spec"].get("selector", {}) if "spec" in of else {}
        wanted = selector.get("matchLabels", selector)
        for other in pods(second):
            assert not wanted or not wanted.items() <= other.metadata["labels"].items()

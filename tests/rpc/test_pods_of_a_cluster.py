"""Finding servers by the pods of a real Kubernetes API server: pods without a node, whose status the test writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from keyhole.discovery import FollowedServers, discovery_of
from keyhole.discovery.kubernetes.api import Api, connect_api
from keyhole.errors import InvalidConfiguration
from tests.support.cluster import kubectl, namespace
from tests.support.waiting import until

SELECTOR = "keyhole.dev/state-server=true,tier!=web"


@pytest.fixture
def space() -> Iterator[str]:
    with namespace("keyhole-discovery") as made:
        yield made


def start(space: str, name: str, address: str, *, phase: str = "Running", **labels: str) -> None:
    """A pod that no scheduler takes, with the status that a kubelet would give it."""
    hardened = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"keyhole.dev/state-server": "true", **labels}},
        "spec": {
            "schedulerName": "nobody",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "server", "image": "none:1", "securityContext": hardened}],
        },
    }
    kubectl("create", "--namespace", space, "--filename", "-", given=pod)
    report(space, name, address, phase)


def report(space: str, name: str, address: str, phase: str) -> None:
    """What a kubelet would say of the pod."""
    status = {"status": {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}}
    kubectl("patch", "pod", name, "--namespace", space, "--subresource=status", "--patch", json.dumps(status))


@contextmanager
def found(space: str, connect: object = connect_api) -> Iterator[FollowedServers]:
    spelled = f"kubernetes:7410?namespace={space}&selector={SELECTOR}"
    with closing(discovery_of(spelled, connect=connect)) as servers:  # type: ignore[arg-type]
        yield servers


def shows(servers: FollowedServers, *addresses: str) -> None:
    until(lambda: servers.known() == set(addresses), 30)


def as_service_account(space: str) -> Api:
    """The administrator, who acts for the namespace's default service account."""
    api = connect_api()
    api.client.set_default_header("Impersonate-User", f"system:serviceaccount:{space}:default")
    return api


def test_servers_come_and_go_with_the_pods_of_a_real_cluster(space: str) -> None:
    with found(space) as servers:
        assert servers.wait(30) == frozenset()
        start(space, "exec-1", "10.250.0.1")
        start(space, "web", "10.250.0.9", tier="web")
        shows(servers, "10.250.0.1:7410")
        start(space, "exec-2", "fd00:250::2", phase="Pending")
        shows(servers, "10.250.0.1:7410", "[fd00:250::2]:7410")
        report(space, "exec-2", "fd00:250::2", "Failed")
        shows(servers, "10.250.0.1:7410")
        kubectl("delete", "pod", "exec-1", "--namespace", space, "--now")
        shows(servers)


def test_a_pod_that_is_being_deleted_on_a_real_cluster_stays_until_it_is_gone(space: str) -> None:
    start(space, "exec-1", "10.250.0.1")
    held = '{"metadata":{"finalizers":["keyhole.dev/test"]}}'
    kubectl("patch", "pod", "exec-1", "--namespace", space, "--patch", held)
    with found(space) as servers:
        shows(servers, "10.250.0.1:7410")
        kubectl("delete", "pod", "exec-1", "--namespace", space, "--wait=false")
        until(
            lambda: "deletionTimestamp" in kubectl("get", "pod", "exec-1", "--namespace", space, "--output", "json"), 30
        )
        start(space, "exec-2", "10.250.0.2")
        shows(servers, "10.250.0.1:7410", "10.250.0.2:7410")
        kubectl("patch", "pod", "exec-1", "--namespace", space, "--patch", '{"metadata":{"finalizers":null}}')
        shows(servers, "10.250.0.2:7410")


def test_a_service_account_without_rights_is_told_which_and_with_them_finds_pods(space: str) -> None:
    start(space, "exec-1", "10.250.0.1")
    with found(space, lambda: as_service_account(space)) as servers:
        with pytest.raises(InvalidConfiguration) as caught:
            servers.wait(30)
        says = f"service account 'default' of namespace '{space}' may not list the resource pods in namespace '{space}'"
        assert says in caught.value.message
    kubectl("create", "role", "finds", "--namespace", space, "--verb=list", "--resource=pods")
    kubectl("create", "rolebinding", "finds", "--namespace", space, "--role=finds", f"--serviceaccount={space}:default")
    listing = found(space, lambda: as_service_account(space))
    with listing as servers, pytest.raises(InvalidConfiguration, match="may not watch the resource pods"):
        servers.wait(30)
    added = '[{"op":"add","path":"/rules/0/verbs/-","value":"watch"}]'
    kubectl("patch", "role", "finds", "--namespace", space, "--type=json", "--patch", added)
    with found(space, lambda: as_service_account(space)) as servers:
        assert servers.wait(30) == {"10.250.0.1:7410"}

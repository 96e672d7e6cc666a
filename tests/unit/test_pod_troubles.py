"""Containers that were killed or failed, and pods that don't run, as Kubernetes tells of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from keyhole import Client
from keyhole.cli import reads
from keyhole.cli.pod_status import pod_troubles
from keyhole.client.server_status import ServerStatus
from keyhole.discovery.following import FollowedServers
from keyhole.discovery.kubernetes.api import PodSource
from keyhole.discovery.kubernetes.pod_troubles import ContainerEnds, EndCause, WaitingPod, container_ends, waiting_pod
from keyhole.discovery.kubernetes.pods import NotOfKubernetes
from keyhole.discovery.parse import Pods
from keyhole.errors import InvalidConfiguration, MachineError, ServerLost
from tests.support.kubernetes_api import KubernetesApi, kubernetes_api
from tests.support.waiting import LONG_SECONDS, until

SELECTOR = "app.kubernetes.io/instance=keyhole"
EXECUTOR = {"containers": [{"name": "spark-executor", "resources": {"limits": {"memory": "2Gi"}}}]}


def ended(reason: str = "OOMKilled", code: int = 137, at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code, "finishedAt": at}}


def status(container: str = "spark-executor", **states: Any) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"name": container, **states}]}


def pod(name: str = "exec-1", **of: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}, **of}


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with kubernetes_api() as made:
        yield made


def test_what_has_ended_in_order_is_no_trouble() -> None:
    assert container_ends(pod(status=status(state=ended("Completed", 0)))) == []
    assert container_ends(pod(status={"phase": "Pending"})) == []
    assert container_ends(pod()) == []


def test_a_container_that_was_killed_tells_its_limit_and_one_that_failed_its_exit_code() -> None:
    (killed,) = container_ends(pod(spec=EXECUTOR, status=status(state=ended())))
    assert (killed.pod, killed.container, killed.cause) == ("exec-1", "spark-executor", EndCause.MEMORY)
    assert killed.how_it_ended == "killed for memory (OOMKilled), its limit is 2Gi"
    sidecar = {
        "initContainerStatuses": [{"name": "state-server", "state": {"running": {}}, "lastState": ended("Error", 2)}]
    }
    (failed,) = container_ends(pod(spec=EXECUTOR, status=sidecar))
    assert (failed.container, failed.cause) == ("state-server", EndCause.ERROR)
    assert failed.how_it_ended == "ended with exit code 2 (Error)"


def test_a_pod_that_waits_says_why() -> None:
    full = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient memory."}
    assert waiting_pod(pod(status={"phase": "Pending", "conditions": [full]})) == WaitingPod("exec-1", full["message"])
    no_image = status(state={"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}})
    assert waiting_pod(pod(status=no_image)) == WaitingPod("exec-1", "spark-executor: ImagePullBackOff: Back-off")
    assert waiting_pod(pod(status={"phase": "Pending"})) is not None
    assert waiting_pod(pod(status=status(state={"running": {}}))) is None


@pytest.mark.parametrize(
    "wrong",
    [{}, pod(status={"containerStatuses": [7]}), pod(status=status(state={"terminated": 7}))],
)
def test_what_is_no_pod_is_refused_as_that(wrong: dict[str, Any]) -> None:
    with pytest.raises(NotOfKubernetes):
        container_ends(wrong)


def test_each_end_counts_once_also_that_of_a_pod_that_is_deleted_at_once(
    api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    """As Spark deletes an executor's pod that has ended."""
    api.tell("old", spec=EXECUTOR, status=status(state=ended()))
    ends = ContainerEnds(["spark-executor", "driver"], "other")
    source = PodSource(Pods(0, None, SELECTOR), api.connect, keep=ends)

    def counted(container: str, cause: EndCause, count: int) -> None:
        until(lambda: ends.counts[container, cause] == count)

    with closing(FollowedServers((), [source], SELECTOR)) as followed, caplog.at_level(logging.WARNING):
        assert followed.wait(LONG_SECONDS) == frozenset()
        until(lambda: api.watching == 1)
        # The same end is told again and again; that of before the exporter's time doesn't count.
        api.tell("old", spec=EXECUTOR, status=status(state=ended()))
        api.tell("exec-1", spec=EXECUTOR, status=status(state=ended()))
        api.tell("exec-1", spec=EXECUTOR, status=status(state=ended()))
        api.delete("exec-1")
        counted("spark-executor", EndCause.MEMORY, 1)
        # While nobody watches: the next list has it.
        api.tell("driver", status=status("driver", state={"running": {}}))
        api.forget()
        api.drop()
        api.tell("driver", status=status("driver", state={"running": {}}, lastState=ended("Error", 1)))
        counted("driver", EndCause.ERROR, 1)
        api.tell("web", status=status("web", state=ended(at="2026-01-01T00:00:09Z")))
        counted("other", EndCause.MEMORY, 1)
        assert sum(ends.counts.values()) == 3
    assert "container spark-executor of pod exec-1: killed for memory (OOMKilled), its limit is 2Gi" in caplog.text
    assert "of pod old" not in caplog.text
    assert {query["labelSelector"] for _, query in api.asked} == {SELECTOR}


def test_the_command_line_lists_what_waits_and_what_has_ended(
    api: KubernetesApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.tell("exec-1", spec=EXECUTOR, status=status(state=ended()))
    api.tell("exec-2", status={"phase": "Pending"})
    api.tell("exec-3", status=status(state={"running": {}}))
    found = pod_troubles(SELECTOR, None, api.connect)
    assert json.loads(json.dumps(found)) == {
        "waiting_pods": [{"pod": "exec-2", "why": "it is pending, and Kubernetes doesn't say why yet"}],
        "ended_containers": [
            {
                "pod": "exec-1",
                "container": "spark-executor",
                "how": "killed for memory (OOMKilled), its limit is 2Gi",
                "finished": "2026-01-01T00:00:00Z",
            }
        ],
    }

    class Nobody:
        def status(self) -> list[ServerStatus]:
            return []

    reads.status(cast(Client, Nobody()), reads.OutputFormat(as_json=True), found)
    assert json.loads(capsys.readouterr().out) == {**found, "servers": []}
    reads.status(cast(Client, Nobody()), reads.OutputFormat(as_json=False), {**found, "waiting_pods": []})
    printed = capsys.readouterr().out
    assert "waiting pods: none\n" in printed
    assert "killed for memory (OOMKilled), its limit is 2Gi" in printed

    class Away:
        def status(self) -> list[ServerStatus]:
            raise ServerLost("proxy:7400 can't be reached")

    for as_json in (True, False):
        with pytest.raises(ServerLost):
            reads.status(cast(Client, Away()), reads.OutputFormat(as_json=as_json), found)
        said = capsys.readouterr().out
        assert "killed for memory (OOMKilled), its limit is 2Gi" in said
        if as_json:
            assert json.loads(said) == {**found, "servers": None, "error": "proxy:7400 can't be reached"}
    api.fail("list", 403, 'pods is forbidden: User "u" cannot list')
    with pytest.raises(InvalidConfiguration, match="may not list the resource pods"):
        pod_troubles(SELECTOR, "other", api.connect)
    api.fail("list", 500, "broken")
    with pytest.raises(MachineError, match="500: broken"):
        pod_troubles(SELECTOR, None, api.connect)

"""What `keyhole status --pods` adds: what Kubernetes says of the release's pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keyhole.discovery.kubernetes.api import ConnectApi, PodSource, connect_api
from keyhole.discovery.kubernetes.pod_troubles import container_ends, waiting_pod
from keyhole.discovery.kubernetes.pods import Json
from keyhole.discovery.parse import Pods

_NO_PORT = 0


class _ListedPods:
    """The pods as the API server has listed them."""

    def __init__(self) -> None:
        self.pods: Sequence[Json] = ()

    def listed(self, pods: list[Json]) -> None:
        self.pods = pods

    def changed(self, kind: str, pod: Json) -> None:
        raise AssertionError("pods are listed once, and not watched")

    def addresses(self) -> frozenset[str]:
        return frozenset()


def pod_troubles(
    selector: str, namespace: str | None, connect: ConnectApi = connect_api
) -> Mapping[str, list[dict[str, Any]]]:
    """Asks Kubernetes once.

    Args:
        selector: Of the pods' labels.
        namespace: None: that of this process, or of the file that KUBECONFIG names.

    Returns:
        `waiting_pods`: those that don't run yet; `ended_containers`: the last ends that were none in order, of pods
        that are still there. One dict for each, of texts and numbers.

    Raises:
        InvalidConfiguration: There is no API to connect to, or it refuses.
        MachineError: It does not answer.
    """
    listed = _ListedPods()
    PodSource(Pods(_NO_PORT, namespace, selector), connect, keep=listed).look()
    waiting = [found for pod in listed.pods if (found := waiting_pod(pod)) is not None]
    ends = [end for pod in listed.pods for end in container_ends(pod)]
    return {
        "waiting_pods": [{"pod": of.pod, "why": of.why} for of in waiting],
        "ended_containers": [
            {"pod": end.pod, "container": end.container, "how": end.how_it_ended, "finished": end.finished or None}
            for end in ends
        ],
    }

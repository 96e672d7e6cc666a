"""What pods say of their troubles: containers that have ended, and pods that don't run yet."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keyhole.discovery.kubernetes.pods import Json, NotOfKubernetes

_log = logging.getLogger(__name__)

OOM_KILLED = "OOMKilled"


class EndCause(enum.StrEnum):
    """Why a container has ended."""

    MEMORY = "memory"
    """The kernel has killed it: it had as much as its limit allows."""
    ERROR = "error"
    """Its exit code is not 0."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """One end of a container that was none in order.

    Attributes:
        pod, container: Their names.
        uid: The pod's.
        reason: In Kubernetes' words.
        exit_code: 137 after a SIGKILL.
        finished: When, as Kubernetes writes it; empty: it doesn't say.
        limit: Of its memory, as the pod's spec has it; empty: none.
    """

    pod: str
    uid: str
    container: str
    reason: str
    exit_code: int
    finished: str
    limit: str

    @property
    def cause(self) -> EndCause:
        return EndCause.MEMORY if self.reason == OOM_KILLED else EndCause.ERROR

    @property
    def how_it_ended(self) -> str:
        """How it ended, in words for a person, behind the names of container and pod."""
        if self.cause is EndCause.MEMORY:
            return f"killed for memory ({OOM_KILLED}), its limit is {self.limit or 'none'}"
        return f"ended with exit code {self.exit_code} ({self.reason or 'no reason given'})"


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that does not run yet, and why, in Kubernetes' words."""

    pod: str
    why: str


def container_ends(pod: Json) -> list[ContainerEnd]:
    """The last ends of the pod's containers, as far as it tells; those in order are left out.

    Raises:
        NotOfKubernetes: It is no pod.
    """
    with _of_kubernetes():
        metadata, status = pod["metadata"], pod.get("status") or {}
        limits = _limits(pod.get("spec") or {})
        found = []
        for container in _statuses(status):
            for state in (container.get("state"), container.get("lastState")):
                terminated = (state or {}).get("terminated")
                if not terminated or not (terminated.get("exitCode") or terminated.get("reason") == OOM_KILLED):
                    continue
                found.append(
                    ContainerEnd(
                        pod=metadata["name"],
                        uid=metadata.get("uid") or metadata["name"],
                        container=container["name"],
                        reason=terminated.get("reason") or "",
                        exit_code=int(terminated.get("exitCode") or 0),
                        finished=terminated.get("finishedAt") or "",
                        limit=limits.get(container["name"], ""),
                    )
                )
        return found


def waiting_pod(pod: Json) -> WaitingPod | None:
    """The pod, where it is not scheduled, or a container of it waits. Raises NotOfKubernetes."""
    with _of_kubernetes():
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        for condition in status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return WaitingPod(name, condition.get("message") or condition.get("reason") or "it is not scheduled")
        for container in _statuses(status):
            waiting = (container.get("state") or {}).get("waiting")
            # That of a container whose pod waits for a sidecar says nothing of its own.
            if waiting and waiting.get("reason") != "PodInitializing":
                said = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
                return WaitingPod(name, f"{container['name']}: {said or 'it waits'}")
        if status.get("phase") == "Pending":
            return WaitingPod(name, "it is pending, and Kubernetes doesn't say why yet")
        return None


class ContainerEnds:
    """How many containers have ended since the pods were first listed: what a PodSource is to keep. Any thread may read
    `counts`.

    Spark deletes an executor's pod once that has ended: only who watches hears of it.

    Args:
        containers: Those that are counted by their names.
        other: What all others are counted as.
    """

    def __init__(self, containers: Collection[str], other: str) -> None:
        self._containers = frozenset(containers)
        self._other = other
        self._counts: Counter[tuple[str, EndCause]] = Counter(
            {(container, cause): 0 for container in (*containers, other) for cause in EndCause}
        )
        self._seen: dict[str, set[tuple[str, str, str]]] = {}
        self._listed = False

    @property
    def counts(self) -> Mapping[tuple[str, EndCause], int]:
        """By container and cause, also those that are 0."""
        return self._counts

    def listed(self, pods: list[Json]) -> None:
        """All pods that there are now. What the first list has was before our time."""
        before, self._seen = self._seen, {}
        for pod in pods:
            ends = container_ends(pod)
            uid = _uid(pod)
            self._seen[uid] = before.get(uid, set()) if self._listed else {_key(end) for end in ends}
            self._note(uid, ends)
        self._listed = True

    def changed(self, kind: str, pod: Json) -> None:
        """One event of a watch."""
        uid = _uid(pod)
        self._note(uid, container_ends(pod))
        if kind == "DELETED":
            self._seen.pop(uid, None)

    def addresses(self) -> frozenset[str]:
        """None: it finds no servers."""
        return frozenset()

    def _note(self, uid: str, ends: Iterable[ContainerEnd]) -> None:
        seen = self._seen.setdefault(uid, set())
        for end in ends:
            if _key(end) in seen:
                continue
            seen.add(_key(end))
            _log.warning(
                "container %s of pod %s: %s",
                end.container,
                end.pod,
                end.how_it_ended,
                extra={"pod": end.pod, "container": end.container, "reason": end.reason, "exit_code": end.exit_code},
            )
            container = end.container if end.container in self._containers else self._other
            self._counts[container, end.cause] += 1


def _key(end: ContainerEnd) -> tuple[str, str, str]:
    return end.container, end.reason, end.finished


def _uid(pod: Json) -> str:
    with _of_kubernetes():
        return str(pod["metadata"].get("uid") or pod["metadata"]["name"])


def _statuses(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _limits(spec: Mapping[str, Any]) -> dict[str, str]:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return {
        container["name"]: str(((container.get("resources") or {}).get("limits") or {}).get("memory") or "")
        for container in containers
    }


@contextlib.contextmanager
def _of_kubernetes() -> Iterator[None]:
    try:
        yield
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise NotOfKubernetes("a pod without the shape of one") from error

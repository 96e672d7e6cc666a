"""What the Kubernetes API says of pods, and which addresses follow from it. Pure: JSON values in, addresses out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from keyhole.addresses import joined

Json = Mapping[str, Any]


class KeptPods(Protocol):
    """What is kept of pods, after a list and the events since."""

    def listed(self, pods: list[Json]) -> None:
        """Takes the place of all that was known: the API server has listed every pod."""

    def changed(self, kind: str, pod: Json) -> None:
        """One event of a watch."""

    def addresses(self) -> frozenset[str]:
        """host:port of each server among them."""


_ENDED = ("Succeeded", "Failed")


class NotOfKubernetes(ValueError):
    """What was answered is not what the Kubernetes API answers."""


class PodSet:
    """The pods of one namespace and selector, after a list and the events since.

    A pod that is being deleted stays until it is gone: its state server drains, and answers meanwhile. One that has no
    address yet, or has ended, is known but has no server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._hosts: dict[str, str] = {}

    def listed(self, pods: list[Json]) -> None:
        """Takes the place of all that was known: the API server has listed every pod."""
        self._hosts = dict(_name_and_host(pod) for pod in pods)

    def changed(self, kind: str, pod: Json) -> None:
        """One event of a watch.

        Raises:
            NotOfKubernetes: It is none.
        """
        name, host = _name_and_host(pod)
        if kind in ("ADDED", "MODIFIED"):
            self._hosts[name] = host
        elif kind == "DELETED":
            self._hosts.pop(name, None)
        else:
            raise NotOfKubernetes(f"an event of type {kind!r}")

    def addresses(self) -> frozenset[str]:
        """host:port of each pod that may hold a server."""
        return frozenset(joined(host, self._port) for host in self._hosts.values() if host)


def _name_and_host(pod: Json) -> tuple[str, str]:
    """The host is empty where there is no server."""
    try:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        phase, host = status.get("phase"), status.get("podIP") or ""
    except (TypeError, KeyError, AttributeError) as error:
        raise NotOfKubernetes("a pod without a name, or without the shape of one") from error
    if not (isinstance(name, str) and isinstance(host, str)):
        raise NotOfKubernetes("a pod whose name or address is no text")
    return name, "" if phase in _ENDED else host


def version_of(thing: Json) -> str:
    """The resourceVersion of a list, an object or a bookmark.

    Raises:
        NotOfKubernetes: It has none.
    """
    try:
        version = thing["metadata"]["resourceVersion"]
    except (TypeError, KeyError) as error:
        raise NotOfKubernetes("something without a resourceVersion") from error
    if not (isinstance(version, str) and version):
        raise NotOfKubernetes("something with an empty resourceVersion")
    return version

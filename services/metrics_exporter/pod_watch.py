"""Which containers have ended, as the Kubernetes API tells of their pods."""

from __future__ import annotations

import asyncio

from keyhole.discovery import FollowedServers
from keyhole.discovery.kubernetes.api import ConnectApi, PodSource, connect_api
from keyhole.discovery.kubernetes.pod_troubles import ContainerEnds
from keyhole.discovery.parse import Pods
from keyhole.metrics.cardinality import OTHER
from keyhole.metrics.labels import CONTAINERS
from services.metrics_exporter.followed_discovery import FollowedDiscovery

_NO_PORT = 0


class PodWatch:
    """Watches the pods of a selector. Event loop's thread only; `ends` is kept by a thread of its own.

    Args:
        selector: Of labels, as Kubernetes writes it.
    """

    def __init__(self, selector: str, connect: ConnectApi = connect_api) -> None:
        self.ends = ContainerEnds(CONTAINERS, OTHER)
        source = PodSource(Pods(_NO_PORT, None, selector), connect, keep=self.ends)
        self._pods = FollowedServers((), [source], f"pods {selector}")
        self._followed = FollowedDiscovery(self._pods, self._heard)

    def start(self) -> None:
        """Begins to watch the pods, in a thread of its own."""
        self._followed.start()

    @property
    def following(self) -> asyncio.Task[None]:
        """Ends only with the error of an API server that refuses; known after `start`."""
        return self._followed.task

    async def stop(self) -> None:
        """Waits for nothing that the API server says any more."""
        await self._followed.stop()

    def close(self) -> None:
        """Ends its thread, without waiting for it."""
        self._pods.close()

    async def _heard(self, _: frozenset[str]) -> None:
        """Where pods are is nothing to it: `ends` has heard all that their API says."""

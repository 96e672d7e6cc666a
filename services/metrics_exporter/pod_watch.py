"""Which containers have ended, as the Kubernetes API tells of their pods."""

from __future__ import annotations

import asyncio
import contextlib

from keyhole.discovery import FollowedServers
from keyhole.discovery.kubernetes.api import ConnectApi, PodSource, connect_api
from keyhole.discovery.kubernetes.pod_troubles import ContainerEnds
from keyhole.discovery.parse import Pods
from keyhole.errors import KeyholeError
from keyhole.metrics.cardinality import OTHER
from keyhole.metrics.labels import CONTAINERS

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
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch the pods, in a thread of its own."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    @property
    def following(self) -> asyncio.Task[None]:
        """Ends only with the error of an API server that refuses; known after `start`."""
        assert self._task is not None
        return self._task

    async def stop(self) -> None:
        """Waits for nothing that the API server says any more."""
        if self._task is not None:
            self._task.cancel()
            # What it was refused is for who runs the exporter, not for who ends it.
            with contextlib.suppress(asyncio.CancelledError, KeyholeError):
                await self._task

    def close(self) -> None:
        """Ends its thread, without waiting for it."""
        self._pods.close()

    async def _follow(self) -> None:
        async for _ in self._pods.addresses():
            pass

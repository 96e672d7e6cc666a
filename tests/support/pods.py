"""State servers as pods: each has an address of its own on the loopback network, and the Kubernetes API tells of it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from keyhole.clock import SystemClock
from keyhole.config import ClientProxyConfig, StateServerConfig
from keyhole.discovery import FollowedServers
from keyhole.discovery.parse import Pods
from keyhole.local.ports import free_ports
from keyhole.protocol.failpoints import NoObserver
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from services.client_proxy.app import ClientProxy
from services.state_server.app import StateServer
from tests.support.kubernetes_api import KubernetesApi, found_by, kubernetes_api

_Result = TypeVar("_Result")


class PodServers:
    """Servers in an event loop of their own, in a thread; all else may be called by any thread."""

    def __init__(self, api: KubernetesApi, kafka: MemoryKafka) -> None:
        self.api = api
        self.kafka = kafka
        (self.port,) = free_ports(1)
        self.running: dict[str, StateServer] = {}
        self.hosts: dict[str, str] = {}
        self._numbers = itertools.count(2)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """In the servers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self, name: str) -> str:
        """A new pod, at an address that no pod had before."""
        host = f"127.0.0.{next(self._numbers)}"

        async def start() -> StateServer:
            config = StateServerConfig(
                bootstrap_servers="memory", id=name, host=host, port=self.port, drain_seconds=20, lease_seconds=2
            )
            server = StateServer(config, MemoryEngine(), self._changelog, SystemClock(), NoObserver())
            await server.start()
            return server

        self.running[name], self.hosts[name] = self.run(start()), host
        self.api.put(name, host, "Pending")
        self.api.put(name, host)
        return host

    def kill(self, name: str) -> None:
        """The pod is gone from one moment to the next."""
        server = self.running.pop(name)
        self.run(server._rpc.stop(0))
        self.api.delete(name)
        self.run(server.close())

    def end(self, name: str) -> None:
        """The pod is deleted: its server drains until others have its key groups, and then the pod is gone."""
        self.api.put(name, self.hosts[name], deleting=True)
        server = self.running.pop(name)
        self.run(server._drain())
        self.run(server.stop())
        self.api.delete(name)

    def addresses(self) -> dict[str, str]:
        """Of those that run."""
        return {name: f"{self.hosts[name]}:{self.port}" for name in self.running}

    @contextmanager
    def found(self) -> Iterator[FollowedServers]:
        """A discovery of them."""
        with found_by(self.api, Pods(self.port)) as servers:
            yield servers

    @contextmanager
    def proxy(self) -> Iterator[str]:
        """The address of a proxy that finds them."""
        with self.found() as found:

            async def start() -> ClientProxy:
                proxy = ClientProxy(ClientProxyConfig(servers=(found.described,), port=0), found, SystemClock())
                await proxy.start()
                return proxy

            proxy = self.run(start())
            try:
                yield proxy.address
            finally:
                self.run(proxy.stop(0))

    def close(self) -> None:
        """Ends all of them, and the loop."""
        for name in list(self.running):
            self.kill(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _changelog(self, application: str) -> MemoryChangelog:
        return MemoryChangelog(self.kafka, application)


@contextmanager
def pod_servers() -> Iterator[PodServers]:
    """None yet; closed at the end."""
    with kubernetes_api() as api:
        servers = PodServers(api, MemoryKafka())
        try:
            yield servers
        finally:
            servers.close()

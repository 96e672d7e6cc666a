"""A real Kafka, state servers and proxies for a benchmark, each in its own process; all gone when it ends."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server


@dataclass(frozen=True)
class Cluster:
    """Addresses as host:port."""

    directory: Path
    bootstrap_servers: str
    servers: tuple[str, ...]
    proxy: str
    children: list[Child]
    """The servers' processes."""

    def start_again(self, number: int) -> None:
        """A server that has ended, on its old port and with its old store."""
        self.children[number] = _server(number, self.servers[number], self.bootstrap_servers, self.directory)


def _server(number: int, address: str, bootstrap_servers: str, directory: Path) -> Child:
    return start_state_server(
        f"server-{number}",
        int(address.rpartition(":")[2]),
        bootstrap_servers=bootstrap_servers,
        directory=directory,
        environ=dict(os.environ),
    )


@contextlib.contextmanager
def cluster(servers: int = 1) -> Iterator[Cluster]:
    """Starts everything, and the proxy last: it is healthy once it has reached a state server."""
    java = find_java(os.environ)
    jars = fetch(JarSet.KAFKA, default_cache_dir(os.environ))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyhole-benchmark-")))
        kafka = stack.enter_context(LocalKafka(directory / "kafka", jars, java))
        ports = free_ports(servers + 1)
        addresses = tuple(f"127.0.0.1:{port}" for port in ports[:-1])
        children: list[Child] = []
        stack.callback(lambda: [child.kill() for child in children])
        for number, address in enumerate(addresses):
            children.append(_server(number, address, kafka.bootstrap_servers, directory))
        proxy = start_client_proxy("proxy", ports[-1], servers=addresses, directory=directory, environ=dict(os.environ))
        stack.callback(proxy.terminate)
        yield Cluster(directory, kafka.bootstrap_servers, addresses, f"127.0.0.1:{ports[-1]}", children)

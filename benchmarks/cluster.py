"""A real Kafka, state servers and proxies for a benchmark, each in its own process; all gone when it ends."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.testing.network import Network


@dataclass(frozen=True)
class Cluster:
    """Addresses as host:port.

    Attributes:
        servers: Where the proxy and drivers reach them.
        children: The servers' processes.
        links: To the relayed servers, named by their addresses; each may be cut.
        ports: That the servers listen on.
        pids: Of the processes that were started, by their names.
        lookup_ports: Of the servers; none: they have none.
        readers: How many processes of each server answer there.
    """

    directory: Path
    bootstrap_servers: str
    servers: tuple[str, ...]
    proxy: str
    children: list[Child]
    links: Network
    ports: tuple[int, ...]
    pids: Mapping[str, int]
    lookup_ports: tuple[int, ...] = ()
    readers: int = 1

    def start_again(self, number: int) -> None:
        """A server that has ended, on its old port and with its old store."""
        lookup_port = self.lookup_ports[number] if self.lookup_ports else 0
        self.children[number] = _server(
            number, self.ports[number], self.bootstrap_servers, self.directory, lookup_port, self.readers
        )


def _server(
    number: int, port: int, bootstrap_servers: str, directory: Path, lookup_port: int = 0, readers: int = 1
) -> Child:
    lookups = {"KEYHOLE_STATE_SERVER_LOOKUPS": f"127.0.0.1:{lookup_port}"} if lookup_port else {}
    lookups["KEYHOLE_STATE_SERVER_READER_PROCESSES"] = str(readers)
    return start_state_server(
        f"server-{number}",
        port,
        bootstrap_servers=bootstrap_servers,
        directory=directory,
        environ={**os.environ, **lookups},
    )


@contextlib.contextmanager
def cluster(servers: int = 1, *, relayed: int = 0, by_port: bool = False, readers: int = 1) -> Iterator[Cluster]:
    """Starts everything, and the proxy last: it is healthy once it has reached a state server.

    Args:
        relayed: So many servers, the first ones, are reached through links.
        by_port: Each has a lookup port.
        readers: With that, how many processes of each server answer there.
    """
    java = find_java(os.environ)
    jars = fetch(JarSet.KAFKA, default_cache_dir(os.environ))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyhole-benchmark-")))
        kafka = stack.enter_context(LocalKafka(directory / "kafka", jars, java))
        proxy_port, *free = free_ports(1 + servers + relayed)
        ports, relays = free[:servers], free[servers:]
        lookup_ports = tuple(free_ports(servers)) if by_port else ()
        addresses = tuple(f"127.0.0.1:{port}" for port in (*relays, *ports[relayed:]))
        links = stack.enter_context(contextlib.closing(Network()))
        for number, relay in enumerate(relays):
            links.link(addresses[number], relay, ports[number])
        children: list[Child] = []
        stack.callback(lambda: [child.kill() for child in children])
        for number, port in enumerate(ports):
            lookup_port = lookup_ports[number] if by_port else 0
            children.append(_server(number, port, kafka.bootstrap_servers, directory, lookup_port, readers))
        proxy = start_client_proxy(
            "proxy", proxy_port, servers=addresses, directory=directory, environ=dict(os.environ)
        )
        stack.callback(proxy.terminate)
        yield Cluster(
            directory,
            kafka.bootstrap_servers,
            addresses,
            f"127.0.0.1:{proxy_port}",
            children,
            links,
            tuple(ports),
            {child.name: child.pid for child in (*children, proxy)} | {"kafka": kafka.pid or 0},
            lookup_ports,
            readers,
        )

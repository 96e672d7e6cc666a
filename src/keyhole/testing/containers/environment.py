"""Kafka, state servers and a client proxy on one network, for the tests of a service that reads states."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from testcontainers.core.network import Network

from keyhole.client import Client
from keyhole.config import JobConfig
from keyhole.testing.containers.container import (
    ClientProxyContainer,
    KeyholeKafka,
    StateServerContainer,
    image_of,
)
from keyhole.testing.writer import Fields, Writer

_EPOCH_SECONDS = 120.0
TARGETS = ("kafka", "state-server", "client-proxy")


class KeyholeContainers:
    """See the module's text; docs/testing.md has an example. A context manager; leaves nothing behind.

    One thread at a time starts, stops and writes; any number may read.

    Args:
        images: By target (TARGETS): the image's name. Default: keyhole/<target>:<the installed version>.
        servers: How many state servers.
        environ: By target: further settings of its containers.

    Attributes:
        network: Where a container of your own can join, `Container(...).with_network(network)`.
        kafka, state_servers, proxy: The containers, to be killed and started again; made by `start`.
    """

    network: Network
    kafka: KeyholeKafka
    state_servers: tuple[StateServerContainer, ...]
    proxy: ClientProxyContainer

    def __init__(
        self,
        images: Mapping[str, str] | None = None,
        *,
        servers: int = 1,
        environ: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._images = {target: image_of(target) for target in TARGETS} | dict(images or {})
        self._servers = servers
        self._environ = {target: (environ or {}).get(target, {}) for target in TARGETS}
        self._writers: dict[tuple[str, str], Writer] = {}
        self._stack = contextlib.ExitStack()

    def start(self) -> Self:
        """Starts everything, one after the other (about 10 s); returns when the proxy serves.

        Raises:
            MachineError: A container ended or does not serve; the message has the end of its log.
        """
        with contextlib.ExitStack() as stack:
            self.network = stack.enter_context(Network())
            # Else its connection to Docker stays open until it is collected.
            stack.callback(self.network._docker.client.close)
            self.kafka = stack.enter_context(
                KeyholeKafka(self._images["kafka"], network=self.network, environ=self._environ["kafka"])
            )
            self.state_servers = tuple(
                stack.enter_context(
                    StateServerContainer(
                        self.kafka.inside_address,
                        self._images["state-server"],
                        network=self.network,
                        alias=f"keyhole-state-server-{number}",
                        environ=self._environ["state-server"],
                    )
                )
                for number in range(self._servers)
            )
            self.proxy = stack.enter_context(
                ClientProxyContainer(
                    ",".join(server.inside_address for server in self.state_servers),
                    self._images["client-proxy"],
                    network=self.network,
                    environ=self._environ["client-proxy"],
                )
            )
            # First of all: they speak to the others.
            stack.callback(self._close_writers)
            self._stack = stack.pop_all()
        return self

    def stop(self) -> None:
        """Removes all of it. Idempotent."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def proxy_address(self) -> str:
        """Where this process finds the proxy, as host:port. For containers: `proxy.inside_address`."""
        return self.proxy.address

    @property
    def bootstrap_servers(self) -> str:
        """Where this process finds Kafka, as host:port. For containers: `kafka.inside_address`."""
        return self.kafka.address

    def client(self, *, timeout: float = 5.0) -> Client:
        """A client of the proxy; the caller closes it. `timeout`: as Client takes it."""
        return Client(self.proxy_address, timeout=timeout)

    def config(self, application: str) -> JobConfig:
        """The configuration of a Writer, or of a Spark job in this process: `queryable.value(..., config=...)`."""
        return JobConfig(
            application,
            tuple(server.address for server in self.state_servers),
            self.bootstrap_servers,
            epoch_deadline_seconds=_EPOCH_SECONDS,
            proxy=self.proxy_address,
        )

    def writer(self, application: str, state: str, **declared: Any) -> Writer:
        """The writer of a state, closed with the containers. `declared`: as Writer takes it; only the first time."""
        if (application, state) not in self._writers:
            self._writers[application, state] = Writer(self.config(application), state, **declared)
        return self._writers[application, state]

    def write(
        self,
        application: str,
        state: str,
        rows: Sequence[Fields],
        *,
        key: str | Sequence[str],
        delete: Sequence[Fields] = (),
        **declared: Any,
    ) -> int:
        """Makes one epoch of the rows; returns its number once the proxy's readers see it. See Writer.write."""
        return self.writer(application, state, key=key, **declared).write(rows, delete=delete)

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

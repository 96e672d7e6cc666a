"""Keyhole's images as testcontainers: one class per deployable."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from typing import Self

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from keyhole.config import DEFAULT_PROXY_PORT, DEFAULT_STATE_SERVER_PORT
from keyhole.errors import MachineError
from keyhole.local import kafka_container
from keyhole.local.ports import free_ports
from keyhole.local.processes import last_words
from keyhole.rpc import health_check

_OUTSIDE_PORT = 9094
# Kafka takes 5 s on a quiet machine, and more than a minute on one that does much else.
_START_SECONDS = 180.0
_POLL_SECONDS = 0.1
_LOOPBACK = "127.0.0.1"


def image_of(target: str) -> str:
    """The name that the Dockerfile's page gives an image of this version: keyhole/<target>:<version>."""
    return f"keyhole/{target}:{importlib.metadata.version('keyhole-spark')}"


class KeyholeContainer(DockerContainer):
    """What all of them have: a root that can't be written, no privileges, one host port for life, a wait.

    The port on the host is chosen before the start and stays the same when the container is killed and started again.
    `start` returns when the service does what it is for, or says why not.
    """

    def __init__(
        self, image: str, port: int, *, network: Network | None, alias: str, environ: Mapping[str, str]
    ) -> None:
        super().__init__(image, env=dict(environ))
        self.alias = alias
        self._inside_port = port
        (self._port,) = free_ports(1)
        self.with_bind_ports(port, self._port)
        self.with_tmpfs_mount("/tmp")  # noqa: S108 - the container's own
        self.with_kwargs(read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"])
        if network is not None:
            self.with_network(network).with_network_aliases(alias)

    @property
    def address(self) -> str:
        """Where this process finds the container's port, as host:port."""
        return f"{self._host()}:{self._port}"

    @property
    def inside_address(self) -> str:
        """host:port for other containers in its network."""
        return f"{self.alias}:{self._inside_port}"

    def start(self) -> Self:
        """Creates and starts the container, and waits until it serves.

        Raises:
            MachineError: It ended, or does not serve within three minutes; the message has the end of its log.
        """
        super().start()
        self.wait_until_it_serves()
        return self

    def kill(self) -> None:
        """SIGKILL. Its volume stays; `start_again` begins with it."""
        self.get_wrapped_container().kill("SIGKILL")
        self.get_wrapped_container().wait()

    def stop_orderly(self, timeout_seconds: int = 30) -> None:
        """SIGTERM, and SIGKILL after the timeout. `start_again` begins with its volume."""
        self.get_wrapped_container().stop(timeout=timeout_seconds)

    def start_again(self) -> None:
        """After `kill` or `stop_orderly`: the same container on the same port. Raises as `start`."""
        self.get_wrapped_container().start()
        self.wait_until_it_serves()

    def wait_until_it_serves(self, timeout_seconds: float = _START_SECONDS) -> None:
        """Blocks until the container answers on its port. Raises as `start`."""
        until = time.monotonic() + timeout_seconds
        while not self._serves():
            if (code := self.exit_code) is not None:
                raise MachineError(
                    f"{self.image} ended with exit code {code}:\n{last_words(self.output())}", exit_code=code
                )
            if time.monotonic() > until:
                raise MachineError(
                    f"{self.image} did not serve within {timeout_seconds:g} s:\n{last_words(self.output())}"
                )
            time.sleep(_POLL_SECONDS)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the container's process, asked for anew; None while it runs."""
        container = self.get_wrapped_container()
        container.reload()
        state = container.attrs["State"]
        return None if state["Running"] else int(state["ExitCode"])

    def output(self) -> str:
        """What it has printed since it was created."""
        return b"".join(self.get_logs()).decode(errors="replace")

    def _serves(self) -> bool:
        raise NotImplementedError

    def _host(self) -> str:
        # Where localhost is ::1 first, a server that listens on IPv4 alone would be found only at the second try.
        host = self.get_docker_client().host()
        return _LOOPBACK if host == "localhost" else host


class KeyholeKafka(KeyholeContainer):
    """A Kafka of one node, with what Keyhole needs of it. `address` is the bootstrap servers for this process."""

    def __init__(
        self,
        image: str | None = None,
        *,
        network: Network | None = None,
        alias: str = "keyhole-kafka",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(image or image_of("kafka"), _OUTSIDE_PORT, network=network, alias=alias, environ=environ or {})
        self.with_env("KEYHOLE_KAFKA_ADVERTISE", self.inside_address)
        self.with_env("KEYHOLE_KAFKA_OUTSIDE", self.address)

    @property
    def inside_address(self) -> str:
        """The bootstrap servers for other containers in its network."""
        return f"{self.alias}:9092"

    def _serves(self) -> bool:
        return kafka_container.answers(self._port, self._host())


class StateServerContainer(KeyholeContainer):
    """A state server. It owns nothing before a job or a Writer gives it key groups.

    Args:
        bootstrap_servers: Kafka, as seen from the container: KeyholeKafka's `inside_address`.
        environ: Further KEYHOLE_STATE_SERVER_* (docs/configuration.md).
    """

    def __init__(
        self,
        bootstrap_servers: str,
        image: str | None = None,
        *,
        network: Network | None = None,
        alias: str = "keyhole-state-server",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        settings = {
            "KEYHOLE_STATE_SERVER_BOOTSTRAP_SERVERS": bootstrap_servers,
            "KEYHOLE_STATE_SERVER_ID": alias,
            "KEYHOLE_STATE_SERVER_HOST": "0.0.0.0",  # noqa: S104 - of the container
            "KEYHOLE_STATE_SERVER_PLAINTEXT": "allow",
            "KEYHOLE_STATE_SERVER_ADVERTISE": f"{alias}:{DEFAULT_STATE_SERVER_PORT}",
            # A test need not wait for others to take over what a stopping server owns.
            "KEYHOLE_STATE_SERVER_DRAIN_SECONDS": "1",
        }
        super().__init__(
            image or image_of("state-server"),
            DEFAULT_STATE_SERVER_PORT,
            network=network,
            alias=alias,
            environ=settings | dict(environ or {}),
        )

    def _serves(self) -> bool:
        return not health_check.trouble_at(self.address, alive=True)


class ClientProxyContainer(KeyholeContainer):
    """A client proxy. It serves once it has reached one of its servers.

    Args:
        servers: The state servers, as seen from the container: their `inside_address`es, separated by commas.
        environ: Further KEYHOLE_CLIENT_PROXY_* (docs/configuration.md).
    """

    def __init__(
        self,
        servers: str,
        image: str | None = None,
        *,
        network: Network | None = None,
        alias: str = "keyhole-proxy",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        settings = {
            "KEYHOLE_CLIENT_PROXY_SERVERS": servers,
            "KEYHOLE_CLIENT_PROXY_HOST": "0.0.0.0",  # noqa: S104 - of the container
            "KEYHOLE_CLIENT_PROXY_PLAINTEXT": "allow",
        }
        super().__init__(
            image or image_of("client-proxy"),
            DEFAULT_PROXY_PORT,
            network=network,
            alias=alias,
            environ=settings | dict(environ or {}),
        )

    def _serves(self) -> bool:
        return not health_check.trouble_at(self.address)

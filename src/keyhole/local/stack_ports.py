"""Where the processes of one machine's Keyhole listen."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.config import (
    DEFAULT_EXPORTER_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_PROXY_PORT,
    DEFAULT_STATE_SERVER_PORT,
)

HOST = "127.0.0.1"


@dataclass(frozen=True)
class StackPorts:
    """Where each listens, or is to listen, on loopback. Of Kafka's, 0 is any free one."""

    kafka: int = 0
    servers: tuple[int, ...] = (DEFAULT_STATE_SERVER_PORT,)
    proxy: int = DEFAULT_PROXY_PORT
    http: int = DEFAULT_HTTP_PORT
    exporter: int = DEFAULT_EXPORTER_PORT

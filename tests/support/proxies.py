"""Fake servers and real proxies inside a test's event loop, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from keyhole.clock import SystemClock
from keyhole.config import ClientProxyConfig
from keyhole.discovery import Discovery, StaticDiscovery
from keyhole.local.ports import free_ports
from keyhole.testing.fake_server import FakeServer
from services.client_proxy.app import ClientProxy
from tests.support.waiting import LONG_SECONDS


@asynccontextmanager
async def fake_servers(*names: str) -> AsyncIterator[list[FakeServer]]:
    """Started fakes, stopped at the end. Who starts one again at the port of another finds it free."""
    servers = [FakeServer(name, port) for name, port in zip(names, free_ports(len(names)), strict=True)]
    for server in servers:
        await server.start()
    try:
        yield servers
    finally:
        for server in servers:
            await server.stop()


@asynccontextmanager
async def proxy_of(
    *addresses: str,
    timeout_seconds: float = LONG_SECONDS,
    hop_seconds: float = LONG_SECONDS,
    hedge_quantile: float = 0.0,
    discovery: Discovery | None = None,
    http: str = "",
    http_origins: tuple[str, ...] = (),
    http_hosts: tuple[str, ...] = (),
    applications: tuple[str, ...] = (),
    drain_seconds: float = 5.0,
    security: Mapping[str, str] | None = None,
) -> AsyncIterator[ClientProxy]:
    """A started proxy, which may not have reached its servers yet.

    Args:
        timeout_seconds: Of reads that bring none.
        hop_seconds: Default: no server is silent, however slow the machine is.
        discovery: Default: of the addresses.
        security: Settings of ClientProxyConfig.
    """
    given: Mapping[str, Any] = security or {}
    config = ClientProxyConfig(
        servers=addresses,
        port=0,
        default_timeout_seconds=timeout_seconds,
        hop_timeout_seconds=hop_seconds,
        hedge_quantile=hedge_quantile,
        http=http,
        http_origins=http_origins,
        http_hosts=http_hosts,
        applications=applications,
        drain_seconds=drain_seconds,
        **given,
    )
    proxy = ClientProxy(config, discovery or StaticDiscovery(addresses), SystemClock())
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop(0)


@contextmanager
def unused_address() -> Iterator[str]:
    """host:port that nobody listens on for as long as this is open: it is bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"

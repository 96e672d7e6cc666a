"""Puts a client proxy together. `serve` runs it until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib

from keyhole.config import ClientProxyConfig
from keyhole.discovery import Discovery, StaticDiscovery
from keyhole.rpc.server import RpcServer
from keyhole.v1 import query_pb2_grpc
from services.client_proxy.directory import Directory
from services.client_proxy.query_servicer import QueryServicer

_QUERY = "keyhole.v1.Query"


class ClientProxy:
    """One client proxy. Make it inside the running event loop."""

    def __init__(self, config: ClientProxyConfig, discovery: Discovery) -> None:
        self._config = config
        self._directory = Directory(discovery, config.hop_timeout_seconds)
        self._servicer = QueryServicer(self._directory, config.default_timeout_seconds)
        self._rpc = RpcServer("client-proxy", config.host, config.port)
        self._health: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """host:port; known after `start`."""
        return self._rpc.address

    async def start(self) -> None:
        """Binds and serves; healthy once any state server was reached.

        Raises:
            PortTaken: See RpcServer.start.
        """
        self._rpc.add(query_pb2_grpc.add_QueryServicer_to_server, self._servicer, _QUERY)
        await self._rpc.start()
        self._directory.start()
        self._health = asyncio.get_running_loop().create_task(self._serve_once_reached())

    async def run_until_signal(self) -> None:
        """Serves until SIGTERM or SIGINT, then drains."""
        await self._rpc.run_until_signal(self._config.drain_seconds, self._end_streams)
        await self.stop(0)

    async def stop(self, grace_seconds: float) -> None:
        """Lets what is under way end, then closes everything. Idempotent."""
        await self._end_streams()
        await self._rpc.stop(grace_seconds)
        await self._directory.close()

    async def _end_streams(self) -> None:
        if self._health is not None:
            self._health.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._health
        self._servicer.drain()

    async def _serve_once_reached(self) -> None:
        await self._directory.reached.wait()
        await self._rpc.set_serving(True)


async def serve(config: ClientProxyConfig) -> None:
    """Runs a proxy over a static list of servers until SIGTERM."""
    proxy = ClientProxy(config, StaticDiscovery(config.servers))
    await proxy.start()
    await proxy.run_until_signal()

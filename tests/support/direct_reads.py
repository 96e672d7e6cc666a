"""Clients that ask the servers themselves, for tests: once they reach them, and behind a service of gRPC's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from keyhole import AsyncClient
from keyhole.client.routing.direct_servers import DirectServers
from keyhole.client.wire.server_stream import ServerStream
from keyhole.rpc import convert
from keyhole.rpc.server import RpcServer
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from keyhole.v1.state_pb2 import ROLE_OWNER, ROLE_STANDBY, Source
from tests.support.lookup_ports import until_by_port
from tests.support.readings import row
from tests.support.waiting import LONG_SECONDS, eventually

# Of the caller's time: what is told at the end must still reach it.
_SHARE = 0.8


def servers_of(client: AsyncClient) -> DirectServers:
    """The servers as the client knows them. A read must have begun."""
    connection = client._connection
    assert connection is not None
    assert connection._servers is not None
    return connection._servers


def reaches(client: AsyncClient, address: str) -> bool:
    """Whether it asks this server now."""
    return servers_of(client).link(address) is not None


async def until_reached(client: AsyncClient, *addresses: str) -> None:
    """Returns once it asks these servers itself. A read of theirs must have begun."""
    await eventually(lambda: all(reaches(client, address) for address in addresses), LONG_SECONDS)


def direct_streams_of(client: AsyncClient) -> list[ServerStream]:
    """Its streams to the servers that it asks itself."""
    return [server.stream for server in servers_of(client)._servers.values() if server is not None]


class _Reads(query_pb2_grpc.QueryServicer):
    """Get by a client, of the state of tests/support/readings.py; DescribeState of the proxy."""

    def __init__(self, client: AsyncClient, proxy: Any) -> None:
        self._client = client
        self._proxy = proxy

    async def Get(self, request: pb.GetRequest, context: Any) -> pb.GetResponse:  # noqa: N802 - gRPC
        bounds = convert.bounds_from_proto(request.options)
        answer = await self._client.get(
            request.state.application,
            request.state.state,
            request.key.parts[0].string,
            stale=bounds.stale,
            max_staleness=bounds.max_staleness_ms / 1000 or None,
            min_epoch=bounds.min_epoch,
            timeout=_SHARE * context.time_remaining(),
        )
        value = row(answer.value.celsius, answer.value.count) if answer.found else b""
        source = Source(
            server=answer.server,
            role=ROLE_OWNER if answer.role == "owner" else ROLE_STANDBY,
            epoch=answer.epoch,
            unconfirmed=answer.source.unconfirmed,
            lag_epochs=answer.source.lag_epochs,
        )
        return pb.GetResponse(answer=pb.Answer(found=answer.found, value=value, source=source))

    async def DescribeState(self, request: pb.DescribeStateRequest, context: Any) -> pb.DescribeStateResponse:  # noqa: N802 - gRPC
        response: pb.DescribeStateResponse = await self._proxy.DescribeState(request)
        return response


@asynccontextmanager
async def service_that_asks_directly(proxy: str, *servers: str, key: tuple[str, str, str]) -> AsyncIterator[str]:
    """The address of a service whose client, of this proxy, reaches the servers itself.

    Args:
        key: Application, state and key of a read to begin with.
    """
    async with (
        AsyncClient(proxy, timeout=LONG_SECONDS, routing="direct") as client,
        grpc.aio.insecure_channel(proxy) as channel,
    ):
        await client.get(*key)
        await until_reached(client, *servers)
        await until_by_port(direct_streams_of(client))
        service = RpcServer("test", "127.0.0.1", 0)
        reads = _Reads(client, query_pb2_grpc.QueryStub(channel))
        service.add(query_pb2_grpc.add_QueryServicer_to_server, reads, "keyhole.v1.Query")
        await service.start()
        try:
            yield service.address
        finally:
            await service.stop(0)

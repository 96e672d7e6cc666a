"""A server of one servicer, for tests of what all our ports do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from keyhole.config import StateServerConfig
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.server import RpcServer
from keyhole.v1 import query_pb2, query_pb2_grpc
from tests.support.waiting import PATIENCE_SECONDS


class Listing(query_pb2_grpc.QueryServicer):
    """Lists no states."""

    async def ListStates(self, request: Any, context: Any) -> query_pb2.ListStatesResponse:  # noqa: N802
        return query_pb2.ListStatesResponse()


@asynccontextmanager
async def bare_server(servicer: Listing, security: StateServerConfig | None = None) -> AsyncIterator[RpcServer]:
    """It runs, on a port of its own."""
    server = RpcServer("test", "127.0.0.1", 0, security)
    server.add(query_pb2_grpc.add_QueryServicer_to_server, servicer, "keyhole.v1.Query")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


async def answers(server: RpcServer) -> bool:
    """To a new caller, in plaintext; raises where it doesn't."""
    async with aio_channel(server.address) as channel:
        stub: Any = query_pb2_grpc.QueryStub(channel)
        await stub.ListStates(query_pb2.ListStatesRequest(), timeout=PATIENCE_SECONDS)
    return True

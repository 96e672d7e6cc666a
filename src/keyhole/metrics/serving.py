"""How a process exposes its figures by gRPC: the service Stats. `page` has the /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from keyhole.v1 import stats_pb2 as pb
from keyhole.v1 import stats_pb2_grpc

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

SERVICE = "keyhole.v1.Stats"

Read = Callable[[], Awaitable[pb.ReadStatsResponse]]
"""What the process says of itself now. On the event loop."""


class StatsServicer(stats_pb2_grpc.StatsServicer):
    """Answers the service Stats of one process: protos/keyhole/v1/stats.proto."""

    def __init__(self, read: Read) -> None:
        self._read = read

    async def Read(self, request: pb.ReadStatsRequest, context: _Context) -> pb.ReadStatsResponse:  # noqa: N802 - gRPC
        """Every metric of this process."""
        return await self._read()

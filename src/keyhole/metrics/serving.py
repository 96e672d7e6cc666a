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


ReadEpochs = Callable[[pb.EpochsOf], Awaitable[pb.ReadStatsResponse]]
"""What the last epochs of a query took. On the event loop."""


class StatsServicer(stats_pb2_grpc.StatsServicer):
    """Answers the service Stats of one process: protos/keyhole/v1/stats.proto.

    Args:
        epochs: Of a process that knows of epochs; others pass over that they are asked for.
    """

    def __init__(self, read: Read, epochs: ReadEpochs | None = None) -> None:
        self._read = read
        self._epochs = epochs

    async def Read(self, request: pb.ReadStatsRequest, context: _Context) -> pb.ReadStatsResponse:  # noqa: N802 - gRPC
        """Every metric of this process, or the last epochs of one query."""
        if self._epochs is not None and request.HasField("epochs_of"):
            return await self._epochs(request.epochs_of)
        return await self._read()

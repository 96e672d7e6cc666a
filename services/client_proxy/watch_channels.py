"""The channels from a proxy to one server that watches go over: as many as they need, and none that lookups use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from keyhole.v1 import query_pb2_grpc

MOST_STREAMS = 500
"""On one channel. A server takes twice as many on one connection; what is beyond that waits without a word."""


@dataclass(eq=False)
class _WatchChannel:
    channel: grpc.aio.Channel
    stub: Any
    streams: int = 0


class WatchChannels:
    """See the module's text. Event loop.

    Args:
        opened: Makes one more channel, with a connection of its own.
    """

    def __init__(self, opened: Callable[[], grpc.aio.Channel]) -> None:
        self._opened = opened
        self._held: list[_WatchChannel] = []

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        """The service Query, for one watch, for as long as this is open."""
        held = next((of for of in self._held if of.streams < MOST_STREAMS), None)
        if held is None:
            channel = self._opened()
            held = _WatchChannel(channel, query_pb2_grpc.QueryStub(channel))
            self._held.append(held)
        held.streams += 1
        try:
            yield held.stub
        finally:
            held.streams -= 1
            # One stays, for whoever watches next.
            if not held.streams and len(self._held) > 1 and held in self._held:
                self._held.remove(held)
                await held.channel.close()

    async def close(self) -> None:
        """Closes all of them; the watches that are under way are cancelled."""
        held, self._held = self._held, []
        for of in held:
            await of.channel.close()

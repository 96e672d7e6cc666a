"""A client proxy's directory, the real one, whose servers speak by a network in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from keyhole.clock import SystemClock
from keyhole.discovery.base import StaticDiscovery
from keyhole.rpc import channels
from services.client_proxy.directory import Directory


class _Channel:
    """Of one server: it says once what it holds, and nothing more. Any other call is never answered."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def unary_stream(self, path: str, *, response_deserializer: Callable[[bytes], Any], **_: object) -> Any:
        async def messages(*_: object) -> AsyncIterator[Any]:
            yield response_deserializer(self._said)
            await asyncio.Event().wait()

        return messages

    def unary_unary(self, path: str, **_: object) -> Any:
        async def silent(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        return silent

    stream_stream = stream_unary = unary_unary

    async def close(self) -> None:
        """Does nothing: this channel has no connection."""


@contextlib.asynccontextmanager
async def proxy_of(ownerships: Sequence[bytes]) -> AsyncIterator[Directory]:
    """A proxy's directory that knows all routes.

    Args:
        ownerships: The Ownership of each server, as bytes.
    """
    by_address: Mapping[str, bytes] = {f"server-{number}:1": said for number, said in enumerate(ownerships)}
    with (
        mock.patch.object(channels, "aio_link", lambda target, credentials: _Channel(by_address[target])),
        mock.patch.object(channels, "prepared_aio_channel", lambda target, *_, **__: _Channel(by_address[target])),
    ):
        directory = Directory(StaticDiscovery(by_address), 1.0, SystemClock())
        directory.start()
        try:
            await directory.settled.wait()
            yield directory
        finally:
            await directory.close()


async def routed(ownerships: Sequence[bytes]) -> float:
    """Processor time from a proxy's start until it knows all routes. Argument as proxy_of's."""
    began = time.process_time()
    async with proxy_of(ownerships):
        return time.process_time() - began

"""State servers with a lookup port, and callers of one: those that use it, and those that do what they should not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from google.protobuf.message import Message

from keyhole.client.wire.server_stream import ServerStream
from keyhole.clock import SystemClock
from keyhole.errors import KeyholeError
from keyhole.rpc.port_frames import VERSION, packed_message
from keyhole.rpc.read_admission import NO_LIMITS, ReadAdmission
from keyhole.rpc.status import from_proto
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.app import ClientProxy
from tests.support.waiting import LONG_SECONDS, eventually

HAS_LOOKUP_PORT = {"lookups": "127.0.0.1:0"}
"""Settings of a state server."""


def streams_of(proxy: ClientProxy) -> list[ServerStream]:
    """Those of a proxy, to each of its servers."""
    return [link.stream for link in proxy._directory.links]


async def until_by_port(streams: Iterable[ServerStream]) -> None:
    """Returns once lookups go by the lookup ports that were announced."""
    await eventually(lambda: all(of.port is not None for of in streams if of._announced), LONG_SECONDS)


class LookedAt(SystemClock):
    """Stands still, and whoever pauses by it goes on with `advance` alone."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._turn = asyncio.Event()

    def monotonic(self) -> float:
        return self._now

    async def pause(self, seconds: float) -> None:
        await self._turn.wait()

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._turn.set()
        self._turn = asyncio.Event()


def unlimited() -> ReadAdmission:
    """Lets all lookups in."""
    return ReadAdmission(NO_LIMITS, LookedAt(), "this server")


class Caller:
    """One connection, message by message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *messages: Message) -> None:
        """All of them at once."""
        self.writer.write(b"".join(map(packed_message, messages)))

    async def next(self) -> pb.LookupResponse:
        """Raises IncompleteReadError: The connection has ended."""
        async with asyncio.timeout(LONG_SECONDS):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return pb.LookupResponse.FromString(await self.reader.readexactly(size))

    async def open(self, authorization: str = "") -> Caller:
        """Says who it is, and is let in."""
        self.send(pb.LookupOpening(version=VERSION, authorization=authorization))
        assert await self.next() == pb.LookupResponse()
        return self

    async def why_ended(self) -> KeyholeError:
        """The last message, with nothing behind it."""
        last = await self.next()
        assert last.frame == 0
        (failure,) = last.failures
        assert await self.is_over()
        return from_proto(failure.error)

    async def is_over(self) -> bool:
        """Whether it ends without another message."""
        async with asyncio.timeout(LONG_SECONDS):
            try:
                return not await self.reader.read(1)
            except ConnectionResetError:
                return True


@asynccontextmanager
async def calling(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Caller]:
    """Connected, and nothing said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()

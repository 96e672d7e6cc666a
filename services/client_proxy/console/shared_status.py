"""What all servers say of themselves, asked once however many consoles are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from keyhole.clock import Clock
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.directory import Directory

FRESH_SECONDS = 1.0
"""For so long nobody asks again: servers are asked at most so often."""
_OLD_SECONDS = 10.0
_PATIENCE_SECONDS = 0.5
_SERVER_SECONDS = 2.0


class ServerReports(NamedTuple):
    """The answers of one round.

    Attributes:
        at_ms: When all were there: milliseconds since 1970, by the proxy's clock.
        servers: By address. `unreachable` says why one has not answered.
    """

    at_ms: int
    servers: dict[str, pb.ServerStatus]


class SharedStatus:
    """One round of questions at a time, whose answers all who ask share. Nobody is asked while nobody asks here.

    A server that keeps silent holds nobody up: after half a second the round before is given, if it is no older than
    ten. Event loop's thread only.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._last: ServerReports | None = None
        self._last_at = 0.0
        self._round: asyncio.Task[None] | None = None

    async def now(self) -> ServerReports:
        """The newest answers: not older than FRESH_SECONDS, where all servers answer in time."""
        clock = self._directory.clock
        if self._last is not None and clock.monotonic() - self._last_at < FRESH_SECONDS:
            return self._last
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._ask(clock))
        # Shielded, in both cases: whoever goes away must not end it for the others.
        if self._last is not None and clock.monotonic() - self._last_at < _OLD_SECONDS:
            await asyncio.wait((self._round,), timeout=_PATIENCE_SECONDS)
        else:
            await asyncio.shield(self._round)
        assert self._last is not None  # a round that fails has raised
        return self._last

    async def close(self) -> None:
        """Ends the round that is under way."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait((self._round,))

    async def _ask(self, clock: Clock) -> None:
        try:
            links = self._directory.links
            told: Iterable[pb.ServerStatus] = await asyncio.gather(*(link.describe(_SERVER_SECONDS) for link in links))
            self._last = ServerReports(
                clock.now_ms(), {link.address: status for link, status in zip(links, told, strict=True)}
            )
            self._last_at = clock.monotonic()
        finally:
            self._round = None

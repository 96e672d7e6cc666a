"""What is known of the servers, by whoever sends lookups to them: a proxy's directory, or a client's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from keyhole.client.routing.hedging import Hedging
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Segment
from keyhole.protocol.routing import RouteTable
from keyhole.protocol.server_view import StateName


class SendsSegments(Protocol):
    """A LookupStream, or a ServerStream, which may also have another way."""

    def submit(self, lane: Lane, segment: Segment) -> None:
        """Sends a segment with the next frame. Raises KeyholeError: It can't be taken."""


class ReachedServer(Protocol):
    """One server, and the stream that lookups go over."""

    @property
    def stream(self) -> SendsSegments:
        """That of this server's lookups."""


class KnownServers(Protocol):
    """Asked on the event loop's thread, for each frame; never waits.

    Attributes:
        hop_seconds: How long a server may be silent before others are asked.
        hedging: Whether a slow one's keys are asked of others before that, and which; None: they are not.
        settled: Set once every server was tried: before, a state that is not known may just not be known yet.
    """

    hop_seconds: float
    hedging: Hedging | None
    settled: asyncio.Event

    @property
    def tables(self) -> Mapping[StateName, RouteTable]:
        """The routes of all states that are known, as of now."""

    def table(self, name: StateName) -> RouteTable:
        """The routes of one state. Raises KeyholeError: They are not known."""

    def link(self, address: str) -> ReachedServer | None:
        """The server at this address; None: it can't be asked."""

    def suspect(self, address: str) -> None:
        """It was silent for the hop deadline."""

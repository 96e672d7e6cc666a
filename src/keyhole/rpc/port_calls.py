"""What a lookup port asks of those behind it, and gives each of its callers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple

from keyhole.rpc.read_admission import ReadCall, peer_of
from keyhole.security.authentication import Caller
from keyhole.v1 import query_pb2

FrameAnswer = query_pb2.LookupResponse | asyncio.Future[query_pb2.LookupResponse]
AnswerFrame = Callable[[query_pb2.LookupRequest, Caller, ReadCall], FrameAnswer]
"""Answers a frame of a call, at once or, where another process has to, later. What the caller may not, or what fails,
stands in the response."""

HandOver = Callable[[socket.socket], bool]
"""Gives a connection to another process that serves it. Returns whether it did: else it is served here."""


class PortLimits(NamedTuple):
    """What callers may take.

    Attributes:
        connections: At the same time; those beyond are closed at once.
        opening_seconds: From connecting to the end of the first message; a handshake of TLS before has as much. And
            from the beginning of any other message to its end.
        idle_seconds: How long a connection may be silent.
        stalled_seconds: How long a caller may take nothing of its answers.
        unsent_bytes: Of answers that a caller has not taken; beyond it, nothing more of its is read or answered.
        all_unsent_bytes: The same of all callers together; beyond it, who has taken nothing for longest is cut off.
        held_bytes: Of all callers' messages that are not whole yet; beyond it, whoever sends more is closed.
    """

    connections: int = 4_000
    opening_seconds: float = 10.0
    idle_seconds: float = 600.0
    stalled_seconds: float = 60.0
    unsent_bytes: int = 4 << 20
    all_unsent_bytes: int = 256 << 20
    held_bytes: int = 256 << 20


class Peer(NamedTuple):
    """Who has connected, as gRPC would say it of a call; see read_admission.Called."""

    name: object

    def peer(self) -> str:
        return peer_of(*self.name[:2]) if isinstance(self.name, tuple) else ""

    def time_remaining(self) -> None:
        """It has no end of its own."""

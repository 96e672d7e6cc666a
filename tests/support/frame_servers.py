"""Copies that say what a test lets them say, for one frame on its way to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from keyhole.client.routing.hedging import Hedging
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import KeyholeError, Overloaded, UnknownState
from keyhole.model.read import Role
from keyhole.protocol.routing import RouteTable, build
from keyhole.protocol.server_view import Holding, ServerView
from keyhole.v1 import state_pb2
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor
from tests.support.waiting import PATIENCE_SECONDS

NAME = (APPLICATION, STATE)
KEYS = [group.to_bytes(2, "big") + b"key" for group in (0, 9, 1, 8)]
ALL = range(KEY_GROUPS)


class FrameLink:
    """Keeps what it is given."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.stream = self
        self.segments: list[Segment] = []
        self.full = False

    def submit(self, lane: Lane, segment: Segment) -> None:
        if self.full:
            raise Overloaded(f"{self.address} is full")
        self.segments.append(segment)

    def answer(self) -> None:
        segment = self.segments.pop(0)
        self.answer_part(segment, 0, *(self.address.encode() + key for key in segment.keys))

    def answer_part(self, segment: Segment, start: int, *values: bytes) -> None:
        segment.sink.answered(start, Answers(list(values), [state_pb2.Source(server=self.address)]))

    async def asked(self) -> None:
        """Waits until something was sent here."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.segments:  # noqa: ASYNC110 - some milliseconds
                await asyncio.sleep(0.001)

    def fail(self, error: KeyholeError) -> None:
        segment = self.segments.pop(0)
        segment.sink.failed(0, len(segment.keys), error)


def _holding(groups: range, role: Role) -> Holding:
    return Holding(descriptor(), frozenset(groups), role, 1, 1, ready=True)


class FrameServers:
    """Routes that the test changes at will."""

    def __init__(self, **owned: range) -> None:
        self.links = {address: FrameLink(address) for address in ("a", "b", "c")}
        self.hop_seconds = 0.1
        self.hedging: Hedging | None = None
        self.suspected: list[str] = []
        self.settled = asyncio.Event()
        self.settled.set()
        self.tables: dict[tuple[str, str], RouteTable] = {}
        self.route(owned)

    def route(
        self, owned: Mapping[str, range], standbys: Mapping[str, range] | None = None, max_key_bytes: int = 0
    ) -> None:
        held = {address: [_holding(groups, Role.OWNER)] for address, groups in owned.items()}
        for address, groups in (standbys or {}).items():
            held.setdefault(address, []).append(_holding(groups, Role.STANDBY))
        self.tables = build(
            ServerView(address, holdings=tuple(holdings), max_key_bytes=max_key_bytes)
            for address, holdings in held.items()
        )

    def suspect(self, address: str) -> None:
        self.suspected.append(address)

    def table(self, name: tuple[str, str]) -> RouteTable:
        if name not in self.tables:
            raise UnknownState("no such state")
        return self.tables[name]

    def link(self, address: str) -> FrameLink:
        return self.links[address]


def three_copies() -> FrameServers:
    """`a` owns all key groups; `b` and `c` follow them."""
    servers = FrameServers()
    servers.route({"a": ALL}, {"b": ALL, "c": ALL})
    return servers


def values_of(address: str, keys: list[bytes] = KEYS) -> list[bytes]:
    """What that copy answers."""
    return [address.encode() + key for key in keys]

"""What a client that asks servers directly takes in of what proxies have told it: routes, and lookup ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.client.routing import direct_servers
from keyhole.client.routing.direct_servers import DirectServers
from keyhole.security.credentials import PLAIN
from keyhole.v1 import query_pb2 as pb
from tests.support.waiting import eventually


class Server:
    """In place of a DirectServer: notes what is announced."""

    made: dict[str, Server] = {}  # noqa: RUF012 - of one test

    def __init__(self, address: str, _: object) -> None:
        self.made[address] = self
        self.announcements: list[tuple[int, str]] = []

    def announced(self, lookup_port: int, incarnation: str) -> None:
        self.announcements.append((lookup_port, incarnation))


def routes(port: int, incarnation: str, *, lost: bool = False) -> pb.Routes:
    server = pb.RoutedServer(
        server="a", address="a:7400", incarnation=incarnation, lookup_port=port, lost=lost, max_key_bytes=100
    )
    return pb.Routes(servers=[server])


OLD, NEW = routes(9001, "one"), routes(9000, "two")
COUNTS, SUMS = ("app", "counts"), ("app", "sums")


@pytest.mark.parametrize(
    ("announced", "port"),
    [
        ([(COUNTS, OLD), (SUMS, NEW)], (9000, "two")),
        ([(COUNTS, NEW), (SUMS, OLD), (COUNTS, NEW)], (9000, "two")),
        ([(COUNTS, NEW), (SUMS, routes(9001, "one", lost=True))], (9000, "two")),
        # A proxy of an older version does not know of lookup ports.
        ([(COUNTS, NEW), (SUMS, routes(0, "two"))], (9000, "two")),
        ([(COUNTS, OLD), (SUMS, routes(0, "two"))], (0, "two")),
        ([(COUNTS, NEW), (COUNTS, routes(9000, "two", lost=True))], (9000, "two")),
    ],
)
async def test_the_port_is_that_of_the_process_that_was_told_last_and_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, announced: list[tuple[tuple[str, str], pb.Routes]], port: tuple[int, str]
) -> None:
    monkeypatch.setattr(direct_servers, "DirectServer", Server)
    links: Any = None
    servers = DirectServers(links, PLAIN)
    for name, of in announced:
        servers._take(name, of)
    assert Server.made["a:7400"].announcements[-1] == port


async def test_the_port_of_a_server_that_is_lost_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_servers, "DirectServer", Server)
    links: Any = None
    DirectServers(links, PLAIN)._take(COUNTS, routes(9000, "two", lost=True))
    assert Server.made["a:7400"].announcements == []


class Call:
    """In place of gRPC's: the routes of one proxy, until its channel is closed."""

    def __init__(self, given: pb.Routes, *, closed: bool) -> None:
        self._routes = given
        self._closed = closed

    async def __aiter__(self) -> AsyncIterator[pb.Routes]:
        if self._closed:
            # As gRPC does with the calls of a channel that is closed.
            raise asyncio.CancelledError
        yield self._routes
        await asyncio.Event().wait()

    def cancel(self) -> None:
        pass


async def test_routes_are_followed_at_another_address_once_the_channel_of_the_first_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_servers, "DirectServer", Server)
    monkeypatch.setattr(direct_servers, "_FIRST_PAUSE_SECONDS", 0.001)
    Server.made.clear()
    calls = iter([Call(OLD, closed=True), Call(NEW, closed=False)])
    link = SimpleNamespace(
        stub=SimpleNamespace(WatchRoutes=lambda _: next(calls)), heard=lambda: None, target="proxies:7400"
    )
    links: Any = SimpleNamespace(next=lambda: link)
    servers = DirectServers(links, PLAIN)
    servers.follow(COUNTS)
    await eventually(lambda: "a:7400" in Server.made)
    following = servers._following[COUNTS]
    following.cancel()
    await asyncio.wait([following])
    assert following.cancelled()

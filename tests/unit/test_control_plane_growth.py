"""What the control plane takes grows with servers and their key groups as n log n at most: counted in lines that are
executed and in messages, never by time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

from benchmarks.simulated_plane import Plane, PlaneSize
from benchmarks.simulated_proxy import proxy_of, routed
from keyhole.protocol import routing
from services.client_proxy import directory

SMALL, FACTOR = 8, 4
# Of 4 times the servers and key groups: n log n is 5.2 times as much, servers times key groups 16 times.
MOST = 5.2
_OURS = ("/keyhole/protocol/", "/keyhole/coordinator/")


class Lines:
    """Counts the lines that the coordinator executes; each turn of a comprehension is one."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, of: Any) -> Callable[..., Any] | None:
        return self._line if any(folder in frame.f_code.co_filename for folder in _OURS) else None

    def _line(self, frame: FrameType, event: str, of: Any) -> Callable[..., Any]:
        self.count += 1
        return self._line


def taken(servers: int) -> dict[str, tuple[int, int]]:
    """Lines and messages of what happens to a cluster of so many servers, with 16 key groups each."""
    plane, found = Plane(PlaneSize(servers, servers * 16, 2)), {}
    first = next(iter(plane.servers))

    def counts(what: str, happens: Callable[[], object]) -> None:
        lines = Lines()
        with plane.measured() as step, lines.counted():
            happens()
        found[what] = lines.count, sum(step.messages.values())

    counts("first assignment", lambda: plane.run_epoch(0, {}))
    plane.settle()
    counts("heartbeat", plane.beat)
    counts("epoch", lambda: plane.run_epoch(1, {}))
    counts("loss", lambda: plane.lose(first))
    plane.servers[first].start()
    counts("return", plane.beat)
    plane.close()
    return found


def test_no_step_of_the_coordinator_grows_as_servers_times_key_groups() -> None:
    small, large = taken(SMALL), taken(SMALL * FACTOR)
    grown = {
        what: tuple(round(now / before, 1) for now, before in zip(large[what], small[what], strict=True))
        for what in small
    }
    assert {what: of for what, of in grown.items() if max(of) > MOST} == {}, grown


def test_a_heartbeat_carries_no_descriptor_of_any_state() -> None:
    def sent(states: int) -> int:
        plane = Plane(PlaneSize(SMALL, 128, states))
        plane.run_epoch(0, {})
        plane.settle()
        with plane.measured() as step:
            plane.beat()
        plane.close()
        return step.sent_bytes

    # The numbers of warm key groups are told by state: 15 bytes each. A descriptor takes 250.
    assert sent(16) - sent(2) < SMALL * 14 * 50


def ownerships() -> list[bytes]:
    """What each server of a small cluster tells its proxies."""
    plane = Plane(PlaneSize(SMALL, 64, 2))
    plane.run_epoch(0, {})
    said = plane.ownership()
    plane.close()
    return said


def test_a_proxy_looks_at_all_routes_once_however_many_servers_speak_at_its_start() -> None:
    said = ownerships()
    with mock.patch.object(directory, "build", wraps=routing.build) as built:
        asyncio.run(routed(said))
    # As the servers are discovered, and once they have spoken.
    assert built.call_count <= 3


def test_a_proxy_looks_at_all_routes_once_however_many_calls_of_a_server_are_silent() -> None:
    said = ownerships()

    async def silent() -> int:
        async with proxy_of(said) as proxy:
            with mock.patch.object(directory, "build", wraps=routing.build) as built:
                for _ in range(50):
                    proxy.suspect("server-0:1")
            view = proxy.links[0].view
            assert view is not None
            assert view.suspect
            return built.call_count

    assert asyncio.run(silent()) == 1

"""When a connection to a lookup port that keeps silent is given up, by a clock that a test sets."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.port_stream import PortStream
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import KeyholeError, ServerLost
from keyhole.rpc.port_frames import packed_message
from keyhole.v1 import query_pb2 as pb


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop's clock and timers. Nothing goes on but by `until`."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._timers: list[tuple[float, int, Handle, Callable[[], None]]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        self._count += 1
        handle = Handle()
        heapq.heappush(self._timers, (when, self._count, handle, callback))
        return handle

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        return self.call_at(self.now, callback)

    def until(self, now: float) -> None:
        """Calls what is due up to then, each at its time."""
        while self._timers and self._timers[0][0] <= now:
            when, _, handle, callback = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if not handle.cancelled:
                callback()
        self.now = now


class Transport:
    """Takes all."""

    def write(self, data: bytes) -> None:
        """It goes nowhere."""

    def abort(self) -> None:
        """There is nothing to close."""


class Sink:
    def __init__(self) -> None:
        self.errors: list[KeyholeError] = []

    def answered(self, start: int, answers: Answers) -> None:
        """It is not asked what came."""

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        self.errors.append(error)


class Port:
    """A stream to a port that says what a test has it say."""

    def __init__(self) -> None:
        self.loop, self.sink = Loop(), Sink()
        self.stream = PortStream("server-a:7412", "", lambda: None)
        loop: Any = self.loop
        self.stream._loop = loop
        transport: Any = Transport()
        self.stream.connection_made(transport)
        self.say(pb.LookupResponse())

    def ask(self, seconds: float) -> None:
        self.stream.submit(Lane("app", "counts", "topic-1"), Segment([b"k"], self.sink, self.loop.now + seconds))

    def say(self, response: pb.LookupResponse) -> None:
        self.stream.data_received(packed_message(response))

    def given_up_after(self) -> float:
        """To the next hundredth of a second."""
        began = self.loop.now
        for hundredths in range(1, 500):
            self.loop.until(began + hundredths / 100)
            if self.stream.over.done():
                return hundredths / 100
        raise AssertionError("it was never given up")


@pytest.fixture
async def port() -> Port:
    return Port()


@pytest.mark.parametrize(
    ("seconds", "after"),
    [(30.0, 2.0), (4.0, 2.0), (1.0, 0.5), (0.2, 0.1), (0.08, 0.05)],
)
async def test_a_silent_port_is_given_up_while_half_of_a_read_s_time_is_left(
    port: Port, seconds: float, after: float
) -> None:
    port.ask(seconds)
    assert port.given_up_after() == pytest.approx(after + 0.01, abs=0.011)
    assert isinstance(port.stream.over.result(), ServerLost)
    ((_, parts),) = port.stream.let_go()
    assert (len(parts), port.sink.errors) == (1, [])


async def test_each_read_has_its_own_time_from_when_it_was_sent(port: Port) -> None:
    port.ask(30.0)
    port.loop.until(1_001.0)
    port.ask(0.5)
    assert port.given_up_after() == pytest.approx(0.26, abs=0.011)


async def test_a_port_that_answers_one_after_the_other_is_not_silent(port: Port) -> None:
    port.ask(1.0)
    for number in range(1, 20):
        port.ask(1.0)
        port.loop.until(port.loop.now + 0.4)
        port.say(pb.LookupResponse(frame=number, values=[b""]))
    assert not port.stream.over.done()
    assert port.given_up_after() <= 0.52


async def test_what_a_busy_loop_has_not_read_yet_is_read_before_the_port_counts_as_silent(port: Port) -> None:
    port.ask(1.0)
    port.loop.until(1_000.5)
    # uvloop calls timers that are due before it reads.
    port.say(pb.LookupResponse(frame=1, values=[b""]))
    port.ask(1.0)
    port.loop.until(1_000.9)
    assert not port.stream.over.done()
    assert port.given_up_after() == pytest.approx(0.11, abs=0.011)

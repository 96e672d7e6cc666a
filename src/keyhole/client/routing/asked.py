"""One server's share of a frame: it is sent, watched while the server is silent, and its answers are handed back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from keyhole.client.routing.known_servers import KnownServers
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import KeyholeError, NoServer


class AskedSink(Protocol):
    """A frame hears here what comes of the keys that it has asked servers for. Event loop's thread."""

    def answered(self, asked: Asked, start: int, answers: Answers) -> None:
        """Answers for some of its keys, from `start` on."""

    def failed(self, asked: Asked, start: int, count: int, error: KeyholeError) -> None:
        """The server has no answer for `count` of its keys, from `start` on."""

    def overdue(self, asked: Asked) -> None:
        """The server has been silent for the hop deadline. It may answer yet."""

    def slow(self, asked: Asked) -> None:
        """The server has been silent for longer than it nearly always is. Only where lookups are hedged."""


class Asked:
    """The keys of a frame that one server is asked for. Event loop's thread.

    Args:
        sink: Hears what comes of them.
        places: Where its keys stand in the frame; None: it has them all.

    Attributes:
        is_hedge: It was sent them while another server, which has them too, was only slow.
        is_hedged: So another server was sent some of its keys, too.
    """

    __slots__ = (
        "_heard",
        "_left",
        "_loop",
        "_places",
        "_sink",
        "_timer",
        "address",
        "is_hedge",
        "is_hedged",
        "overdue",
        "segment",
    )

    def __init__(
        self,
        sink: AskedSink,
        address: str,
        places: Sequence[int] | None,
        keys: Sequence[bytes],
        deadline: float,
        *,
        is_hedge: bool = False,
    ) -> None:
        self.address = address
        self.segment = Segment(keys, self, deadline)
        self.overdue = self.is_hedged = False
        self.is_hedge = is_hedge
        self._sink = sink
        self._places = places
        self._left = len(keys)
        self._timer: asyncio.TimerHandle | None = None

    def part(self, start: int, count: int) -> Sequence[int]:
        """Returns the places of `count` of its keys, from `start` on."""
        return range(start, start + count) if self._places is None else self._places[start : start + count]

    def send(self, servers: KnownServers, lane: Lane, loop: asyncio.AbstractEventLoop) -> bool:
        """Lets the keys travel with the server's next frame. The sink hears what comes of it, also of silence.

        Returns:
            False where they can't travel. They have failed by then.
        """
        try:
            link = servers.link(self.address)
            if link is None:
                raise NoServer(f"server {self.address} is no longer among the discovered ones")
            link.stream.submit(lane, self.segment)
        except KeyholeError as error:
            self._sink.failed(self, 0, self._left, error)
            return False
        self._loop, self._heard = loop, loop.time()
        hop_seconds = servers.hop_seconds
        self._timer = loop.call_later(hop_seconds, self._is_overdue, hop_seconds, hop_seconds / 2)
        return True

    def forget(self) -> None:
        """Stops watching: it no longer matters whether it is answered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answered(self, start: int, answers: Answers) -> None:
        self._answered(len(answers.values))
        self._sink.answered(self, start, answers)

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        self._answered(count)
        self._sink.failed(self, start, count, error)

    def _answered(self, count: int) -> None:
        self._left -= count
        self._heard = self._loop.time()
        if not self._left:
            self.forget()

    def _is_overdue(self, hop_seconds: float, grace_seconds: float) -> None:
        self._timer = self._again(self._is_overdue, hop_seconds, grace_seconds)
        if self._timer is None:
            self.overdue = True
            self._sink.overdue(self)

    def _again(
        self, look: Callable[[float, float], None], seconds: float, grace_seconds: float
    ) -> asyncio.TimerHandle | None:
        """When to look once more whether the server has been silent for so long; None: it has."""
        late = self._loop.time() - self._heard - seconds
        if late < 0:
            # It has answered some: large values come in several responses.
            return self._loop.call_later(-late, look, seconds, grace_seconds)
        if late > grace_seconds > 0:
            # This process itself is late: the answer may be waiting to be read. Asking others would only add to it.
            return self._loop.call_later(grace_seconds, look, seconds, 0)
        return None

"""A stream of lookups whose other side takes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.lookup_stream import LookupStream
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import KeyholeError, ServerLost
from tests.support.waiting import PATIENCE_SECONDS, eventually

LANE = Lane("weather", "readings", "topic-1")
PATIENCE_LOOKUPS = 1_000


class _Full:
    """A channel, and its call, which takes some requests, and lets all others wait."""

    def __init__(self, takes: int) -> None:
        self._left = takes
        self.waits = False

    def stream_stream(self, *_: object, **__: object) -> Any:
        return lambda: self

    async def write(self, _: bytes) -> None:
        if self._left == 0:
            self.waits = True
            await asyncio.sleep(PATIENCE_SECONDS)
        self._left -= 1

    async def read(self) -> None:
        await asyncio.sleep(PATIENCE_SECONDS)

    async def done_writing(self) -> None:
        self.waits = True

    def cancel(self) -> None:
        pass


class _Renewed(_Full):
    """One whose certificate is renewed: its stream ends, and another one is to begin once it has."""

    def __init__(self) -> None:
        super().__init__(PATIENCE_LOOKUPS)
        self.renewing = self
        self.number = 0

    def version(self) -> int:
        return self.number


class _Nobody:
    def answered(self, start: int, answers: Answers) -> None: ...

    def failed(self, start: int, count: int, error: KeyholeError) -> None: ...


@pytest.mark.parametrize("made", ["takes nothing more", "ends"])
async def test_it_does_not_look_all_the_time_while_no_request_can_go(made: str) -> None:
    channel: Any = _Full(2) if made == "takes nothing more" else _Renewed()
    stream = LookupStream(channel, "server:1")
    looks: list[float] = []
    expire = stream._coalescer.expire

    def counted(now: float) -> None:
        looks.append(now)
        expire(now)

    stream._coalescer.expire = counted  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    # The first one's deadline is what it looks at the clock for.
    seconds, number = 0.3, 0
    while not channel.waits:
        stream.submit(LANE, Segment([f"k{number}".encode()], _Nobody(), loop.time() + seconds))
        seconds, number = PATIENCE_SECONDS, number + 1
        channel.number = number // 4  # renewed once three are under way
        await asyncio.sleep(0.03)
    stream.submit(LANE, Segment([b"waits"], _Nobody(), loop.time() + seconds))
    await eventually(lambda: looks)
    await asyncio.sleep(0.3)
    assert len(looks) < 20
    await stream.close(ServerLost("it is over"))
    await eventually(lambda: stream.keys == 0)

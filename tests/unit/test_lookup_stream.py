"""What a stream of lookups sends, and how it waits for another side that takes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.lookup_stream import LookupStream
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import DeadlineExceeded, KeyholeError, ServerLost
from keyhole.rpc.frames import failures_to_proto
from keyhole.v1 import query_pb2
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

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
    """One whose certificate is renewed: its stream ends, and another one begins."""

    def __init__(self) -> None:
        super().__init__(PATIENCE_LOOKUPS)
        self.renewing = self
        self.number = 0

    def version(self) -> int:
        return self.number


class _Taking(_Full):
    """One that takes all requests, and keeps them."""

    def __init__(self) -> None:
        super().__init__(PATIENCE_LOOKUPS)
        self.taken: list[query_pb2.LookupRequest] = []

    async def write(self, request: bytes) -> None:
        self.taken.append(query_pb2.LookupRequest.FromString(request))


class _Answering(_Full):
    """One that answers each request, ends once nothing more is to come, and keeps in which order it was used."""

    def __init__(self) -> None:
        super().__init__(PATIENCE_LOOKUPS)
        self.used: list[str] = []
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def write(self, request: bytes) -> None:
        frame = query_pb2.LookupRequest.FromString(request).frame
        self._answers.put_nowait(query_pb2.LookupResponse(frame=frame, values=[b""]))

    async def read(self) -> Any:
        answer = await self._answers.get()
        self.used.append("the end" if answer is grpc.aio.EOF else "an answer")
        return answer

    async def done_writing(self) -> None:
        self.used.append("no more requests")
        self._answers.put_nowait(grpc.aio.EOF)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        self.used.append("cancelled")


class _Call:
    """One stream of `_Renewing`: what it was asked for, and when it breaks."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.ended = self.cancelled = False
        self.breaks = asyncio.Event()

    async def write(self, request: bytes) -> None:
        self.taken += query_pb2.LookupRequest.FromString(request).storage_keys

    async def read(self) -> Any:
        await self.breaks.wait()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone")

    async def done_writing(self) -> None:
        self.ended = True

    def cancel(self) -> None:
        self.cancelled = True


class _Renewing:
    """A channel each of whose streams is another call. What it shows is renewed by who sets `number`."""

    def __init__(self) -> None:
        self.renewing = self
        self.number = 0
        self.calls: list[_Call] = []

    def version(self) -> int:
        return self.number

    def stream_stream(self, *_: object, **__: object) -> Any:
        def begun() -> _Call:
            self.calls.append(_Call())
            return self.calls[-1]

        return begun


class _Failures:
    """Keeps why its keys have no answer."""

    def __init__(self) -> None:
        self.errors: list[KeyholeError] = []

    def answered(self, start: int, answers: Answers) -> None:
        raise AssertionError("nobody answers here")

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        self.errors.append(error)


class _Nobody:
    def answered(self, start: int, answers: Answers) -> None: ...

    def failed(self, start: int, count: int, error: KeyholeError) -> None: ...


async def test_one_that_is_closed_while_nobody_waits_ends_before_it_is_cancelled() -> None:
    """Of a call that is cancelled gRPC tells the event loop later, by when that may be closed."""
    channel: Any = _Answering()
    stream, loop = LookupStream(channel, "server:1"), asyncio.get_running_loop()
    stream.submit(LANE, Segment([b"key"], _Nobody(), loop.time() + LONG_SECONDS))
    await eventually(lambda: channel.used == ["an answer"])
    await stream.close(ServerLost("it is over"))
    assert channel.used == ["an answer", "no more requests", "the end", "cancelled"]


async def test_what_has_expired_by_its_turn_is_not_sent_although_the_timer_has_not_looked_yet() -> None:
    channel: Any = _Taking()
    stream, loop, late = LookupStream(channel, "server:1"), asyncio.get_running_loop(), _Failures()
    stream.submit(LANE, Segment([b"late"], late, loop.time() - 1.0))
    stream.submit(LANE, Segment([b"in time"], _Nobody(), loop.time() + PATIENCE_SECONDS))
    await eventually(lambda: channel.taken)
    assert [list(request.storage_keys) for request in channel.taken] == [[b"in time"]]
    assert [type(error) for error in late.errors] == [DeadlineExceeded]
    await stream.close(ServerLost("it is over"))


async def test_a_frame_that_seemed_late_is_sent_again_without_its_time_and_the_next_one_with_it() -> None:
    channel: Any = _Taking()
    stream, loop = LookupStream(channel, "server:1"), asyncio.get_running_loop()
    stream.submit(LANE, Segment([b"first"], _Nobody(), loop.time() + PATIENCE_SECONDS))
    await eventually(lambda: len(channel.taken) == 1)
    late = failures_to_proto({0: DeadlineExceeded("it came too late", late_ms=5_000)})
    late[0].ClearField("indexes")
    response = query_pb2.LookupResponse(frame=channel.taken[0].frame, values=[b""], failures=late)
    stream._messages.deliver(response, loop.time())
    stream._ready.set()  # as at each response
    await eventually(lambda: len(channel.taken) == 2)
    stream.submit(LANE, Segment([b"next"], _Nobody(), loop.time() + PATIENCE_SECONDS))
    await eventually(lambda: len(channel.taken) == 3)
    assert [list(request.storage_keys) for request in channel.taken] == [[b"first"], [b"first"], [b"next"]]
    assert [request.sent_ms > 0 for request in channel.taken] == [True, False, True]
    await stream.close(ServerLost("it is over"))


async def test_what_waits_on_a_stream_that_shows_something_older_holds_up_nothing_and_fails_alone() -> None:
    channel: Any = _Renewing()
    stream, loop = LookupStream(channel, "server:1"), asyncio.get_running_loop()
    older, newer = _Failures(), _Failures()
    stream.submit(LANE, Segment([b"waits"], older, loop.time() + LONG_SECONDS))
    await eventually(lambda: channel.calls and channel.calls[0].taken == [b"waits"])
    channel.number = 1
    stream.submit(LANE, Segment([b"next"], newer, loop.time() + LONG_SECONDS))
    await eventually(lambda: len(channel.calls) == 2 and channel.calls[1].taken == [b"next"])
    assert channel.calls[0].ended
    assert not channel.calls[0].cancelled
    assert not older.errors
    channel.calls[0].breaks.set()
    await eventually(lambda: older.errors)
    assert channel.calls[0].cancelled
    assert not newer.errors
    # A stream that is refused at once is not opened again while nothing is to be sent, whatever an older one has.
    channel.number = 2
    stream.submit(LANE, Segment([b"last"], _Failures(), loop.time() + LONG_SECONDS))
    await eventually(lambda: len(channel.calls) == 3 and channel.calls[2].taken == [b"last"])
    channel.calls[2].breaks.set()
    await eventually(lambda: channel.calls[2].cancelled)
    await asyncio.sleep(0.1)
    assert len(channel.calls) == 3
    assert not newer.errors
    await stream.close(ServerLost("it is over"))
    assert newer.errors
    assert channel.calls[1].cancelled


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

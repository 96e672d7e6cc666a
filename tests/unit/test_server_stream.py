"""Lookups by a server's lookup port, on real sockets, and by gRPC where that can't be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keyhole.client.wire import server_stream
from keyhole.client.wire.coalescing import Coalescer, Lane, Moved
from keyhole.client.wire.port_stream import Silence
from keyhole.client.wire.segments import Answers, Segment
from keyhole.client.wire.server_stream import ServerStream
from keyhole.errors import ClientClosed, DeadlineExceeded, KeyholeError, NoServer, Unauthenticated
from keyhole.rpc.lookup_port import LookupPort
from keyhole.rpc.port_calls import PortLimits
from keyhole.rpc.port_frames import packed, packed_message
from keyhole.rpc.read_admission import ReadCall
from keyhole.rpc.status import to_proto
from keyhole.security.authentication import Caller
from keyhole.v1 import query_pb2 as pb
from tests.support.lookup_ports import LookedAt, unlimited
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

LANE = Lane("weather", "readings", "topic-1")


class Grpc:
    """In place of a LookupStream: keeps what it is given, or fails it once it is closed."""

    def __init__(self) -> None:
        self.coalescer = Coalescer("grpc")
        self.closed: KeyholeError | None = None

    @property
    def keys(self) -> int:
        return self.coalescer.keys

    @property
    def waiting(self) -> list[bytes]:
        """What it was given."""
        return [key for _, parts in self.coalescer.let_go() for of, *at, _ in parts for key in of.keys[at[0] : at[1]]]

    def submit(self, lane: Lane, segment: Segment) -> None:
        if self.closed is not None:
            raise self.closed
        self.coalescer.add(lane, segment)

    def take_over(self, moved: Moved) -> None:
        for lane, parts in moved:
            self.coalescer.add_parts(lane, parts)
        if self.closed is not None:
            self.coalescer.lost(self.closed, waiting_too=True)

    async def close(self, error: KeyholeError) -> None:
        self.closed = error
        self.coalescer.lost(error, waiting_too=True)


class Sink:
    """What came of a segment's keys, by their place."""

    def __init__(self) -> None:
        self.came: dict[int, bytes | KeyholeError] = {}

    def answered(self, start: int, answers: Answers) -> None:
        self.came |= {start + index: value for index, value in enumerate(answers.values)}

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        self.came |= dict.fromkeys(range(start, start + count), error)


class Served:
    """A lookup port whose answers are the keys, or what a test makes of them."""

    def __init__(self) -> None:
        self.frames: list[list[bytes]] = []
        self.answer: Callable[[pb.LookupRequest], pb.LookupResponse] = lambda request: pb.LookupResponse(
            frame=request.frame, values=request.storage_keys
        )
        self.grpc = Grpc()
        self.silence = Silence()

    def answers(self, request: pb.LookupRequest, _: Caller, __: ReadCall) -> pb.LookupResponse:
        self.frames.append(list(request.storage_keys))
        return self.answer(request)

    async def start(self, at: int = 0, limits: PortLimits = PortLimits(), incarnation: str = "") -> None:  # noqa: B008 - a value
        address = f"127.0.0.1:{at}"
        self.port = LookupPort(address, self.answers, unlimited(), LookedAt(), None, limits, incarnation)
        await self.port.start()

    def stream(self, shown: Any = None, heard: Callable[[], None] = lambda: None) -> ServerStream:
        by_grpc: Any = self.grpc
        self.made = ServerStream(by_grpc, "127.0.0.1:1", shown, heard, self.silence)
        return self.made

    async def reached(self) -> ServerStream:
        """A stream that goes by the port."""
        stream = self.stream()
        stream.announced(self.port.port)
        await eventually(lambda: stream.port, LONG_SECONDS)
        return stream


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.start()
    yield served
    await served.made.close(ClientClosed("over"))
    await served.port.stop()


def send(stream: ServerStream, *keys: bytes, seconds: float = LONG_SECONDS) -> Sink:
    sink = Sink()
    stream.submit(LANE, Segment(keys, sink, asyncio.get_running_loop().time() + seconds))
    return sink


async def test_lookups_go_by_the_port_once_it_is_reached_and_by_grpc_before_and_where_none_is_announced(
    served: Served,
) -> None:
    heard: list[None] = []
    stream = served.stream(heard=lambda: heard.append(None))
    send(stream, b"early")
    stream.announced(0)
    assert served.grpc.waiting == [b"early"]
    stream.announced(served.port.port)
    send(stream, b"still early")
    assert served.grpc.waiting == [b"still early"]
    await eventually(lambda: stream.port, LONG_SECONDS)
    sink = send(stream, b"a", b"b")
    await eventually(lambda: sink.came == {0: b"a", 1: b"b"})
    assert heard
    stream.announced(0)
    send(stream, b"late")
    assert served.grpc.waiting == [b"late"]
    await eventually(lambda: not served.port.connections)


async def test_a_key_goes_at_once_where_one_was_asked_for_before_and_else_with_all_others_of_its_turn(
    served: Served,
) -> None:
    stream = await served.reached()
    sent: list[bytes] = []
    transport: Any = stream.port and stream.port._transport
    write = transport.write

    def noted(data: bytes) -> None:
        sent.append(data)
        write(data)

    transport.write = noted
    sink = send(stream, b"first")
    assert len(sent) == 1
    await eventually(lambda: sink.came)
    for count in (16, 16, 5):
        sinks = [send(stream, b"key-%d" % number) for number in range(count)]
        await eventually(lambda sinks=sinks: all(sink.came for sink in sinks))
    # The first of several goes alone, as nobody knows of the others yet; from then on all go together.
    assert [len(keys) for keys in served.frames] == [1, 1, 15, 16, 5]
    one = send(stream, b"one")
    await eventually(lambda: one.came)
    before = len(sent)
    send(stream, b"again one")
    assert len(sent) == before + 1


async def test_what_a_connection_that_breaks_leaves_without_an_answer_goes_on_by_grpc_and_the_port_is_tried_again(
    served: Served,
) -> None:
    stream = await served.reached()
    served.answer = lambda request: [of.cut() for of in list(served.port.connections)] and pb.LookupResponse()  # type: ignore[return-value]
    sinks = [send(stream, b"in flight"), send(stream, b"waits too")]
    await eventually(lambda: stream.port is None)
    await eventually(lambda: not stream._streams)
    assert sorted(served.grpc.waiting) == [b"in flight", b"waits too"]
    assert not any(sink.came for sink in sinks)
    served.answer = Served().answer
    await eventually(lambda: stream.port, LONG_SECONDS)
    sink = send(stream, b"a")
    await eventually(lambda: sink.came == {0: b"a"})


@pytest.mark.parametrize(
    "last",
    [
        packed_message(pb.LookupResponse(failures=[pb.LookupFailure(error=to_proto(Unauthenticated("expired")))])),
        packed(b"\xff\xff\xff"),
        b"\xff\xff\xff\xff",
        b"",
    ],
)
async def test_whatever_a_port_ends_with_is_no_answer_to_anybody(served: Served, last: bytes) -> None:
    stream = await served.reached()

    def ends(request: pb.LookupRequest) -> pb.LookupResponse:
        (connection,) = served.port.connections
        connection._transport.write(last)
        connection._over = True
        connection._transport.close()
        return pb.LookupResponse()

    served.answer = ends
    connection_of: Any = next(iter(served.port.connections))
    connection_of._send = lambda _: None
    sink = send(stream, b"a")
    await eventually(lambda: stream.port is None and not stream._streams)
    assert served.grpc.waiting == [b"a"]
    assert not sink.came


async def test_a_port_that_keeps_silent_is_given_up(served: Served) -> None:
    served.silence = Silence(most_seconds=0.2)
    stream = await served.reached()
    (connection,) = served.port.connections
    connection._transport.pause_reading()
    sink = send(stream, b"a")
    await eventually(lambda: not stream._streams)
    assert served.grpc.waiting == [b"a"]
    assert not sink.came


async def test_a_port_that_reads_nothing_gets_no_more_than_the_kernel_takes_and_the_others_expire(
    served: Served,
) -> None:
    served.silence = Silence(PATIENCE_SECONDS, PATIENCE_SECONDS)
    stream = await served.reached()
    (connection,) = served.port.connections
    connection._transport.pause_reading()
    assert stream.port is not None
    sinks = []
    async with asyncio.timeout(LONG_SECONDS):
        while not stream.port._blocked:
            sinks.append(send(stream, b"k" * 500_000, seconds=1.0))
            await asyncio.sleep(0.06)  # a frame that is stuck no longer keeps others back
    late = send(stream, b"late", seconds=0.05)
    await eventually(lambda: late.came)
    assert isinstance(late.came[0], DeadlineExceeded)
    connection._transport.resume_reading()
    await eventually(lambda: all(sink.came for sink in sinks), LONG_SECONDS)


async def test_where_nobody_listens_or_answers_the_opening_grpc_is_used_and_the_log_says_so_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_stream, "_MOST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(server_stream, "_FIRST_PAUSE_SECONDS", 0.01)
    await served.port.stop()
    stream, attempts = served.stream(), []
    connect = stream._connect

    async def counted(port: int) -> Any:
        attempts.append(port)
        return await connect(port)

    stream._connect = counted  # type: ignore[method-assign]
    with caplog.at_level("INFO", server_stream.__name__):
        stream.announced(served.port.port)
        await eventually(lambda: len(attempts) > 5)
        assert stream.port is None
        said = [record.message for record in caplog.records if record.name == server_stream.__name__]
        assert said == ["lookups go by gRPC, as the server's lookup port can't be used"]
        await served.start(served.port.port)
        await eventually(lambda: stream.port, LONG_SECONDS)
    sink = send(stream, b"a")
    await eventually(lambda: sink.came == {0: b"a"})


async def test_who_has_a_newer_token_connects_anew_before_the_older_one_ends_and_loses_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_stream, "_LOOK_SECONDS", 0.01)

    class Shown:
        number = 0

        def version(self) -> int:
            return self.number

        def authorization(self) -> str:
            return f"Bearer {self.number}"

        def tls(self) -> tuple[None, str]:
            return None, ""

    shown, stopped = Shown(), asyncio.Event()
    stream = served.stream(shown)
    stream.announced(served.port.port)
    await eventually(lambda: stream.port, LONG_SECONDS)
    first = stream.port
    assert first is not None

    async def reading() -> int:
        answered = 0
        while not stopped.is_set():
            sink = send(stream, b"a")
            await eventually(lambda sink=sink: sink.came)
            assert sink.came == {0: b"a"}
            answered += 1
        return answered

    readers = [asyncio.ensure_future(reading()) for _ in range(4)]
    (older,) = served.port.connections
    older._transport.pause_reading()
    under_way = send(stream, b"under way")
    shown.number = 1
    await eventually(lambda: stream.port not in (None, first), LONG_SECONDS)
    older._transport.resume_reading()
    await eventually(lambda: under_way.came == {0: b"under way"})
    await eventually(lambda: len(served.port.connections) == 1)
    assert first.over.done()
    stopped.set()
    assert all(await asyncio.gather(*readers))
    assert stream.port is not None
    assert stream.port._authorization == "Bearer 1"
    assert served.grpc.waiting == []


async def test_another_server_that_has_the_number_of_a_port_by_now_is_not_asked(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_stream, "_MOST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(server_stream, "_FIRST_PAUSE_SECONDS", 0.01)
    number = served.port.port
    await served.port.stop()
    await served.start(number, incarnation="one")
    stream = served.stream()
    stream.announced(number, "one")
    await eventually(lambda: stream.port, LONG_SECONDS)
    await served.port.stop()
    await served.start(number, incarnation="two")
    with caplog.at_level("INFO", server_stream.__name__):
        await eventually(lambda: "another server" in str([vars(record) for record in caplog.records]), LONG_SECONDS)
    send(stream, b"a")
    assert (stream.port, served.grpc.waiting, served.frames) == (None, [b"a"], [])
    stream.announced(number, "two")
    await eventually(lambda: stream.port, LONG_SECONDS)
    sink = send(stream, b"b")
    await eventually(lambda: sink.came == {0: b"b"})


async def test_closing_fails_what_is_under_way_with_its_error_and_leaves_no_connection(served: Served) -> None:
    stream = await served.reached()
    (connection,) = served.port.connections
    connection._transport.pause_reading()
    sink, error = send(stream, b"a", b"b"), NoServer("it is gone")
    assert stream.keys == 2
    await stream.close(error)
    assert sink.came == {0: error, 1: error}
    assert stream.keys == 0
    with pytest.raises(NoServer):
        send(stream, b"c")
    connection._transport.resume_reading()
    await eventually(lambda: not served.port.connections)
    await stream.close(error)


async def test_large_values_come_in_pieces_and_frames_beyond_the_server_s_limit_are_never_made(served: Served) -> None:
    stream = await served.reached()
    value = b"v" * (16 << 20)
    served.answer = lambda request: pb.LookupResponse(frame=request.frame, values=[value])
    sink = send(stream, b"a")
    await eventually(lambda: sink.came, LONG_SECONDS)
    assert sink.came == {0: value}
    served.answer = Served().answer
    keys = [b"%d" % number + b"k" * 900_000 for number in range(6)]
    sink = send(stream, *keys)
    await eventually(lambda: len(sink.came) == 6, LONG_SECONDS)
    assert sink.came == dict(enumerate(keys))
    assert stream.port is not None


async def test_a_frame_that_seemed_late_goes_by_the_port_again_without_its_time(served: Served) -> None:
    stream, times = await served.reached(), []

    def late_at_first(request: pb.LookupRequest) -> pb.LookupResponse:
        times.append(request.sent_ms)
        if len(times) > 1:
            return Served().answer(request)
        failure = pb.LookupFailure(error=to_proto(DeadlineExceeded("it came too late", late_ms=5_000)))
        return pb.LookupResponse(frame=request.frame, values=[b""], failures=[failure])

    served.answer = late_at_first
    sink = send(stream, b"a")
    await eventually(lambda: sink.came == {0: b"a"})
    assert [bool(of) for of in times] == [True, False]


@asynccontextmanager
async def full_port() -> AsyncIterator[Served]:
    served = Served()
    await served.start(limits=PortLimits(connections=0))
    try:
        yield served
    finally:
        await served.made.close(ClientClosed("over"))
        await served.port.stop()


async def test_a_port_without_room_leaves_all_to_grpc() -> None:
    async with full_port() as served:
        stream = served.stream()
        stream.announced(served.port.port)
        await eventually(lambda: stream._said)
        send(stream, b"a")
        assert served.grpc.waiting == [b"a"]

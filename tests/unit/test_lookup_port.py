"""A lookup port on real sockets: what callers get, and those who send garbage, too much, too slowly, or never read."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.config import StateServerConfig
from keyhole.errors import (
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidConfiguration,
    MalformedRequest,
    Overloaded,
    PortTaken,
    TooLarge,
    Unsupported,
)
from keyhole.rpc import lookup_port
from keyhole.rpc.lookup_port import LookupPort
from keyhole.rpc.port_calls import AnswerFrame, PortLimits
from keyhole.rpc.port_frames import REQUEST_BYTES, VERSION, Incoming, packed, packed_message
from keyhole.rpc.read_admission import ReadAdmission, ReadCall, ReadLimits
from keyhole.rpc.unsent import Unsent
from keyhole.security.authentication import Caller as Known
from keyhole.security.guard import PortGuard
from keyhole.v1 import query_pb2 as pb
from tests.support.certificates import Authority
from tests.support.lookup_ports import Caller, LookedAt, calling, unlimited
from tests.support.waiting import LONG_SECONDS, eventually

OPENING = packed_message(pb.LookupOpening(version=VERSION))
USUAL = PortLimits()
VALUE = b"v" * (1 << 20)


def echo(request: pb.LookupRequest, _: Known, __: ReadCall) -> pb.LookupResponse:
    """The keys are the values."""
    return pb.LookupResponse(frame=request.frame, values=request.storage_keys)


def large(request: pb.LookupRequest, _: Known, __: ReadCall) -> pb.LookupResponse:
    return pb.LookupResponse(frame=request.frame, values=[VALUE])


@asynccontextmanager
async def served(
    answer: AnswerFrame = echo,
    limits: PortLimits = USUAL,
    clock: LookedAt | None = None,
    admission: ReadAdmission | None = None,
) -> AsyncIterator[LookupPort]:
    port = LookupPort("127.0.0.1:0", answer, admission or unlimited(), clock or LookedAt(), None, limits)
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


@asynccontextmanager
async def opened(port: LookupPort) -> AsyncIterator[Caller]:
    async with calling(port.port) as caller:
        yield await caller.open()


def speaking_tls(directory: Path) -> tuple[Any, ssl.SSLContext]:
    """A guard that lets everybody in by TLS, and what a caller shows it."""
    authority = Authority(directory)
    files = authority.issue("server", "127.0.0.1")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(files.certificate, files.key)
    guard = SimpleNamespace(check_host=lambda *_: None, http_context=lambda: own, access=None)
    return guard, ssl.create_default_context(cafile=authority.path)


def frame(number: int, *keys: bytes) -> pb.LookupRequest:
    return pb.LookupRequest(frame=number, storage_keys=keys)


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 1500), max_size=12))
def test_messages_are_whole_however_their_bytes_come(messages: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(map(packed, messages))
    incoming, got, at = Incoming(300), [], 0
    for cut in [*sorted(cuts), len(sent)]:
        if at < min(cut, len(sent)):
            incoming.add(sent[at:cut])
            at = cut
        while (message := incoming.next()) is not None:
            got.append(message)
    assert got == messages
    assert incoming.held == 0


def test_nothing_is_kept_of_a_message_that_was_taken() -> None:
    """An idle connection kept the megabytes of its last one, which no bound counted."""
    sent, incoming = packed(b"x" * 1000), Incoming(1000)
    for pieces in ((sent,), (sent[:400], sent[400:]), (sent + sent[:2], sent[2:])):
        for piece in pieces:
            incoming.add(piece)
        while incoming.next() is not None:
            pass
        assert len(incoming._data) == 0


def test_a_length_above_the_most_is_refused_before_its_bytes_come() -> None:
    incoming = Incoming(10)
    incoming.add(packed(b"x" * 10) + (11).to_bytes(4, "big"))
    assert incoming.next() == b"x" * 10
    with pytest.raises(TooLarge, match="11 bytes"):
        incoming.next()


async def test_frames_are_answered_in_their_order_also_those_that_come_in_pieces_or_together() -> None:
    async with served() as port, opened(port) as caller:
        caller.send(*(frame(number, b"k%d" % number) for number in range(1, 200)))
        assert [(await caller.next()).frame for _ in range(199)] == list(range(1, 200))
        sent = packed_message(frame(7, b"key"))
        for byte in range(len(sent)):
            caller.writer.write(sent[byte : byte + 1])
            await caller.writer.drain()
            await asyncio.sleep(0)
        assert await caller.next() == pb.LookupResponse(frame=7, values=[b"key"])


async def test_others_have_their_turn_while_one_caller_s_thousand_frames_are_answered() -> None:
    order: list[bytes] = []

    def noted(request: pb.LookupRequest, _: Known, __: ReadCall) -> pb.LookupResponse:
        order.append(request.storage_keys[0])
        return pb.LookupResponse(frame=request.frame)

    async with served(noted) as port, opened(port) as many, opened(port) as one:
        many.send(*(frame(number, b"many") for number in range(1, 1001)))
        one.send(frame(1, b"one"))
        await one.next()
        await eventually(lambda: len(order) == 1001)
        assert order.index(b"one") < 500


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x03\xff\xff\xff", b"PRI * HTTP/2.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]
)
@pytest.mark.parametrize("before", [b"", OPENING])
async def test_garbage_ends_the_connection_with_why_and_no_other_one(garbage: bytes, before: bytes) -> None:
    async with served() as port, opened(port) as good, calling(port.port) as caller:
        caller.writer.write(before + garbage)
        if before:
            assert await caller.next() == pb.LookupResponse()
        assert isinstance(await caller.why_ended(), (MalformedRequest, TooLarge))
        good.send(frame(1, b"k"))
        assert (await good.next()).values == [b"k"]


async def test_who_speaks_another_version_or_gives_a_frame_no_number_is_told_so() -> None:
    async with served() as port:
        async with calling(port.port) as caller:
            caller.send(pb.LookupOpening(version=2))
            assert isinstance(await caller.why_ended(), Unsupported)
        async with opened(port) as caller:
            caller.send(frame(0, b"k"))
            assert isinstance(await caller.why_ended(), MalformedRequest)


async def test_a_bug_in_an_answer_ends_the_connection_and_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: pb.LookupRequest, _: Known, __: ReadCall) -> pb.LookupResponse:
        raise ZeroDivisionError

    async with served(broken) as port, opened(port) as caller:
        caller.send(frame(1, b"k"))
        assert isinstance(await caller.why_ended(), InternalError)
    assert "ZeroDivisionError" in caplog.text


async def test_requests_have_a_limit_and_an_opening_has_a_smaller_one() -> None:
    async with served() as port:
        async with opened(port) as caller:
            caller.writer.write((REQUEST_BYTES + 1).to_bytes(4, "big"))
            assert isinstance(await caller.why_ended(), TooLarge)
        async with calling(port.port) as caller:
            caller.writer.write((1 << 20).to_bytes(4, "big"))
            assert isinstance(await caller.why_ended(), TooLarge)


async def test_a_caller_that_never_reads_is_read_from_no_more_and_then_let_go() -> None:
    clock, answered = LookedAt(), 0

    def counted(request: pb.LookupRequest, known: Known, call: ReadCall) -> pb.LookupResponse:
        nonlocal answered
        answered += 1
        return large(request, known, call)

    async with served(counted, clock=clock) as port, opened(port) as good, calling(port.port) as caller:
        await caller.open()
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(*(frame(number, b"k") for number in range(1, 2001)))
        await eventually(lambda: any(of._stalled for of in port.connections))
        (connection,) = (of for of in port.connections if of._stalled)
        before = -1
        while before < answered or not connection._stalled:  # the kernel's buffers may take some more
            before = answered
            await asyncio.sleep(0.1)
        # What these buffers took, and unsent_bytes: not the 2 GB that were asked for.
        assert answered < 200
        clock.advance(30)
        await asyncio.sleep(0.02)
        assert connection in port.connections
        good.send(frame(1, b"k"))
        assert (await good.next()).frame == 1
        clock.advance(61)
        await eventually(lambda: connection not in port.connections)


async def test_callers_that_never_read_take_so_much_together_and_who_reads_is_answered() -> None:
    most = 3 << 20
    limits = PortLimits(unsent_bytes=1 << 20, all_unsent_bytes=most)
    async with served(large, limits) as port, AsyncExitStack() as callers:

        def unsent() -> int:
            return sum(of._transport.get_write_buffer_size() for of in port.connections if not of._over)

        highest = 0

        def most_are_gone() -> bool:
            nonlocal highest
            highest = max(highest, unsent())
            return len(port.connections) <= 5

        good = await callers.enter_async_context(opened(port))
        (of_good,) = port.connections
        for _ in range(20):
            caller = await callers.enter_async_context(opened(port))
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            caller.send(*(frame(number, b"k") for number in range(1, 101)))
        await eventually(most_are_gone, LONG_SECONDS)
        for number in range(1, 20):
            good.send(frame(number, b"k"))
            assert (await good.next()).frame == number
            highest = max(highest, unsent())
        assert of_good in port.connections
        assert len(VALUE) < highest <= most + len(VALUE)
        for connection in list(port.connections):
            connection.cut()
        assert port.unsent.bytes == 0


async def test_who_is_cut_off_for_what_all_have_not_read_is_who_took_nothing_for_longest() -> None:
    class Taker:
        """A connection whose caller has so many bytes unread."""

        def __init__(self) -> None:
            self.unread = 0
            self.is_cut = False

        def cut(self) -> None:
            self.is_cut = True

    unsent = Unsent[Taker](100, lambda of: of.unread, Taker.cut)
    reads, never, late = Taker(), Taker(), Taker()
    for taker, unread in ((reads, 40), (never, 30), (late, 30)):
        taker.unread = unread
        unsent.note(taker, unread)
    reads.unread = 39
    late.unread += 1
    unsent.note(late, late.unread)
    assert (unsent.bytes, reads.is_cut, never.is_cut, late.is_cut) == (100, False, False, False)
    late.unread += 1
    unsent.note(late, late.unread)
    assert (unsent.bytes, reads.is_cut, never.is_cut, late.is_cut) == (71, False, True, False)


async def test_a_caller_that_reads_late_gets_all_answers() -> None:
    async with served(large) as port, opened(port) as caller:
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(*(frame(number, b"k") for number in range(1, 51)))
        (connection,) = port.connections
        await eventually(lambda: connection._stalled)
        caller.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await caller.next()).frame for _ in range(50)] == list(range(1, 51))


async def test_the_time_in_which_a_caller_did_not_read_is_not_counted_once_it_reads() -> None:
    clock = LookedAt()
    async with served(clock=clock) as port, opened(port) as caller:
        sent = packed_message(frame(1, b"key"))
        caller.writer.write(sent[:7])
        (connection,) = port.connections
        await eventually(lambda: connection._incoming.held)
        connection.pause_writing()
        clock.advance(30)
        connection.resume_writing()
        clock.advance(2)
        await asyncio.sleep(0.02)
        caller.writer.write(sent[7:])
        assert await caller.next() == pb.LookupResponse(frame=1, values=[b"key"])


@pytest.mark.parametrize("sent", [b"", OPENING[:5], OPENING + packed_message(frame(1, b"key"))[:7]])
async def test_who_does_not_come_to_the_end_of_a_message_is_let_go(sent: bytes) -> None:
    clock = LookedAt()
    async with served(clock=clock) as port, calling(port.port) as caller:
        caller.writer.write(sent)
        if sent.startswith(OPENING):
            assert await caller.next() == pb.LookupResponse()
        await eventually(lambda: any(bool(of._incoming.held) is bool(sent) for of in port.connections))
        clock.advance(9)
        await asyncio.sleep(0.02)
        assert port.connections
        clock.advance(2)
        assert isinstance(await caller.why_ended(), DeadlineExceeded)


async def test_a_connection_that_nobody_uses_ends_after_a_long_while() -> None:
    clock = LookedAt()
    async with served(clock=clock) as port, opened(port) as caller:
        clock.advance(599)
        caller.send(frame(1, b"k"))
        assert (await caller.next()).frame == 1
        clock.advance(599)
        await asyncio.sleep(0.02)
        assert port.connections
        clock.advance(2)
        assert isinstance(await caller.why_ended(), DeadlineExceeded)


async def test_connections_beyond_the_most_are_closed_and_make_room_again() -> None:
    async with served(limits=PortLimits(connections=2)) as port, opened(port), opened(port) as second:
        async with calling(port.port) as third:
            assert await third.is_over()
        second.writer.close()
        await eventually(lambda: len(port.connections) == 1)
        async with opened(port) as fourth:
            fourth.send(frame(1, b"k"))
            assert (await fourth.next()).frame == 1


async def test_messages_that_never_end_take_so_much_together_and_no_more() -> None:
    async with served(limits=PortLimits(held_bytes=100_000)) as port, opened(port) as first, opened(port) as second:
        for caller in (first, second):
            caller.writer.write((1 << 20).to_bytes(4, "big") + b"x" * 60_000)
        done = [asyncio.ensure_future(caller.why_ended()) for caller in (first, second)]
        ((ended,), _) = await asyncio.wait(done, timeout=LONG_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(ended.result(), Overloaded)
        for task in done:
            task.cancel()
        for caller in (first, second):
            caller.writer.transport.abort()
        await eventually(lambda: port.held_bytes == 0)


async def test_a_drain_says_so_sends_what_is_on_its_way_and_takes_nobody_more() -> None:
    async with served(large) as port, opened(port) as caller:
        caller.send(*(frame(number, b"k") for number in range(1, 5)))
        assert (await caller.next()).frame == 1
        await eventually(lambda: all(not of._incoming.held for of in port.connections))
        port.drain()
        assert [(await caller.next()).frame for _ in range(3)] == [2, 3, 4]
        assert isinstance(await caller.why_ended(), Draining)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port.port)


async def test_whoever_ends_its_handshake_behind_a_drain_is_told_so_and_behind_a_stop_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = list[object]()

    class Noted(lookup_port._PortConnection):
        def __init__(self, port: LookupPort) -> None:
            super().__init__(port)
            accepted.append(self)

    monkeypatch.setattr(lookup_port, "_PortConnection", Noted)
    guard, shown = speaking_tls(tmp_path)
    port = LookupPort("127.0.0.1:0", echo, unlimited(), LookedAt(), guard)
    await port.start()
    async with calling(port.port) as first, calling(port.port) as second:
        await eventually(lambda: len(accepted) == 2)
        port.drain()
        await first.writer.start_tls(shown, server_hostname="127.0.0.1")
        assert isinstance(await first.why_ended(), Draining)
        await port.stop()
        with contextlib.suppress(ConnectionError):
            await second.writer.start_tls(shown, server_hostname="127.0.0.1")
            assert await second.is_over()
        await eventually(lambda: not port.connections)


async def test_who_never_ends_a_handshake_takes_the_place_of_a_connection(tmp_path: Path) -> None:
    guard, shown = speaking_tls(tmp_path)
    port = LookupPort("127.0.0.1:0", echo, unlimited(), LookedAt(), guard, PortLimits(connections=2))
    await port.start()
    async with calling(port.port) as silent, calling(port.port) as second:
        await eventually(lambda: port.open_connections == 2)
        async with calling(port.port) as third:
            assert await third.is_over()
        silent.writer.close()
        await eventually(lambda: port.open_connections == 1)
        await second.writer.start_tls(shown, server_hostname="127.0.0.1")
        await second.open()
        assert port.open_connections == len(port.connections) == 1
    await port.stop()


async def test_an_address_that_is_taken_or_none_or_in_the_clear_for_all_is_refused() -> None:
    async with served() as port:
        with pytest.raises(PortTaken, match="the lookup port"):
            await LookupPort(f"127.0.0.1:{port.port}", echo, unlimited(), LookedAt(), None).start()
    with pytest.raises(InvalidConfiguration, match="must be host:port"):
        LookupPort("7411", echo, unlimited(), LookedAt(), None)
    guard = PortGuard("state-server", "127.0.0.1", StateServerConfig(bootstrap_servers="memory"))
    with pytest.raises(InvalidConfiguration, match="without TLS"):
        LookupPort("0.0.0.0:0", echo, unlimited(), LookedAt(), guard)


async def test_a_connection_is_a_call_of_its_caller_as_long_as_it_stands_and_limits_count_for_it() -> None:
    admission = ReadAdmission(ReadLimits(caller_calls=2), LookedAt(), "this server")
    async with served(admission=admission) as port:
        async with calling(port.port) as silent, opened(port), opened(port) as second:
            assert admission.calls == 2
            silent.send(pb.LookupOpening(version=VERSION))
            refused = await silent.why_ended()
            assert isinstance(refused, Overloaded)
            assert refused.message.startswith("ipv4:127.0.0.1: 2 calls")
            second.writer.close()
            await eventually(lambda: admission.calls == 1)
            async with opened(port) as third:
                third.send(frame(1, b"k"))
                assert (await third.next()).frame == 1
        await eventually(lambda: admission.calls == 0)

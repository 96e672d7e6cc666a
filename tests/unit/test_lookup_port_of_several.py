"""A lookup port that other processes serve with it: connections that are given away, frames that are answered later."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keyhole.config import StateServerConfig
from keyhole.errors import Draining, InternalError, PortTaken, Unauthenticated
from keyhole.rpc import accepting
from keyhole.rpc.accepting import Accepting
from keyhole.rpc.lookup_port import _MOST_OWED, LookupPort
from keyhole.rpc.port_calls import AnswerFrame, HandOver
from keyhole.rpc.read_admission import ReadCall
from keyhole.security.authentication import Caller as Known
from keyhole.security.guard import PortGuard
from keyhole.v1 import query_pb2 as pb
from tests.support.certificates import Authority
from tests.support.lookup_ports import Caller, LookedAt, calling, unlimited
from tests.support.waiting import LONG_SECONDS, eventually


def echo(request: pb.LookupRequest, _: Known, __: ReadCall) -> pb.LookupResponse:
    """The keys are the values."""
    return pb.LookupResponse(frame=request.frame, values=request.storage_keys)


def frame(number: int, *keys: bytes) -> pb.LookupRequest:
    return pb.LookupRequest(frame=number, storage_keys=keys)


@asynccontextmanager
async def served(
    answer: AnswerFrame = echo, hand_over: HandOver | None = None, guard: PortGuard | None = None
) -> AsyncIterator[LookupPort]:
    port = LookupPort("127.0.0.1:0", answer, unlimited(), LookedAt(), guard, hand_over=hand_over)
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


class Later:
    """Answers frames with the key "later" when it is told to, and others at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[pb.LookupRequest, asyncio.Future[pb.LookupResponse]]] = []

    def __call__(
        self, request: pb.LookupRequest, _: Known, __: ReadCall
    ) -> pb.LookupResponse | asyncio.Future[pb.LookupResponse]:
        if request.storage_keys[0] != b"later":
            return pb.LookupResponse(frame=request.frame, values=request.storage_keys)
        answered: asyncio.Future[pb.LookupResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((request, answered))
        return answered

    def answer(self) -> None:
        """All that was asked."""
        asked, self.asked = self.asked, []
        for request, answered in asked:
            answered.set_result(pb.LookupResponse(frame=request.frame, values=request.storage_keys))


async def test_a_frame_that_is_answered_later_holds_up_no_other() -> None:
    later = Later()
    async with served(later) as port, calling(port.port) as caller:
        await caller.open()
        caller.send(frame(1, b"later"), frame(2, b"now"), frame(3, b"later"))
        assert (await caller.next()).frame == 2
        later.answer()
        assert [await caller.next() for _ in range(2)] == [
            pb.LookupResponse(frame=number, values=[b"later"]) for number in (1, 3)
        ]


async def test_no_more_is_read_of_a_caller_to_whom_many_answers_are_owed() -> None:
    later, many = Later(), 3 * _MOST_OWED
    async with served(later) as port, calling(port.port) as caller, calling(port.port) as other:
        await caller.open()
        await other.open()
        caller.send(*(frame(number, b"later") for number in range(1, many + 1)))
        await eventually(lambda: len(later.asked) == _MOST_OWED, LONG_SECONDS)
        other.send(frame(1, b"now"))
        assert (await other.next()).frame == 1
        assert len(later.asked) == _MOST_OWED
        got: list[int] = []
        while len(got) < many:
            owed = len(later.asked)
            assert owed <= _MOST_OWED
            later.answer()
            got += [(await caller.next()).frame for _ in range(owed)]
            if len(got) < many:
                await eventually(lambda: bool(later.asked), LONG_SECONDS)
        assert got == list(range(1, many + 1))


async def test_a_caller_to_whom_answers_are_owed_is_not_late_and_is_let_go_once_it_is_not_known_any_more() -> None:
    class Expired:
        is_anybody = True

        def still_known(self) -> bool:
            return False

    later = Later()
    async with served(later) as port, calling(port.port) as caller:
        await caller.open()
        caller.send(*(frame(number, b"later") for number in range(1, 2 * _MOST_OWED)))
        await eventually(lambda: len(later.asked) == _MOST_OWED, LONG_SECONDS)
        (connection,) = port.connections
        at = connection._since + port.limits.opening_seconds + 1
        connection.look(at)
        assert port.connections == {connection}
        known: Any = Expired()
        connection._caller = known
        connection.look(at)
        assert isinstance(await caller.why_ended(), Unauthenticated)


async def test_a_connection_whose_answer_never_comes_ends_and_one_that_is_gone_is_not_written_to() -> None:
    later = Later()
    async with served(later) as port, calling(port.port) as caller:
        await caller.open()
        async with calling(port.port) as gone:
            await gone.open()
            gone.send(frame(1, b"later"))
            await eventually(lambda: len(later.asked) == 1, LONG_SECONDS)
        await eventually(lambda: len(port.connections) == 1, LONG_SECONDS)
        later.answer()
        caller.send(frame(1, b"later"))
        await eventually(lambda: len(later.asked) == 1, LONG_SECONDS)
        later.asked.pop()[1].set_exception(RuntimeError("lost"))
        ended = await caller.why_ended()
        assert isinstance(ended, InternalError)
        assert "another process of the server" in str(ended)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_connection_that_is_given_away_is_served_there_and_one_that_is_not_here(
    tls: bool, tmp_path: Path
) -> None:
    guard: PortGuard | None = None
    shown: ssl.SSLContext | None = None
    if tls:
        authority = Authority(tmp_path)
        files = authority.issue("server", "127.0.0.1")
        config = StateServerConfig(
            bootstrap_servers="memory", tls="on", tls_certificate=files.certificate, tls_key=files.key
        )
        guard, shown = PortGuard("state-server", "127.0.0.1", config), ssl.create_default_context(cafile=authority.path)
    there = LookupPort("127.0.0.1:0", echo, unlimited(), LookedAt(), guard)
    there.begin()
    given = []

    def hand_over(connection: socket.socket) -> bool:
        given.append(len(given) % 2 == 0)
        if given[-1]:
            there.take(socket.socket(fileno=socket.dup(connection.fileno())))
        return given[-1]

    async with served(hand_over=hand_over, guard=guard) as port:
        for number in range(4):
            async with calling(port.port, shown) as caller:
                await caller.open()
                caller.send(frame(1, b"key"))
                assert (await caller.next()).values == [b"key"]
                assert (len(there.connections), len(port.connections)) == ((1, 0), (0, 1))[number % 2]
            await eventually(lambda: not there.connections and not port.connections, LONG_SECONDS)
        assert given == [True, False, True, False]
    await there.stop()


async def test_who_can_t_speak_tls_or_goes_at_once_leaves_nothing(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server", "127.0.0.1")
    config = StateServerConfig(
        bootstrap_servers="memory", tls="on", tls_certificate=files.certificate, tls_key=files.key
    )
    guard = PortGuard("state-server", "127.0.0.1", config)
    async with served(hand_over=lambda _: False, guard=guard) as port:
        async with calling(port.port) as caller:
            caller.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while await caller.reader.read(100):
                    pass
        async with calling(port.port):
            pass
        await eventually(lambda: not port._taking and not port.connections, LONG_SECONDS)


async def test_a_port_whose_connections_are_given_away_is_nobody_else_s() -> None:
    async with served(hand_over=lambda _: False) as port:
        with pytest.raises(PortTaken, match="the lookup port can't listen on"):
            await LookupPort(
                f"127.0.0.1:{port.port}", echo, unlimited(), LookedAt(), None, hand_over=lambda _: False
            ).start()
    with pytest.raises(PortTaken):
        Accepting("it", "192.0.2.1", 0, lambda _: None)


@pytest.mark.parametrize("hand_over", [None, lambda _: False], ids=["alone", "of several"])
async def test_a_connection_that_was_not_taken_yet_at_the_drain_is_told_where_to_ask(
    hand_over: HandOver | None,
) -> None:
    """The kernel has made it; as the port was closed, it was reset."""
    async with served(hand_over=hand_over) as port:
        with socket.create_connection(("127.0.0.1", port.port)) as waiting:
            port.drain()
            waiting.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=waiting)
            assert isinstance(await Caller(reader, writer).why_ended(), Draining)
            writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port.port)


async def test_a_connection_that_can_t_be_begun_is_closed_and_the_cause_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("as of a bug")

    monkeypatch.setattr(asyncio.BaseEventLoop, "connect_accepted_socket", fails)
    async with served() as port, calling(port.port) as caller:
        assert await caller.is_over()
    assert [of.getMessage() for of in caplog.records if of.exc_info] == ["a connection could not be begun"]
    assert "as of a bug" in caplog.text


async def test_connections_wait_while_no_more_can_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_FULL_SECONDS", 0.01)
    full, taken = [True], []

    class Full(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if full.pop() if full else False:
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    monkeypatch.setattr(socket, "socket", Full)
    listening = Accepting("it", "127.0.0.1", 0, taken.append)
    async with calling(listening.port):
        await eventually(lambda: len(taken) == 1, LONG_SECONDS)
    taken[0].close()
    listening.close()


@pytest.mark.parametrize("error", [errno.EPERM, errno.EMFILE])
async def test_a_port_whose_waiting_connections_can_t_be_taken_is_closed_all_the_same(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """accept(2) may fail otherwise than for want of connections: the port was open until the process ended."""

    class Refusing(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            raise OSError(error, "not now")

    monkeypatch.setattr(socket, "socket", Refusing)
    known = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (name, 0)) for name in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known[: 1 + sys.platform.startswith("linux")])
    listening = Accepting("it", "somewhere", 0, lambda _: pytest.fail("none can be taken"))
    sockets = list(listening._sockets)
    listening.close()
    assert [of.fileno() for of in sockets] == [-1] * len(sockets)
    assert "not now" in [of.__dict__.get("reason") for of in caplog.records]
    assert all(timer.cancelled() for timer in listening._later.values())
    listening.close()


@pytest.mark.parametrize("before", [ConnectionAbortedError(), OSError(errno.EMFILE, "too many open files")])
async def test_what_waits_behind_a_connection_that_can_t_be_taken_is_taken_as_the_port_is_closed(
    before: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has gone meanwhile, or one for which there was no room: there is, by now."""
    failing, taken = [before], list[socket.socket]()

    class First(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if failing:
                raise failing.pop()
            return super().accept()

    monkeypatch.setattr(socket, "socket", First)
    listening = Accepting("it", "127.0.0.1", 0, taken.append)
    with socket.create_connection(("127.0.0.1", listening.port)):
        if not isinstance(before, ConnectionAbortedError):
            listening._accept(listening._sockets[0])
            assert not taken
        listening.close()
        assert len(taken) == 1
    taken[0].close()


async def test_a_name_with_an_address_that_this_machine_has_not_is_listened_on_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (name, 0)) for name in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)
    taken: list[socket.socket] = []
    listening = Accepting("it", "somewhere", 0, taken.append)
    monkeypatch.undo()
    async with calling(listening.port):
        await eventually(lambda: len(taken) == 1, LONG_SECONDS)
    taken[0].close()
    listening.close()

"""A proxy of several processes by its parts: what each may take, who has the ports, what they say to each other."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import msgspec
import pytest

from keyhole.clock import SystemClock
from keyhole.config import ClientProxyConfig, load
from keyhole.errors import InternalError, InvalidConfiguration, PortTaken
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram
from keyhole.metrics.families import Figures
from keyhole.rpc.processes.cores import cores, process_count
from keyhole.rpc.processes.word_framing import framed, read_word
from keyhole.testing.clock import ManualClock
from keyhole.v1 import stats_pb2 as pb
from services.client_proxy.metrics import put_together
from services.client_proxy.processes.child_process import ChildProcess
from services.client_proxy.processes.held_ports import held_address, held_port
from services.client_proxy.processes.parent import ended_for, serve_by_processes
from services.client_proxy.processes.parent_link import ParentLink
from services.client_proxy.processes.shares import share_of
from services.client_proxy.processes.words import (
    Ask,
    AskAll,
    Begin,
    FactsOfAll,
    FactsOfOne,
    Failed,
    Started,
    ToChild,
    ToParent,
)
from services.client_proxy.siblings import Alone, CountedReads, ProcessFacts
from tests.support.waiting import LONG_SECONDS, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone spreads connections over processes")

BEGIN = Begin(1, 2, 7400, "", "")
FROM_CHILD = msgspec.msgpack.Decoder[ToParent](ToParent)
FROM_PARENT = msgspec.msgpack.Decoder[ToChild](ToChild)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.mark.parametrize(
    ("usable", "quota", "expected"),
    [
        (4, "", 4),
        (4, "max 100000\n", 4),
        (4, "150000 100000\n", 2),
        (4, "800000 100000\n", 4),
        (4, "5000 100000\n", 1),
        (1, "400000 100000\n", 1),
    ],
)
def test_as_many_processes_run_at_once_as_the_affinity_and_the_quota_allow(
    usable: int, quota: str, expected: int
) -> None:
    assert cores(usable, quota) == expected


def test_the_setting_is_a_number_or_0_for_the_cores_of_this_machine() -> None:
    servers = {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1"}
    assert load(ClientProxyConfig, servers).processes == 1
    assert load(ClientProxyConfig, {**servers, "KEYHOLE_CLIENT_PROXY_PROCESSES": "0"}).processes == 0
    assert process_count(3) == 3
    assert 1 <= process_count(0) <= (os.cpu_count() or 1)
    for wrong in ("-1", "257", "two"):
        with pytest.raises(InvalidConfiguration, match="KEYHOLE_CLIENT_PROXY_PROCESSES is"):
            load(ClientProxyConfig, {**servers, "KEYHOLE_CLIENT_PROXY_PROCESSES": wrong})


def test_limits_of_callers_are_divided_and_those_of_one_scan_are_not() -> None:
    config = ClientProxyConfig(
        servers=("a:1",),
        max_scans=10,
        max_caller_scans=1,
        max_scan_rows=100,
        max_scan_bytes=1000,
        max_scan_seconds=3.0,
        max_lookup_calls=100,
        max_caller_lookup_calls=50,
        max_lookup_keys=4000,
        max_caller_lookup_keys=0,
        max_lookup_keys_per_second=9,
    )
    assert share_of(config, 1) == config
    share = share_of(config, 4)
    assert (share.max_scans, share.max_caller_scans) == (3, 1)
    assert (share.max_scan_rows, share.max_scan_bytes, share.max_scan_seconds) == (100, 1000, 3.0)
    assert (share.max_lookup_calls, share.max_caller_lookup_calls) == (25, 13)
    # 0 is no limit, and stays none.
    assert (share.max_lookup_keys, share.max_caller_lookup_keys) == (1000, 0)
    assert (share.max_lookup_keys_per_second, share.max_caller_lookup_keys_per_second) == (3, 0)


def listening(port: int, *, shared: bool) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
    try:
        made.bind(("127.0.0.1", port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def test_a_held_port_is_for_those_alone_that_share_it_and_takes_no_connection_itself() -> None:
    with held_port("the proxy", "127.0.0.1", 0) as port:
        assert port
        with pytest.raises(OSError, match="in use"):
            listening(port, shared=False)
        with socket.socket() as caller, pytest.raises(ConnectionRefusedError):
            caller.connect(("127.0.0.1", port))
        with closing(listening(port, shared=True)) as one, closing(listening(port, shared=True)) as other:
            one.setblocking(False)
            other.setblocking(False)
            with socket.socket() as caller:
                caller.connect(("127.0.0.1", port))
                accepted = []
                for listener in (one, other):
                    try:
                        accepted.append(listener.accept()[0])
                    except BlockingIOError:
                        continue
                assert len(accepted) == 1
                accepted[0].close()
    listening(port, shared=False).close()  # and then it is anybody's


@pytest.mark.parametrize("listens", [True, False], ids=["children listen", "children are being started"])
def test_what_another_proxy_of_several_processes_holds_is_taken(listens: bool) -> None:
    with held_port("the proxy", "127.0.0.1", 0) as port:
        children = [listening(port, shared=True)] if listens else []
        with pytest.raises(PortTaken, match=f"the other can't listen on 127.0.0.1:{port}"):
            held_port("the other", "127.0.0.1", port).__enter__()
        for child in children:
            child.close()


def test_a_port_that_others_have_and_a_host_that_is_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(listening(0, shared=False)) as other, pytest.raises(PortTaken):
        held_port("the proxy", "127.0.0.1", other.getsockname()[1]).__enter__()
    with pytest.raises(PortTaken, match=r"the proxy can't listen on 192\.0\.2\.1:7400"):
        held_port("the proxy", "192.0.2.1", 7400).__enter__()

    def unknown(*given: object, **named: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(PortTaken, match="the proxy can't listen on elsewhere:7400"):
        held_port("the proxy", "elsewhere", 7400).__enter__()


def test_the_connections_of_an_earlier_proxy_that_linger_are_no_matter() -> None:
    with closing(listening(0, shared=False)) as earlier:
        port = earlier.getsockname()[1]
        with socket.socket() as caller:
            caller.connect(("127.0.0.1", port))
            accepted, _ = earlier.accept()
            accepted.close()  # the server's side ends it first: it is the one that lingers
            assert caller.recv(1) == b""
    with held_port("the proxy", "127.0.0.1", port) as held:
        assert held == port


def test_an_address_is_held_with_its_port_and_none_is_none() -> None:
    with held_address("/metrics", "") as none:
        assert none == ""
    with held_address("/metrics", "localhost:0") as address:
        host, _, port = address.rpartition(":")
        assert host == "localhost"
        assert int(port)


def test_figures_of_processes_stand_beside_each_other_and_add_up() -> None:
    def answer(process: int, keys: int, *frames: int) -> bytes:
        own = Figures()
        own.add("keyhole_client_proxy_lookup_keys_total", (f"here:7400/{process}", "app", "state"), keys)
        name = "keyhole_client_proxy_frame_keys"
        histogram = Histogram(BY_NAME[name].buckets)
        for frame in frames:
            histogram.observe(frame)
        own.observed(name, (f"here:7400/{process}",), histogram)
        return pb.ReadStatsResponse(families=own.families()).SerializeToString()

    together = put_together("here:7400", [answer(0, 3, 1, 2), answer(1, 4, 4)])
    assert (together.component, together.name) == (pb.COMPONENT_CLIENT_PROXY, "here:7400")
    of = {family.name: family.samples for family in together.families}
    assert [(sample.labels[0], sample.value) for sample in of["keyhole_client_proxy_lookup_keys_total"]] == [
        ("here:7400/0", 3),
        ("here:7400/1", 4),
    ]
    frames = of["keyhole_client_proxy_frame_keys"]
    assert [(sample.labels[0], sum(sample.counts), sample.value) for sample in frames] == [
        ("here:7400/0", 2, 3),
        ("here:7400/1", 1, 4),
    ]


async def test_one_process_alone_has_its_own_facts_and_every_turn() -> None:
    alone = Alone()
    alone.told_by(lambda: counted(7))
    assert [of.reads[0].keys for of in await alone.facts()] == [7]
    with alone.sql_turn() as is_ours:
        assert is_ours


async def counted(keys: int) -> ProcessFacts:
    return ProcessFacts(b"", (CountedReads("app", "state", keys, 0, 0, 0),), ())


class FakeProcess:
    """Of asyncio's, as far as ChildProcess knows it: ends by SIGKILL alone."""

    pid = 1

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.over = asyncio.Event()

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.over.set()

    async def wait(self) -> int:
        await self.over.wait()
        return -self.signals[-1]


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Streams, socket.socket]]:
    """One end as streams, the other one as a socket."""
    ours, theirs = socket.socketpair()
    streams = await asyncio.open_unix_connection(sock=ours)
    yield streams, theirs
    streams[1].close()


class Patient:
    """A clock by which nothing is late until it is said to be, and pauses of its own choice are over at once."""

    def __init__(self, short_seconds: float) -> None:
        self._short = short_seconds
        self.late = asyncio.Event()

    def monotonic(self) -> float:
        return 0.0

    async def pause(self, seconds: float) -> None:
        if seconds > self._short:
            await self.late.wait()
        await asyncio.sleep(0)


async def test_a_child_that_answers_lives_and_one_that_hangs_is_killed() -> None:
    async with pair() as (streams, theirs):
        there, back = await asyncio.open_unix_connection(sock=theirs)
        process, clock = FakeProcess(), Patient(short_seconds=5.0)
        child = ChildProcess(BEGIN, process, streams, lambda child, question: None, clock)  # type: ignore[arg-type]
        ending = asyncio.create_task(child.ended())
        assert await read_word(there, FROM_PARENT) == BEGIN
        back.write(framed(Started()))
        for number in range(10):
            asked = await read_word(there, FROM_PARENT)
            assert isinstance(asked, Ask)
            back.write(framed(FactsOfOne(asked.question, b"%d" % number)))
        await eventually(lambda: child.last_facts == b"9", LONG_SECONDS)
        assert process.signals == []
        clock.late.set()  # from here on nothing is waited for
        await process.over.wait()
        back.close()
        assert await ending == -signal.SIGKILL
        assert process.signals == [signal.SIGKILL]


async def test_a_child_that_does_not_begin_to_serve_is_killed() -> None:
    async with pair() as (streams, theirs):
        process = FakeProcess()
        child = ChildProcess(BEGIN, process, streams, lambda child, question: None, ManualClock())  # type: ignore[arg-type]
        ending = asyncio.create_task(child.ended())
        await process.over.wait()
        theirs.close()
        assert await ending == -signal.SIGKILL


async def test_of_a_child_that_is_late_the_facts_are_those_that_it_told_before() -> None:
    async with pair() as (streams, theirs):
        there, back = await asyncio.open_unix_connection(sock=theirs)
        process, clock = FakeProcess(), Patient(short_seconds=-1.0)
        child = ChildProcess(BEGIN, process, streams, lambda child, question: None, clock)  # type: ignore[arg-type]
        assert await child.facts() == b""  # it is not asked before it serves
        ending = asyncio.create_task(child.ended())
        child.started.set()
        assert await read_word(there, FROM_PARENT) == BEGIN
        asking = asyncio.create_task(child.facts())
        asked = await read_word(there, FROM_PARENT)
        assert isinstance(asked, Ask)
        back.write(framed(FactsOfOne(asked.question, b"first")))
        assert await asking == b"first"
        late = asyncio.create_task(child.facts())
        assert isinstance(await read_word(there, FROM_PARENT), Ask)
        clock.late.set()
        assert await late == b"first"
        process.send_signal(signal.SIGKILL)
        back.close()
        await ending


async def link_of(streams: Streams, clock: Any) -> tuple[ParentLink, int]:
    turn = os.memfd_create("turn")
    return ParentLink(*streams, BEGIN, turn, clock), turn


async def test_a_child_has_the_facts_of_all_from_its_parent_and_keeps_them_for_when_that_is_late() -> None:
    async with pair() as (streams, theirs):
        there, back = await asyncio.open_unix_connection(sock=theirs)
        clock = Patient(short_seconds=-1.0)
        link, turn = await link_of(streams, clock)
        link.told_by(lambda: counted(1))
        assert (link.number, link.count) == (1, 2)
        asking = asyncio.create_task(link.facts())
        asked = await read_word(there, FROM_CHILD)
        assert isinstance(asked, AskAll)
        # Meanwhile the parent asks for its own.
        back.write(framed(Ask(9)))
        own = await read_word(there, FROM_CHILD)
        assert own == FactsOfOne(9, msgspec.msgpack.encode(await counted(1)))
        others = msgspec.msgpack.encode(await counted(5))
        back.write(framed(FactsOfAll(asked.question, (others, own.facts))))
        assert [of.reads[0].keys for of in await asking] == [5, 1]
        clock.late.set()
        assert [of.reads[0].keys for of in await link.facts()] == [5, 1]
        await link.close()
        back.close()
        os.close(turn)


async def test_a_child_whose_parent_has_never_answered_has_its_own_facts_and_says_why_it_ends() -> None:
    async with pair() as (streams, theirs):
        there, back = await asyncio.open_unix_connection(sock=theirs)
        link, turn = await link_of(streams, ManualClock())
        link.told_by(lambda: counted(1))
        assert [of.reads[0].keys for of in await link.facts()] == [1]
        assert isinstance(await read_word(there, FROM_CHILD), AskAll)
        await link.failed(InvalidConfiguration("no such thing"))
        assert await read_word(there, FROM_CHILD) == Failed("INVALID_CONFIGURATION", "no such thing")
        await link.close()
        assert await read_word(there, FROM_CHILD) is None
        back.close()
        os.close(turn)


async def test_a_query_runs_in_one_process_at_a_time() -> None:
    async with pair() as (streams, theirs):
        link, turn = await link_of(streams, SystemClock())
        tries = (
            "import fcntl, sys\n"
            "try: fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB)  # no more than that is free\n"
            "except OSError: sys.exit(3)\n"
        )

        async def other_may() -> bool:
            command = (sys.executable, "-c", tries, str(turn))
            process = await asyncio.create_subprocess_exec(*command, pass_fds=(turn,))
            return await process.wait() == 0

        with link.sql_turn() as mine:
            assert mine
            assert not await other_may()
        assert await other_may()
        await link.close()
        theirs.close()
        os.close(turn)


def test_why_a_child_has_ended_is_its_own_word_or_how() -> None:
    taken = ended_for(0, Failed("INVALID_CONFIGURATION", "no such thing"), 1, served=False)
    assert (type(taken), taken.message) == (InvalidConfiguration, "no such thing")
    killed = ended_for(1, None, -signal.SIGKILL, served=True)
    assert (type(killed), killed.message) == (InternalError, "process 1 of the proxy ended with signal SIGKILL")
    assert "ended with exit code 3 before it served" in ended_for(1, None, 3, served=False).message


async def test_where_processes_can_not_share_a_port_several_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidConfiguration, match=r"PROCESSES asks for 2 processes.*set it to 1"):
        await serve_by_processes(ClientProxyConfig(servers=("a:1",)), 2, asyncio.Event())

"""A state server with reader processes: the answers are those of the server, whichever process gives them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keyhole import AsyncClient
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.errors import Draining, KeyholeError
from keyhole.model.state import TtlClock
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.status import from_proto
from keyhole.stores.base import commit_of
from keyhole.stores.index_entries import rows_counted
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2
from services.state_server.read.table import Table
from services.state_server.readers import reader_process
from tests.support.lookup_ports import Caller, calling, streams_of, until_by_port
from tests.support.proxies import proxy_of
from tests.support.server_readers import (
    lives,
    passed_on,
    pid_of,
    port_of,
    read_by,
    readers_of,
    until_all_read,
    until_reported,
)
from tests.support.state_servers import RunningServer
from tests.support.states import KEY_GROUPS, descriptor, names_in, row
from tests.support.waiting import LONG_SECONDS, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reader processes need Linux")

COUNTS = pb.StateRef(application="app", state="counts")


def asked(number: int, *names: str, state: str = "counts", **options: int) -> pb.LookupRequest:
    keys = [pb.Key(parts=[pb.KeyPart(string=name)]) for name in names or ("a",)]
    return pb.LookupRequest(
        frame=number,
        state=pb.StateRef(application="app", state=state),
        keys=keys,
        options=pb.ReadOptions(**options),  # type: ignore[arg-type]
    )


async def by_grpc(server: RunningServer, request: pb.LookupRequest) -> pb.LookupResponse:
    async with aio_channel(server.address) as channel:
        async for response in query_pb2_grpc.QueryStub(channel).Lookup(iter([request])):
            return response
    raise AssertionError


async def answered(caller: Caller, request: pb.LookupRequest) -> pb.LookupResponse:
    caller.send(request)
    return await caller.next()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with read_by(tmp_path / "stores") as running:
        await running.own(descriptor())
        await running.commit({"a": row(1.0), "b": row(2.0)})
        yield running


async def test_a_reader_answers_itself_what_the_server_would(server: RunningServer) -> None:
    async with calling(port_of(server)) as caller:
        await caller.open()
        assert [of.connections for of in readers_of(server)] == [1]
        for epoch in range(2, 6):
            await server.commit({"a": row(float(epoch))})
            request = asked(epoch, "a", "b", "none")
            got = await answered(caller, request)
            assert got == await by_grpc(server, request)
            assert got.values[0] == row(float(epoch))
            assert got.sources[0].epoch == epoch
        await until_reported(server)
        before = passed_on(server)
        for number in range(1, 101):
            await answered(caller, asked(number))
        await until_reported(server)
        # A heartbeat may come between; mostly none does.
        assert passed_on(server) - before < 50
        registry = server.server._registry
        assert registry is not None
        reads = registry.tables["app", "counts"].reads
        assert (reads.frames, reads.keys) == (108, 124)
        assert registry.counts.reader_processes == 2
        assert registry.counts.reader_resident_bytes > 0


def failure(response: pb.LookupResponse) -> KeyholeError:
    return from_proto(response.failures[0].error)


async def test_what_a_reader_can_t_answer_the_server_does_and_the_caller_sees_no_difference(
    server: RunningServer,
) -> None:
    """Epochs before, states that are not there, keys that are none: with its words, and counted once."""
    await server.commit({"a": row(3.0)})
    await server.stage({"a": row(4.0)})
    stale = pb.LookupRequest(frame=5, state=COUNTS, storage_keys=[b"a"], topic_id="x")
    requests = [asked(1, as_of_epoch=1), asked(2, state="nothing"), asked(3, min_epoch=9), stale]
    registry = server.server._registry
    assert registry is not None
    reads = registry.tables["app", "counts"].reads
    by_server = [await by_grpc(server, request) for request in requests]
    keys, failed = reads.keys, dict(reads.failed)
    async with calling(port_of(server)) as caller:
        await caller.open()
        caller.send(*requests)
        got = sorted([await caller.next() for _ in requests], key=lambda response: response.frame)
    assert got == by_server
    assert got[0].values == [row(1.0)]
    await until_reported(server)
    assert (reads.keys, dict(reads.failed)) == (2 * keys, {reason: 2 * count for reason, count in failed.items()})


async def test_a_key_group_that_is_given_up_is_no_owner_s_any_more_for_whoever_asks_a_reader(
    server: RunningServer,
) -> None:
    names = [names_in(group, 1)[0] for group in range(KEY_GROUPS)]
    await server.commit({name: row(1.0) for name in names})
    async with calling(port_of(server)) as caller:
        await caller.open()
        for kept in (range(2), range(KEY_GROUPS), range(1), range(KEY_GROUPS)):
            await server.keep(list(kept))
            # Right behind the answer to its coordinator.
            for group, name in enumerate(names):
                # Others are read as a standby's, once they have caught up.
                roles = [of.role for of in (await answered(caller, asked(1, name))).sources]
                assert (state_pb2.ROLE_OWNER in roles) == (group in kept)
                request = asked(2, name, stale=pb.STALE_NEVER)
                assert bool((await answered(caller, request)).failures) == (group not in kept)


async def test_states_whose_rows_expire_by_the_clock_are_the_server_s(tmp_path: Path) -> None:
    async with read_by(tmp_path / "stores") as server:
        await server.own(descriptor(ttl_ms=3_600_000, ttl_clock=TtlClock.PROCESSING_TIME))
        async with calling(port_of(server)) as caller:
            await caller.open()
            for number in (1, 2, 3):
                assert not (await answered(caller, asked(number))).failures
        await until_reported(server)
        assert passed_on(server) == 3


async def test_a_retired_query_is_nobody_s_and_a_later_one_is_read_again(server: RunningServer) -> None:
    async with calling(port_of(server)) as caller:
        await caller.open()
        assert (await answered(caller, asked(1))).values == [row(1.0)]
        await server.retire()
        assert await answered(caller, asked(2)) == await by_grpc(server, asked(2))
        await server.own(descriptor())
        await server.commit({"a": row(5.0)})
        assert (await answered(caller, asked(3))).values == [row(5.0)]
        await until_reported(server)
        before = passed_on(server)
        for number in range(4, 54):
            await answered(caller, asked(number))
        await until_reported(server)
        assert passed_on(server) - before < 25


async def test_connections_go_to_whoever_has_the_fewest_and_to_a_reader_first(tmp_path: Path) -> None:
    async with read_by(tmp_path / "stores", processes=3) as server:
        port = server.server._lookups
        assert port is not None
        callers = [calling(port_of(server)) for _ in range(6)]
        for caller in callers:
            await (await caller.__aenter__()).open()
        given = [*(of.connections for of in readers_of(server)), len(port.connections)]
        # Seven, where somebody else asks at a port that was another server's a moment ago.
        assert sum(given) in (6, 7)
        assert given[-1] == min(given) == 2
        assert max(given) <= 3
        for caller in callers:
            await caller.__aexit__(None, None, None)
        await eventually(lambda: sum(of.connections for of in readers_of(server)) <= sum(given) - 6, LONG_SECONDS)


async def test_a_reader_that_is_killed_is_replaced_and_keeps_no_page_of_the_store(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    (reader,) = readers_of(server)
    async with calling(port_of(server)) as caller:
        await caller.open()
        await answered(caller, asked(1))
        os.kill(pid_of(reader), signal.SIGKILL)
        assert await caller.is_over()
        async with calling(port_of(server)) as another:  # this process serves it, or the next reader
            await another.open()
            assert (await answered(another, asked(1))).values == [row(1.0)]
    await eventually(lambda: bool(readers_of(server)) and readers_of(server) != [reader], LONG_SECONDS)
    registry = server.server._registry
    assert registry is not None
    # What it held was given up already.
    assert registry.tables["app", "counts"].store.beneath.forget_ended_readers() == 0  # type: ignore[attr-defined]
    (record,) = [of for of in caplog.records if "started again" in of.getMessage()]
    assert record.__dict__["why"] == "signal SIGKILL"
    async with calling(port_of(server)) as caller:
        await caller.open()
        assert [of.connections for of in readers_of(server)] == [1]
        await server.commit({"a": row(7.0)})
        assert (await answered(caller, asked(1))).values == [row(7.0)]


def is_indexed(table: Table) -> bool:
    """Whether its index is built, which the store was written for behind what is shown."""
    (index,), snapshot = indexed_fields(table.descriptor), table.store.snapshot()
    try:
        whole = all(rows_counted(snapshot, group, index.id) is not None for group in snapshot.positions())
        return whole and commit_of(snapshot) != commit_of(table.owned.shown[0])
    finally:
        snapshot.close()


async def test_a_reader_that_begins_behind_an_index_that_was_built_answers_itself_without_another_epoch(
    server: RunningServer,
) -> None:
    """Of the epoch that is shown no view can be begun any more: the server shows it by a later one."""
    await server.evolve(descriptor(index=("n",)))
    registry = server.server._registry
    assert registry is not None
    table = registry.tables["app", "counts"]
    await eventually(lambda: is_indexed(table), LONG_SECONDS)
    (reader,) = readers_of(server)
    os.kill(pid_of(reader), signal.SIGKILL)
    await eventually(lambda: bool(readers_of(server)) and readers_of(server) != [reader], LONG_SECONDS)
    async with calling(port_of(server)) as caller:
        await caller.open()
        number = 0

        async def answers_itself() -> bool:
            nonlocal number
            await until_reported(server)
            before = passed_on(server)
            for _ in range(50):
                number += 1
                assert (await answered(caller, asked(number))).values == [row(1.0)]
            await until_reported(server)
            return passed_on(server) - before < 25

        async with asyncio.timeout(LONG_SECONDS):
            while not await answers_itself():
                pass
    assert table.owned.standing.stamp.epoch == 1


async def test_a_reader_that_stands_still_answers_nothing_old_and_is_killed(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (reader,) = readers_of(server)
    async with calling(port_of(server)) as caller:
        await caller.open()
        assert (await answered(caller, asked(1))).values == [row(1.0)]
        os.kill(pid_of(reader), signal.SIGSTOP)
        caller.send(asked(2))
        await server.commit({"a": row(9.0)})
        os.kill(pid_of(reader), signal.SIGCONT)
        assert (await caller.next()).values == [row(9.0)]
        monkeypatch.setattr(reader_process, "_MOST_SILENT", 2)
        os.kill(pid_of(reader), signal.SIGSTOP)
        assert await caller.is_over()
    assert "it answers nothing" in [getattr(of, "why", "") for of in caplog.records]
    await eventually(lambda: bool(readers_of(server)) and readers_of(server) != [reader], LONG_SECONDS)


async def test_a_server_that_stops_tells_the_callers_of_its_readers_and_ends_them(tmp_path: Path) -> None:
    async with read_by(tmp_path / "stores", processes=3) as server:
        pids = [pid_of(of) for of in readers_of(server)]
        os.kill(pids[0], signal.SIGTERM)  # a whole group's: the server says when they end
        async with calling(port_of(server)) as first, calling(port_of(server)) as second:
            for caller in (first, second):
                await caller.open()
            stopping = asyncio.ensure_future(server.server.stop())
            for caller in (first, second):
                assert isinstance(await caller.why_ended(), Draining)
            await stopping
        assert not any(map(lives, pids))


async def test_reads_through_a_proxy_go_on_while_readers_are_killed(server: RunningServer) -> None:
    over, done = asyncio.Event(), 0
    async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
        await eventually(lambda: bool(streams_of(proxy)), LONG_SECONDS)
        await until_by_port(streams_of(proxy))

        async def read() -> None:
            nonlocal done
            session = client.session()
            last = 0
            while not over.is_set():
                answer = await session.get("app", "counts", "a")
                assert answer.epoch >= last
                last, done = answer.epoch, done + 1

        reading = asyncio.ensure_future(read())
        for epoch in range(2, 5):
            before = done
            await server.commit({"a": row(float(epoch))})
            await eventually(lambda: done > before + 20, LONG_SECONDS)  # noqa: B023
            for reader in readers_of(server):
                os.kill(pid_of(reader), signal.SIGKILL)
            before = done
            await eventually(lambda: done > before + 20, LONG_SECONDS)  # noqa: B023
            await until_all_read(server, 1)
        over.set()
        await reading

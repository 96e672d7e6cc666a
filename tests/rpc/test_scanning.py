"""Scans through a proxy while copies are silent, break off and go; and what is left of scans that nobody wants."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest

from keyhole import AsyncClient, Client, errors
from keyhole.clock import SystemClock
from keyhole.discovery import Discovery
from keyhole.errors import KeyholeError
from keyhole.model.read import Role
from keyhole.model.state import ValueField, ValueSchema
from keyhole.rpc import channels, status
from keyhole.rpc.server import RpcServer
from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.client_proxy.app import ClientProxy
from services.state_server.read.scans import ScanLimits
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.servicers.query import QueryServicer
from tests.support.counting_engine import CountingEngine
from tests.support.entries import APPLICATION, STATE, Epochs, hourly, hours, row, scan_request
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.refusals import raised_at_deadline
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

ENTRIES = hours("sensor-7", range(9))
NEWER = hours("sensor-7", range(11), count=2)
# An answer that does not fit into all the buffers between a server and a reader that does not read: 36 MB.
# Of which no epoch is kept: what is open is what is published, and what is being read.
LARGE = hourly(value=ValueSchema(1, (ValueField("text", "string"),)), keep_epochs=1)
TEXT = msgspec.msgpack.encode([1, "x" * 100_000])
PARTS = [{("sensor-7", number): TEXT for number in range(start, start + 120)} for start in (0, 120, 240)]
CHANGE = {("sensor-7", 359): msgspec.msgpack.encode([1, "changed"])}


async def own_large(running: RunningServer) -> None:
    """At epoch 3: an epoch's rows travel in one message."""
    await running.own(LARGE)
    for part in PARTS:
        await running.commit(part)


def reader(target: str) -> grpc.aio.Channel:
    """That asks for no more than it reads."""
    return grpc.aio.insecure_channel(target, options=(*channels.MESSAGE_SIZE, ("grpc.http2.bdp_probe", 0)))


def host(owner: FakeServer, standby: FakeServer | None = None) -> None:
    """The owner at epoch 1, the standby at epoch 2 with other entries, so that a mixture would be seen."""
    owner.host(hourly(), ENTRIES)
    if standby is not None:
        standby.follow(hourly(), NEWER).epoch = 2


async def end_of(call: Any) -> KeyholeError:
    """What ends a call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return status.from_rpc_error(caught.value)


async def scanned(client: AsyncClient, **how: Any) -> tuple[str, int]:
    """Who answered, and of which epoch; its entries are that epoch's."""
    answer = await client.scan(APPLICATION, STATE, "sensor-7", **how)
    expected = {1: (len(ENTRIES), 1), 2: (len(NEWER), 2)}[answer.epoch]
    assert (len(answer), {value.count for value in answer.values}) == (expected[0], {expected[1]})
    return answer.source.server, answer.epoch


class Proxied(NamedTuple):
    """Servers with the state: an owner and perhaps a standby; a proxy that knows of them, and a client of that."""

    servers: tuple[FakeServer, ...]
    proxy: ClientProxy
    client: AsyncClient


@asynccontextmanager
async def proxied(
    *names: str, hop_seconds: float = LONG_SECONDS, discover: Callable[..., Discovery] | None = None
) -> AsyncIterator[Proxied]:
    """`hop_seconds`: default: nobody is silent, however long it takes."""
    async with fake_servers(*names) as servers:
        host(*servers)
        addresses = [server.address for server in servers]
        discovery = discover(*addresses) if discover else None
        async with (
            proxy_of(*addresses, hop_seconds=hop_seconds, discovery=discovery) as proxy,
            AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
            channels.aio_channel(proxy.address) as channel,
        ):
            stub: Any = query_pb2_grpc.QueryStub(channel)
            known = 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while known < len(names):
                    try:
                        described = await stub.DescribeState(pb.DescribeStateRequest(state=scan_request().state))
                        known = len(described.holdings)
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.005)
            yield Proxied(tuple(servers), proxy, client)


async def raised_in_vain(
    client: AsyncClient, seconds: float, kind: type[KeyholeError], says: str, **how: Any
) -> KeyholeError:
    """What ends a scan at its deadline: see raised_at_deadline."""
    return await raised_at_deadline(lambda deadline: scanned(client, timeout=deadline, **how), seconds, kind, says)


async def answers(client: AsyncClient, server: str, epoch: int) -> None:
    """Waits until it does: it may have been too slow a moment ago."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await scanned(client) != (server, epoch):  # noqa: ASYNC110 - as a user would
            await asyncio.sleep(0.05)


# --- a silent copy --------------------------------------------------------------------------------------------------


async def test_where_the_owner_is_silent_the_standby_is_scanned_and_the_owner_again_once_it_is_heard() -> None:
    async with proxied("a", "b", hop_seconds=0.1) as ((a, _), _, client):
        await answers(client, "a", 1)
        a.hold.clear()
        assert await scanned(client) == ("b", 2)
        # The call to the owner was ended, and no other one is made while it is silent.
        await eventually(lambda: a.scans == 0)
        a.hold.set()
        await answers(client, "a", 1)


async def test_copies_that_are_all_slow_are_asked_once_and_whoever_begins_first_answers() -> None:
    async with proxied("a", "b", hop_seconds=0.1) as ((a, b), _, client):
        await scanned(client)
        a.hold.clear()
        b.hold.clear()
        waiting = asyncio.create_task(scanned(client))
        await eventually(lambda: (a.scans, b.scans) == (1, 1))
        await asyncio.sleep(0.5)  # several times the hop deadline
        assert (a.scans, b.scans, waiting.done()) == (1, 1, False)
        a.hold.set()
        assert await waiting == ("a", 1)
        await eventually(lambda: (a.scans, b.scans) == (0, 0))


async def test_a_silent_owner_is_waited_for_where_nobody_else_may_answer_and_named_at_the_deadline() -> None:
    async with proxied("a", "b", hop_seconds=0.1) as ((a, b), _, client):
        await scanned(client)
        a.hold.clear()
        await raised_in_vain(client, 1.0, errors.DeadlineExceeded, a.address, stale="never")
        waiting = asyncio.create_task(scanned(client, stale="never"))
        await asyncio.sleep(0.3)
        assert (waiting.done(), b.scans) == (False, 0)
        a.hold.set()
        assert await waiting == ("a", 1)
        await eventually(lambda: a.scans == 0)


async def test_a_copy_that_is_restoring_makes_room_for_the_next_and_is_named_where_there_is_none() -> None:
    async with proxied("a", "b") as ((a, _), _, client):
        assert await scanned(client) == ("a", 1)
        a.states[APPLICATION, STATE].ready = False
        assert await scanned(client) == ("b", 2)
        restoring = "restoring hourly: 3 of 10 records"
        error = await raised_in_vain(client, 1.0, errors.DeadlineExceeded, restoring, stale="never")
        assert error.facts["cause"] == "NOT_READY"


async def test_a_copy_that_refused_and_was_asked_again_just_before_the_deadline_is_not_called_silent() -> None:
    async with proxied("a") as ((a,), _, client):

        async def refused_and_asked_again(seconds: float) -> None:
            a.hold.set()
            a.states[APPLICATION, STATE].ready = False
            waiting = asyncio.create_task(scanned(client, timeout=seconds))
            await asyncio.sleep(seconds / 4)
            # From now on it would answer, were it given the time: a hop deadline is longer than what is left.
            a.hold.clear()
            a.states[APPLICATION, STATE].ready = True
            await eventually(lambda: a.scans == 1 or waiting.done())
            await waiting

        restoring = "restoring hourly: 3 of 10 records"
        error = await raised_at_deadline(refused_and_asked_again, 2.0, errors.DeadlineExceeded, restoring)
        assert error.facts["cause"] == "NOT_READY"


async def test_an_overloaded_server_is_not_asked_again_and_no_other_one_either() -> None:
    async with proxied("a", "b") as ((a, _), _, client):
        assert await scanned(client) == ("a", 1)
        a.refuse = errors.Overloaded("64 scans are under way")
        with pytest.raises(errors.Overloaded, match="64 scans"):
            await scanned(client)


async def test_without_any_server_the_deadline_says_which_was_lost() -> None:
    async with proxied("a") as ((a,), _, client):
        await scanned(client)
        await a.stop()
        error = await raised_in_vain(client, 1.5, errors.DeadlineExceeded, f"failed because.*{a.address}")
        assert error.facts["cause"] in {"NO_SERVER", "SERVER_LOST"}


async def test_a_restarted_server_is_waited_for_inside_the_deadline() -> None:
    async with proxied("a") as ((a,), _, client):
        await scanned(client)
        await a.stop()
        waiting = asyncio.create_task(scanned(client))
        again = FakeServer("a", a.port)
        await again.start()
        host(again)
        assert await waiting == ("a", 1)
        await again.stop()


# --- an answer that breaks off --------------------------------------------------------------------------------------


async def test_a_copy_that_breaks_off_in_the_middle_is_server_lost_to_the_caller() -> None:
    async with proxied("a", "b") as ((a, _), proxy, _), channels.aio_channel(proxy.address) as channel:
        a.hold_after = 3
        a.hold.clear()
        call: Any = query_pb2_grpc.QueryStub(channel).Scan(scan_request(), timeout=LONG_SECONDS, wait_for_ready=True)
        pages = aiter(call)
        first = await anext(pages)
        assert (first.source.server, len(first.values)) == ("a", 3)
        await a.stop()
        error = await end_of(pages)
        assert isinstance(error, errors.ServerLost)
        assert error.facts["address"] == a.address
        assert "begin it again" in error.message


async def test_the_client_begins_again_and_the_answer_is_of_one_copy_and_one_epoch() -> None:
    async with proxied("a", "b") as ((a, _), _, client):
        assert await scanned(client) == ("a", 1)
        a.hold_after = 3
        a.hold.clear()
        waiting = asyncio.create_task(scanned(client))
        await eventually(lambda: a.scans == 1)
        await asyncio.sleep(0.05)
        await a.stop()
        assert await waiting == ("b", 2)


async def test_an_answer_that_does_not_come_to_its_end_in_time_says_how_far_it_came() -> None:
    async with proxied("a") as ((a,), proxy, client):
        for target in (a.address, proxy.address):
            async with AsyncClient(target, timeout=LONG_SECONDS) as client:
                await scanned(client)
                a.hold_after = 6
                a.hold.clear()
                says = rf"6 entries were read .*{a.address}"
                await raised_in_vain(client, 1.5, errors.DeadlineExceeded, says)
                a.hold.set()
                await eventually(lambda: a.scans == 0)


class Discovered:
    """Servers that come and go as the test says. See keyhole.discovery.Discovery."""

    def __init__(self, *addresses: str) -> None:
        self.looks: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self.looks.put_nowait(frozenset(addresses))

    async def addresses(self) -> AsyncIterator[frozenset[str]]:
        while True:
            yield await self.looks.get()


@pytest.mark.parametrize("answered", [0, 3])
async def test_a_server_that_is_no_longer_discovered_ends_its_scans_and_another_one_answers(answered: int) -> None:
    discovered: list[Discovered] = []

    def discover(*addresses: str) -> Discovered:
        discovered.append(Discovered(*addresses))
        return discovered[0]

    async with proxied("a", "b", discover=discover) as ((a, b), _, client):
        assert await scanned(client) == ("a", 1)
        a.hold_after = answered
        a.hold.clear()
        waiting = asyncio.create_task(scanned(client))
        await eventually(lambda: a.scans == 1)
        await asyncio.sleep(0.05)
        discovered[0].looks.put_nowait(frozenset([b.address]))
        assert await waiting == ("b", 2)


# --- what is left behind --------------------------------------------------------------------------------------------


async def test_a_scan_that_is_cancelled_ends_on_its_server_whether_it_has_begun_or_not() -> None:
    async with proxied("a") as ((a,), proxy, client):
        for target in (a.address, proxy.address):
            for answered in (0, 3):
                async with AsyncClient(target, timeout=LONG_SECONDS) as client:
                    await scanned(client)
                    a.hold_after = answered
                    a.hold.clear()
                    scan = asyncio.create_task(scanned(client))
                    await eventually(lambda: a.scans == 1)
                    scan.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await scan
                    await eventually(lambda: a.scans == 0)
                    a.hold.set()
                    assert await scanned(client) == ("a", 1)


@pytest.fixture(params=[MemoryEngine, LmdbEngine, RocksdbEngine])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> CountingEngine:
    limits = StoreLimits(tmp_path, 1 << 30)
    inner: StoreEngine = MemoryEngine() if request.param is MemoryEngine else request.param(limits)
    return CountingEngine(inner)


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("how", ["cancel", "close the channel", "deadline", "stop the proxy"])
async def test_a_reader_that_goes_away_in_the_middle_leaves_no_snapshot_and_no_error_behind(
    engine: CountingEngine, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with state_server("a", engine=engine) as running:
        await own_large(running)
        async with proxy_of(running.address) as proxy:
            for target in (proxy.address,) if how == "stop the proxy" else (running.address, proxy.address):
                channel = reader(target)
                for timeout in (3.0, 15.0) if how == "deadline" else (120.0,):
                    await eventually(lambda: engine.snapshots == 1)
                    stub: Any = query_pb2_grpc.QueryStub(channel)
                    call = stub.Scan(scan_request(), timeout=timeout, wait_for_ready=True)
                    first: pb.ScanResponse = await call.read()
                    await running.commit(CHANGE)
                    if not call.done():  # it is where the machine is slow
                        break
                # What is being read, and what was just published.
                assert (first.source.server, engine.snapshots) == ("a", 2)
                if how == "cancel":
                    call.cancel()
                elif how == "close the channel":
                    await channel.close()
                elif how == "stop the proxy":
                    await proxy.stop(0)
                await eventually(lambda: engine.snapshots == 1)
                await channel.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_reader_that_is_slow_gets_all_of_the_epoch_that_it_began_with(engine: CountingEngine) -> None:
    async with state_server("a", engine=engine) as running:
        await own_large(running)
        async with proxy_of(running.address) as proxy, reader(proxy.address) as channel:
            call: Any = query_pb2_grpc.QueryStub(channel).Scan(
                scan_request(), timeout=LONG_SECONDS, wait_for_ready=True
            )
            pages = [await call.read()]
            for _ in range(2):
                await running.commit(CHANGE)
            assert engine.snapshots == 2
            while page := await call.read():
                pages.append(page)
            assert {page.source.epoch for page in pages} == {3}
            assert [value for page in pages for value in page.values] == [TEXT] * 360
            await eventually(lambda: engine.snapshots == 1)


# --- limits ---------------------------------------------------------------------------------------------------------


async def test_a_proxy_refuses_scans_beyond_its_limit_and_takes_them_again_when_others_have_ended() -> None:
    async with proxied("a") as ((a,), _, client):
        await scanned(client)
        a.hold.clear()
        waiting = [asyncio.create_task(scanned(client)) for _ in range(256)]
        await eventually(lambda: a.scans == 256)
        with pytest.raises(errors.Overloaded, match="256 scans are under way in this proxy, and 256 may be") as refused:
            await scanned(client)
        assert refused.value.facts["cap"] == "KEYHOLE_CLIENT_PROXY_MAX_SCANS"
        waiting.pop().cancel()
        await eventually(lambda: a.scans == 255)
        more = asyncio.create_task(scanned(client))
        a.hold.set()
        assert set(await asyncio.gather(more, *waiting)) == {("a", 1)}


@asynccontextmanager
async def limited(engine: CountingEngine, limits: ScanLimits) -> AsyncIterator[tuple[Epochs, Any]]:
    """The service of a server that has the large state, and what its owner commits."""
    lease = Lease(ManualClock(), 3.0)
    table = Table("server-a", LARGE, engine.open(APPLICATION, STATE, "topic-1"), lease)
    epochs = Epochs(table)
    for part in PARTS:
        epochs.commit(part)
    registry = Registry("server-a", "incarnation", lambda: "", 0, 511)
    registry.tables[APPLICATION, STATE] = table
    rpc = RpcServer("test", "127.0.0.1", 0)
    rpc.add(
        query_pb2_grpc.add_QueryServicer_to_server,
        QueryServicer(registry, SystemClock(), functools.partial(MemoryChangelog, MemoryKafka()), limits),
        "keyhole.v1.Query",
    )
    await rpc.start()
    try:
        async with reader(rpc.address) as channel:
            yield epochs, query_pb2_grpc.QueryStub(channel)
    finally:
        await rpc.stop(0)
        engine.close()


async def test_a_server_refuses_scans_beyond_its_limit_and_takes_them_again_when_others_have_ended(
    engine: CountingEngine,
) -> None:
    async with limited(engine, ScanLimits(most=1)) as (epochs, stub):
        unread = stub.Scan(scan_request())
        assert (await unread.read()).values
        refused = await end_of(stub.Scan(scan_request()))
        assert isinstance(refused, errors.Overloaded)
        assert refused.facts["cap"] == "KEYHOLE_STATE_SERVER_MAX_SCANS"
        # What the scan keeps is another snapshot than what is read from now on: its end can be seen.
        epochs.commit(CHANGE)
        assert engine.snapshots == 2
        unread.cancel()
        await eventually(lambda: engine.snapshots == 1)
        assert len([value async for page in stub.Scan(scan_request()) for value in page.values]) == 360


async def test_a_server_ends_a_scan_that_nobody_reads_and_what_it_kept(engine: CountingEngine) -> None:
    async with limited(engine, ScanLimits(most=1, seconds=2)) as (epochs, stub):
        unread = aiter(stub.Scan(scan_request()))
        assert (await anext(unread)).values
        epochs.commit(CHANGE)
        await eventually(lambda: engine.snapshots == 1)
        assert len([page async for page in stub.Scan(scan_request(limit=1))]) == 1
        assert isinstance(await end_of(unread), errors.DeadlineExceeded)


async def test_a_draining_proxy_ends_the_scans_that_are_under_way_and_takes_no_more() -> None:
    async with proxied("a") as ((a,), proxy, client):
        await scanned(client)
        a.hold_after = 3
        a.hold.clear()
        under_way = asyncio.create_task(scanned(client))
        await eventually(lambda: a.scans == 1)
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(proxy.stop(PATIENCE_SECONDS))
        await asyncio.sleep(0.05)
        a.hold.set()
        assert await under_way == ("a", 1)
        await stopping
        await raised_in_vain(client, 0.5, errors.ServerLost, proxy.address)


# --- the client -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [0, 3])
async def test_closing_the_client_ends_its_scans_with_client_closed(answered: int) -> None:
    async with fake_servers("a") as (a,):
        host(a)
        client = AsyncClient(a.address, timeout=LONG_SECONDS)
        await scanned(client)
        a.hold_after = answered
        a.hold.clear()
        waiting = asyncio.create_task(scanned(client))
        await eventually(lambda: a.scans == 1)
        await asyncio.sleep(0.05)
        await client.close()
        for scan in (waiting, scanned(client)):
            with pytest.raises(errors.ClientClosed):
                await scan
        await eventually(lambda: a.scans == 0)


async def test_threads_and_sessions_scan_too_and_a_session_never_goes_back() -> None:
    async with fake_servers("a") as (a,):
        host(a)
        state = a.states[APPLICATION, STATE]

        def read() -> list[int]:
            with Client(a.address, timeout=LONG_SECONDS) as client:
                session = client.session()
                epochs = [session.scan(APPLICATION, STATE, "sensor-7", start=2, stop=4).epoch]
                state.epoch = 7
                epochs.append(session.scan(APPLICATION, STATE, "sensor-7", descending=True, limit=1).epoch)
                state.epoch = 6
                with pytest.raises(errors.EpochNotReached):
                    session.scan(APPLICATION, STATE, "sensor-7")
                with pytest.raises(errors.EpochNotReached):
                    session.get(APPLICATION, STATE, ("sensor-7", 1))
                return epochs

        assert await asyncio.to_thread(read) == [1, 7]
        async with AsyncClient(a.address, timeout=30) as client:
            session = client.session()
            assert (await session.scan(APPLICATION, STATE, "sensor-7")).source.role is Role.OWNER
            state.epoch = 5
            with pytest.raises(errors.EpochNotReached):
                await session.scan(APPLICATION, STATE, "sensor-7")


@pytest.mark.parametrize("limit", [0, -1, 1 << 64])
async def test_a_limit_that_there_is_not_is_refused_without_asking_anyone(limit: int) -> None:
    with unused_address() as address:
        async with AsyncClient(address, timeout=LONG_SECONDS) as client:
            with pytest.raises(errors.MalformedRequest, match="1 or more"):
                await scanned(client, limit=limit)


async def test_bounds_that_do_not_fit_are_refused_by_the_client_with_what_does() -> None:
    async with fake_servers("a") as (a,):
        host(a)
        async with AsyncClient(a.address, timeout=30) as client:
            for wrong in ({"start": "x"}, {"stop": (1, 2)}, {"start": 1 << 40}):
                with pytest.raises(errors.KeyMismatch):
                    await client.scan(APPLICATION, STATE, "sensor-7", **wrong)  # type: ignore[arg-type]
            with pytest.raises(errors.NullKey):
                await client.scan(APPLICATION, STATE, "sensor-7", start=(None,))  # type: ignore[arg-type]
            assert len(await client.scan(APPLICATION, STATE, "sensor-7", start=())) == len(ENTRIES)
            a.host(hourly(state="plain", map_key=(), kind="value"), {"sensor-7": row(1.0)})
            with pytest.raises(errors.Unsupported, match="no entries to scan"):
                await client.scan(APPLICATION, "plain", "sensor-7", start=1)

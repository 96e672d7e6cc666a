"""Reads as of one epoch: of two state servers that commit each epoch one after the other, and of the shipped fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import msgspec
import pytest

from keyhole import AsyncClient, Client, errors
from keyhole.client import AsyncStateSnapshot
from keyhole.client.one_epoch import of_one_epoch
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import EpochGone, EpochNotReached, KeyholeError, MalformedRequest
from keyhole.model.state import StateDescriptor
from keyhole.rpc import channels
from keyhole.testing.changelog import MemoryKafka
from keyhole.testing.fake_server import FakeServer
from keyhole.testing.served_states import ServedStates
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.client_proxy.app import ClientProxy
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import PATIENCE_SECONDS

KEYS = [f"sensor-{number}" for number in range(20)]
NAME = (APPLICATION, STATE)
PATH = f"{APPLICATION}/{STATE}"


def _mine(of: StateDescriptor, first: int) -> dict[str, Any]:
    codec = StateCodec(of)
    return {key: None for key in KEYS if group_of(codec.storage_key(key)) % 2 == first}


class Halves:
    """Two servers, each with every second key group, whose rows have the epoch's number as their value."""

    def __init__(self, servers: list[RunningServer], proxy: ClientProxy, client: AsyncClient) -> None:
        self.servers, self.proxy, self.client = servers, proxy, client

    async def commit(self, half: int, epoch: int) -> None:
        await self.servers[half].commit({key: row(float(epoch)) for key in _mine(descriptor(), half)})

    async def seen(self, **options: Any) -> set[tuple[int, float]]:
        answers = await self.client.get_many(*NAME, KEYS, timeout=PATIENCE_SECONDS, **options)
        return {(answer.epoch, answer.value.celsius) for answer in answers}


@pytest.fixture
async def halves() -> AsyncIterator[Halves]:
    """Both are at epoch 1."""
    of = descriptor()
    async with AsyncExitStack() as stack:
        kafka = MemoryKafka()
        servers = [await stack.enter_async_context(state_server(name, kafka)) for name in ("a", "b")]
        await servers[0].own(of, range(0, of.key_groups, 2))
        await servers[1].share(of, range(1, of.key_groups, 2))
        proxy = await stack.enter_async_context(
            proxy_of(*(server.address for server in servers), timeout_seconds=PATIENCE_SECONDS, http="127.0.0.1:0")
        )
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=PATIENCE_SECONDS))
        both = Halves(servers, proxy, client)
        for half in (0, 1):
            await both.commit(half, 1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await _reached(both, 1):  # noqa: ASYNC110 - as a reader would
                await asyncio.sleep(0.01)
        yield both


async def _reached(of: Halves, epoch: int) -> bool:
    try:
        return await of.seen() == {(epoch, float(epoch))}
    except KeyholeError:
        return False


async def test_keys_of_servers_at_two_epochs_are_read_as_of_the_one_that_both_have(halves: Halves) -> None:
    await halves.commit(0, 2)
    assert await halves.seen() == {(2, 2.0), (1, 1.0)}
    assert await halves.seen(consistency="snapshot") == {(1, 1.0)}
    session = halves.client.session()
    assert {answer.epoch for answer in await session.get_many(*NAME, KEYS, consistency="snapshot")} == {1}
    await halves.commit(1, 2)
    assert await halves.seen(consistency="snapshot") == {(2, 2.0)}
    assert await halves.seen(as_of=1) == {(1, 1.0)}


def _at(seconds: float) -> datetime:
    """Of epoch N the commit time is N seconds after 1970 began."""
    return datetime.fromtimestamp(seconds, UTC)


async def test_a_snapshot_is_of_the_last_epoch_that_was_committed_by_a_time(halves: Halves) -> None:
    for epoch in (2, 3):
        for half in (0, 1):
            await halves.commit(half, epoch)
    await halves.commit(0, 4)

    async def epoch_at(as_of: datetime | int) -> int:
        snapshot = await halves.client.snapshot(PATH, as_of=as_of)
        answers = await snapshot.state(PATH).get_many(KEYS)
        assert {answer.value.celsius for answer in answers} == {float(snapshot.epoch)}
        return snapshot.epoch

    # Of epoch 4 one half is not committed yet.
    assert [await epoch_at(of) for of in (_at(2), _at(2.9), _at(3), _at(1e6), 2, 3)] == [2, 2, 3, 3, 2, 3]
    for gone in (_at(1.5), 1):
        with pytest.raises(EpochGone):
            await halves.client.snapshot(PATH, as_of=gone)
    with pytest.raises(EpochNotReached, match="ask again later"):
        await halves.client.snapshot(PATH, as_of=datetime.now(UTC) + timedelta(days=1))
    under_way = asyncio.create_task(epoch_at(4))
    await halves.commit(1, 4)
    assert await under_way == 4
    for wrong in (datetime(2026, 1, 1), 0, -1, "now", True, 1.5):  # noqa: DTZ001 - without a time zone
        with pytest.raises(MalformedRequest, match="as_of is"):
            await halves.client.snapshot(PATH, as_of=wrong)  # type: ignore[arg-type]
    with pytest.raises(MalformedRequest, match=r"make a snapshot"):
        await halves.client.get(*NAME, KEYS[0], as_of=_at(2))  # type: ignore[arg-type]
    with Client(halves.proxy.address, timeout=PATIENCE_SECONDS) as client:
        assert (await asyncio.to_thread(client.snapshot, PATH, as_of=_at(3.5))).epoch == 3


async def test_a_snapshot_stays_at_its_epoch_until_that_is_no_longer_kept(halves: Halves) -> None:
    await halves.commit(0, 2)
    snapshot = await halves.client.snapshot(PATH)
    state = snapshot.state(PATH)
    assert (snapshot.epoch, snapshot.states) == (1, (PATH,))
    assert snapshot.commit_time is not None
    assert snapshot.commit_time.timestamp() == 1
    await halves.commit(1, 2)
    for half in (0, 1):
        await halves.commit(half, 3)
    assert {answer.value.celsius for answer in await state.get_many(KEYS)} == {1.0}
    assert (await state.get(KEYS[0])).epoch == 1
    async with state.scan_all() as entries:
        assert {(entry.value.celsius, entry.source.epoch) async for entry in entries} == {(1.0, 1)}
    assert (await halves.client.snapshot(PATH)).epoch == 3
    await halves.commit(0, 4)
    with pytest.raises(EpochGone, match="epoch 1"):
        await state.get_many(KEYS)
    with pytest.raises(EpochGone):
        [entry async for entry in snapshot.scan_all(*NAME)]
    with Client(halves.proxy.address, timeout=PATIENCE_SECONDS) as client:
        threaded = await asyncio.to_thread(client.snapshot, PATH)
        assert threaded.epoch == 3
        answers = await asyncio.to_thread(threaded.state(PATH).get_many, KEYS)
        assert {(answer.epoch, answer.value.celsius) for answer in answers} == {(3, 3.0)}
        assert (await asyncio.to_thread(threaded.get, *NAME, KEYS[0])).epoch == 3
        assert "epoch=3" in repr(threaded)


async def test_readers_without_our_client_get_the_same_over_grpc_and_http(halves: Halves) -> None:
    await halves.commit(0, 2)
    async with channels.aio_channel(halves.proxy.address) as channel:
        stub = query_pb2_grpc.QueryStub(channel)
        request = pb.GetManyRequest(
            state=pb.StateRef(application=APPLICATION, state=STATE),
            keys=[pb.Key(parts=[pb.KeyPart(string=key)]) for key in KEYS],
            options=pb.ReadOptions(consistency=pb.CONSISTENCY_SNAPSHOT),
        )
        answers = (await stub.GetMany(request)).answers
    assert {answer.source.epoch for answer in answers} == {1}
    assert {answer.value for answer in answers} == {row(1.0)}
    async with aiohttp.ClientSession() as http:

        async def asked(method: str, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
            async with http.request(method, f"http://{halves.proxy.http_address}/v1/{PATH}{path}", **more) as response:
                return response.status, await response.json(content_type=None)

        async def epochs(parameters: str) -> set[int]:
            _, body = await asked("POST", f":batchGet{parameters}", json={"keys": KEYS})
            return {answer["source"]["epoch"] for answer in body["answers"]}

        assert await epochs("") == await epochs("?consistency=committed") == {1, 2}
        assert await epochs("?consistency=snapshot") == {1}
        status, wrong = await asked("POST", ":batchGet?consistency=newest", json={"keys": KEYS})
        assert (status, wrong["title"]) == (400, "Malformed request")
        early = next(iter(_mine(descriptor(), 0)))
        _, answer = await asked("GET", f"/{early}?as_of=1")
        assert (answer["value"]["celsius"], answer["source"]["epoch"]) == (1.0, 1)
        for epoch in (3, 4):
            await halves.commit(0, epoch)
        status, gone = await asked("GET", f"/{early}?as_of=1")
        assert (status, gone["title"], gone["facts"]["oldest"]) == (409, "Epoch gone", "2")


async def test_states_without_epochs_in_common_have_no_snapshot() -> None:
    one, other = descriptor(), descriptor(state="alerts", query="another")
    fed = descriptor(state="fed", updates_topic_id="updates")
    async with AsyncExitStack() as stack:
        (server,) = await stack.enter_async_context(fake_servers("a"))
        for of in (one, other, fed):
            server.host(of, {"k": row(1.0)})
        client = await stack.enter_async_context(AsyncClient(server.address, timeout=PATIENCE_SECONDS))
        with pytest.raises(errors.Unsupported, match="two queries"):
            await client.snapshot(PATH, f"{APPLICATION}/alerts")
        for read in (
            client.snapshot(f"{APPLICATION}/fed"),
            client.get_many(APPLICATION, "fed", ["k"], consistency="snapshot"),
            client.get_many(APPLICATION, "fed", ["k"], as_of=1),
        ):
            with pytest.raises(errors.Unsupported, match="fed by updates"):
                await read
        with pytest.raises(errors.InvalidConfiguration, match="name them"):
            await client.snapshot()
        server.states[NAME].epoch = 0
        with pytest.raises(errors.EpochNotReached, match="committed none"):
            await client.snapshot(PATH)


async def _fake_snapshot(server: FakeServer, client: AsyncClient) -> AsyncStateSnapshot:
    server.host(descriptor(), {"k": row(1.0)})
    return await client.snapshot(PATH)


async def test_what_a_snapshot_or_an_epoch_does_not_go_with_is_refused_at_once() -> None:
    async with AsyncExitStack() as stack:
        (server,) = await stack.enter_async_context(fake_servers("a"))
        client = await stack.enter_async_context(AsyncClient(server.address, timeout=PATIENCE_SECONDS))
        snapshot = await _fake_snapshot(server, client)
        with pytest.raises(errors.Unsupported, match="name it, too"):
            snapshot.get(APPLICATION, "alerts", "k")
        with pytest.raises(errors.Unsupported, match="name it, too"):
            snapshot.state(f"{APPLICATION}/alerts")
        with pytest.raises(errors.MalformedRequest, match="leave as_of out"):
            snapshot.get(*NAME, "k", as_of=1)
        wrong: list[Mapping[str, Any]] = [
            {"as_of": 1, "min_epoch": 1},
            {"as_of": 1, "max_staleness": 5},
            {"as_of": -1},
            {"as_of": True},
            {"as_of": "1"},
            {"as_of": 1.5},
            {"as_of": 1 << 64},
            {"consistency": "newest"},
        ]
        for options in wrong:
            with pytest.raises(errors.MalformedRequest):
                await client.get_many(*NAME, ["k"], **options)


async def test_the_shipped_fake_keeps_as_many_epochs_as_a_server() -> None:
    def write(served: ServedStates, spent: float) -> int:
        return served.write("shop/totals", [{"customer": "c1", "spent": spent}], key="customer")

    def read() -> tuple[list[float], int, str]:
        with ServedStates() as served, Client(served.address, timeout=PATIENCE_SECONDS) as client:
            epochs = [write(served, float(number)) for number in range(1, 5)]
            totals = client.state("shop/totals")
            values = [totals.get("c1", as_of=epoch).value.spent for epoch in epochs[1:]]
            snapshot = client.snapshot("shop/totals")
            write(served, 9.0)
            values.append(snapshot.state("shop/totals").get("c1").value.spent)
            with pytest.raises(EpochGone) as gone:
                totals.get("c1", as_of=epochs[0])
            return values, snapshot.epoch, gone.value.facts["oldest"]

    assert await asyncio.to_thread(read) == ([2.0, 3.0, 4.0, 4.0], 4, "3")


async def test_a_copy_that_is_too_far_behind_is_passed_over() -> None:
    """A standby answers in its owner's place, and its epoch is kept by nobody else any more."""
    asked: list[tuple[list[int], int, int]] = []

    async def read(which: Any, as_of: int, min_epoch: int) -> list[int]:
        asked.append((list(which), as_of, min_epoch))
        if as_of == 2:
            raise EpochGone("gone", oldest=6)
        if as_of:
            return [as_of for _ in which]
        return {0: [8, 2, 0], 2: [8, 2, 8], 6: [8, 7, 8]}[min_epoch]

    assert await of_one_epoch(read, lambda epoch: epoch, 3) == [7, 7, 7]
    assert asked == [
        ([0, 1, 2], 0, 0),
        ([0, 1, 2], 0, 2),
        ([0, 2], 2, 0),
        ([0, 1, 2], 0, 6),
        ([0, 2], 7, 0),
    ]


def test_an_older_descriptor_keeps_the_default_number_of_epochs() -> None:
    assert msgspec.json.decode(msgspec.json.encode(descriptor()), type=StateDescriptor).keep_epochs == 0

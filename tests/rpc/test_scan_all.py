"""All keys of a state, through a proxy: of real state servers that share them, of fakes where a server must fail."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from keyhole import AsyncClient, Client, errors
from keyhole.client.state_scans import AsyncStateScan
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.scan_token import ScanPlace
from keyhole.encoding.storage_key import group_of
from keyhole.errors import KeyholeError
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind
from keyhole.rpc import channels
from keyhole.testing.fake_server import FakeQuery, FakeServer
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, hourly, hours, key_of, row, scan_request
from tests.support.proxies import fake_servers, proxy_of
from tests.support.refusals import raised_at_deadline, refusal_of
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually


def values() -> StateDescriptor:
    """sensor, day -> celsius, count: one value per key."""
    key = (KeyColumn("sensor", KeyType.STRING), KeyColumn("day", KeyType.DATE))
    return hourly(kind=StateKind.VALUE, key=key)


def rules() -> StateDescriptor:
    """sensor -> celsius, count: a broadcast state."""
    return hourly(kind=StateKind.BROADCAST, key_groups=1)


_DAY = dt.date(2026, 11, 27)
_VALUES = {(f"sensor-{number}", _DAY): row(float(number)) for number in range(300)}
_MAP = hours("sensor-7", range(900)) | hours("sensor-8", range(3)) | hours("sensor-9", [-1])


async def _known(client: AsyncClient, of: StateDescriptor) -> None:
    """Waits until the proxy has heard of the state, and of an owner of each key group."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await client.describe_state(of.application, of.state)
                held = [
                    group
                    for server in await client.status()
                    for holding in server.holdings
                    if holding.descriptor.topic_id == of.topic_id
                    for group in holding.key_groups
                ]
            except KeyholeError:
                held = []
            if len(set(held)) == of.key_groups:
                return
            await asyncio.sleep(0.005)


@pytest.fixture
async def halves() -> AsyncIterator[tuple[FakeServer, FakeServer, AsyncClient]]:
    """Two fakes, which own the even and the odd key groups of the map state; and a client of a proxy before them."""
    async with AsyncExitStack() as stack:
        even, odd = await stack.enter_async_context(fake_servers("even", "odd"))
        codec = StateCodec(hourly())
        for server, first in ((even, 0), (odd, 1)):
            mine = {key: of for key, of in _MAP.items() if group_of(codec.storage_key(key)) % 2 == first}
            server.host(hourly(), mine, range(first, KEY_GROUPS, 2))
        proxy = await stack.enter_async_context(proxy_of(even.address, odd.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        await _known(client, hourly())
        yield even, odd, client


async def _all(client: AsyncClient, **options: Any) -> list[tuple[Any, Any]]:
    async with client.scan_all(APPLICATION, STATE, **options) as entries:
        return [(entry.key, entry.map_key) async for entry in entries]


@pytest.mark.parametrize(
    ("of", "rows"),
    [(values(), _VALUES), (hourly(), _MAP), (rules(), {"a": row(1.0), "b": row(2.0)})],
    ids=["value", "map", "broadcast"],
)
async def test_all_keys_of_each_kind_come_once_and_each_can_be_looked_up(
    of: StateDescriptor, rows: Mapping[Any, bytes]
) -> None:
    codec = StateCodec(of)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(state_server(name)) for name in ("a", "b")]
        for number, server in enumerate(servers):
            mine = range(number, of.key_groups, 2) if of.key_groups > 1 else range(1 - number)
            if mine:
                await server.own(of, mine)
                await server.commit({k: v for k, v in rows.items() if group_of(codec.storage_key(k)) in mine})
        proxy = await stack.enter_async_context(proxy_of(*(server.address for server in servers)))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        await _known(client, of)
        scan = client.scan_all(of.application, of.state)
        found = [entry async for entry in scan]
        assert scan.done
        assert scan.token is None
        whole = [entry.key if entry.map_key is None else (entry.key, entry.map_key) for entry in found]
        assert len(found) == len(rows)
        assert set(whole) == set(rows)
        for entry, key in zip(found, whole, strict=True):
            assert entry.value.celsius == msgspec.msgpack.decode(rows[key])[1]
            assert entry.source.epoch == 1
        assert all(await client.get_many(of.application, of.state, whole))
        with Client(proxy.address, timeout=LONG_SECONDS) as blocking:
            threaded = await asyncio.to_thread(lambda: list(blocking.scan_all(of.application, of.state)))
        assert [(entry.key, entry.map_key, entry.value) for entry in threaded] == [
            (entry.key, entry.map_key, entry.value) for entry in found
        ]


async def test_a_scan_goes_on_behind_its_token_wherever_it_was_left(
    halves: tuple[FakeServer, FakeServer, AsyncClient],
) -> None:
    _, _, client = halves
    everything = await _all(client)
    assert len(everything) == len(_MAP)
    for size in (1, 2, 7, 450, len(everything), len(everything) + 1):
        found: list[tuple[Any, Any]] = []
        token = None
        while True:
            # Some leave a scan that could give more, others one that was asked for no more.
            scan = client.scan_all(APPLICATION, STATE, after=token, limit=size if size % 2 else None)
            part: list[tuple[Any, Any]] = []
            async for entry in scan:
                part.append((entry.key, entry.map_key))
                if len(part) == size:
                    break
            await scan.close()
            found += part
            if scan.token is None:
                break
            if size < 3 and len(found) > 40:
                found += await _all(client, after=scan.token)
                break
            assert scan.token != token
            token = scan.token
        assert found == everything


async def test_a_page_that_was_not_given_is_not_behind_the_token(
    halves: tuple[FakeServer, FakeServer, AsyncClient],
) -> None:
    _, _, client = halves
    everything = await _all(client)
    scan = client.scan_all(APPLICATION, STATE)
    assert await scan.more()
    assert await _all(client, after=scan.token) == everything

    def fails_at(number: int) -> Any:
        values = itertools.count()

        def typed(row: Any) -> Any:
            if next(values) == number:
                raise errors.ValueMismatch("no")
            return row

        return typed

    async def read(scan: AsyncStateScan, found: list[tuple[Any, Any]]) -> None:
        while entries := await scan.page():
            found.extend((entry.key, entry.map_key) for entry in entries)

    for number in (0, 1, 5):
        scan, found = client.scan_all(APPLICATION, STATE).of_type(fails_at(number)), []
        with pytest.raises(errors.ValueMismatch):
            await read(scan, found)
        assert found + await _all(client, after=scan.token) == everything
        await read(scan, found)
        assert found == everything


async def test_a_token_is_as_good_for_other_owners_and_for_another_proxy(
    halves: tuple[FakeServer, FakeServer, AsyncClient],
) -> None:
    _, _, client = halves
    everything = await _all(client)
    async with client.scan_all(APPLICATION, STATE, limit=100) as scan:
        first = [(entry.key, entry.map_key) async for entry in scan]
    async with (
        fake_servers("other") as (other,),
        proxy_of(other.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as later,
    ):
        other.host(hourly(), _MAP)
        await _known(later, hourly())
        assert first + await _all(later, after=scan.token) == everything


async def test_nothing_is_asked_before_the_first_entry_and_nothing_is_left_behind_a_closed_scan(
    halves: tuple[FakeServer, FakeServer, AsyncClient],
) -> None:
    even, odd, client = halves
    unused = client.scan_all(APPLICATION, "no-such-state")
    assert unused.token is None
    assert not unused.done
    await unused.close()
    async with client.scan_all(APPLICATION, STATE) as scan:
        assert len(await scan.page()) > 0
    await eventually(lambda: not even.scans and not odd.scans)
    assert await scan.page() == []


async def test_a_server_of_before_there_were_scans_of_all_keys_is_named_and_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It passes the key group over, and gives all entries of a broadcast state, each time from the first one on."""
    scan = FakeQuery.Scan

    async def older(query: FakeQuery, request: pb.ScanRequest, context: Any) -> AsyncIterator[pb.ScanResponse]:
        request.ClearField("key_group")
        async for page in scan(query, request, context):
            yield page

    monkeypatch.setattr(FakeQuery, "Scan", older)
    async with fake_servers("a") as (server,), AsyncClient(server.address, timeout=LONG_SECONDS) as client:
        server.host(rules(), {name: row(1.0) for name in "abc"})
        async with client.scan_all(APPLICATION, rules().state, limit=2) as entries:
            assert len([entry async for entry in entries]) == 2
            token = entries.token
        with pytest.raises(errors.Unsupported, match=f"{server.address} is of an earlier version"):
            await anext(aiter(client.scan_all(APPLICATION, rules().state, after=token)))


async def test_what_breaks_off_within_a_key_group_and_can_not_go_on_says_so_and_goes_on_behind_its_token() -> None:
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        state = server.host(hourly(), _MAP)
        await _known(client, hourly())
        everything = await _all(client)
        server.hold_after = 600
        server.hold.clear()
        scan = client.scan_all(APPLICATION, STATE, timeout=PATIENCE_SECONDS)
        found: list[tuple[Any, Any]] = []
        broken: KeyholeError | None = None

        async def read() -> None:
            nonlocal broken
            try:
                while entries := await scan.page():
                    found.extend((entry.key, entry.map_key) for entry in entries)
            except KeyholeError as error:
                broken = error

        reading = asyncio.create_task(read())
        await eventually(lambda: len(found) >= 600)
        port = server.port
        await server.stop()
        again = FakeServer("a", port)
        # The epoch of which its beginning was is not kept.
        again.host(hourly(), _MAP).epoch = 9
        await again.start()
        try:
            await reading
            assert isinstance(broken, errors.ServerLost)
            assert "go on behind its token" in broken.message
            assert found == everything[: len(found)]
            assert state.descriptor == hourly()
            assert found + await _all(client, after=scan.token, timeout=PATIENCE_SECONDS) == everything
            # The scan itself goes on, too: what is left is not taken for nothing.
            found.extend([(entry.key, entry.map_key) async for entry in scan])
            assert found == everything
            assert scan.done
        finally:
            await again.stop()


async def test_a_state_that_was_made_anew_ends_its_scans_and_their_tokens() -> None:
    async with fake_servers("a") as (server,), AsyncClient(server.address, timeout=LONG_SECONDS) as client:
        server.host(hourly(), _MAP)
        scan = client.scan_all(APPLICATION, STATE)
        await scan.page()
        anew = hourly(topic_id="topic-2")
        server.host(anew, _MAP)
        with pytest.raises(errors.StaleDescriptor, match="made anew"):
            [_ async for _ in scan]
        with pytest.raises(errors.StaleDescriptor, match="made anew since"):
            await _all(client, after=scan.token)
        assert len(await _all(client)) == len(_MAP)


async def test_what_is_no_token_limit_or_option_is_refused_by_what_to_do(
    halves: tuple[FakeServer, FakeServer, AsyncClient],
) -> None:
    _, _, client = halves
    of = hourly()
    codec = StateCodec(of)
    elsewhere = codec.storage_key(("sensor-7", 1))
    bad = [
        "no token",
        "YWJj",
        "ü",
        ScanPlace(KEY_GROUPS).token(of),
        ScanPlace(-1).token(of),
        ScanPlace(group_of(elsewhere) ^ 1, elsewhere).token(of),
        ScanPlace(0, b"\0\0").token(of),
    ]
    for token in bad:
        with pytest.raises(errors.MalformedRequest, match="begin"):
            await _all(client, after=token)
    with pytest.raises(errors.StaleDescriptor, match="another state"):
        await _all(client, after=ScanPlace().token(hourly(topic_id="topic-9")))
    with pytest.raises(errors.MalformedRequest, match="limit is 0"):
        client.scan_all(APPLICATION, STATE, limit=0)
    with pytest.raises(TypeError, match=r"'begin'; the options are .*after"):
        client.scan_all(APPLICATION, STATE, begin=1)  # type: ignore[call-arg]
    with pytest.raises(errors.UnknownState):
        await client.scan_all(APPLICATION, "no-such-state").page()
    await raised_at_deadline(
        lambda seconds: client.scan_all(APPLICATION, STATE, min_epoch=9, timeout=seconds).page(),
        0.5,
        errors.EpochNotReached,
        "min_epoch asks for 9",
    )


@pytest.mark.parametrize("proxied", [False, True])
async def test_on_the_wire_a_key_group_is_asked_for_alone_and_there_must_be_one(*, proxied: bool) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own(hourly())
        await server.commit(_MAP)
        address = server.address
        if proxied:
            address = (await stack.enter_async_context(proxy_of(address))).address
            client = await stack.enter_async_context(AsyncClient(address, timeout=LONG_SECONDS))
            await _known(client, hourly())
        stub: Any = query_pb2_grpc.QueryStub(await stack.enter_async_context(channels.aio_channel(address)))
        state = scan_request().state
        key = StateCodec(hourly()).storage_key(("sensor-7", 3))
        group = group_of(key)

        async def pages(request: pb.ScanRequest, seconds: float = PATIENCE_SECONDS) -> list[pb.ScanResponse]:
            return [page async for page in stub.Scan(request, timeout=seconds)]

        whole = pb.KeyGroupScan(key_group=group)
        found = [key for page in await pages(pb.ScanRequest(state=state, key_group=whole)) for key in page.map_keys]
        behind = pb.KeyGroupScan(key_group=group, after=key)
        rest = [key for page in await pages(pb.ScanRequest(state=state, key_group=behind)) for key in page.map_keys]
        assert rest == found[found.index(key[2:]) + 1 :]
        assert len(await pages(pb.ScanRequest(state=state, key_group=whole, limit=1))) == 1
        for request in (
            pb.ScanRequest(state=state, key_group=whole, key=key_of("sensor-7")),
            pb.ScanRequest(state=state, key_group=whole, descending=True),
            pb.ScanRequest(state=state, key_group=whole, to=key_of(1)),
            pb.ScanRequest(state=state, key_group=pb.KeyGroupScan(key_group=KEY_GROUPS)),
            pb.ScanRequest(state=state, key_group=pb.KeyGroupScan(key_group=1 << 31)),
            pb.ScanRequest(state=state, key_group=pb.KeyGroupScan(key_group=group ^ 1, after=key)),
            pb.ScanRequest(state=state, key_group=pb.KeyGroupScan(key_group=0, after=b"\0\0")),
        ):
            error = await refusal_of(lambda seconds, request=request: pages(request, seconds), 5.0)  # type: ignore[misc]
            assert isinstance(error, errors.MalformedRequest), request


async def test_readers_who_share_a_state_read_each_key_group_once(
    halves: tuple[FakeServer, FakeServer, AsyncClient],
) -> None:
    _, _, client = halves
    parts = [range(3), range(3, 4), range(4, KEY_GROUPS)]
    found = [await _all(client, key_groups=of) for of in parts]
    assert [entry for of in found for entry in of] == await _all(client)
    whole = client.scan_all(APPLICATION, STATE, key_groups=parts[2], limit=1)
    assert len([entry async for entry in whole]) == 1
    rest = await _all(client, key_groups=parts[2], after=whole.token)
    assert len(rest) == len(found[2]) - 1
    for other in parts[:2]:
        with pytest.raises(errors.MalformedRequest, match="which is not in key_groups"):
            await _all(client, key_groups=other, after=whole.token)
    for wrong in (range(0), range(KEY_GROUPS + 1), range(-1, 2), range(0, 4, 2), range(3, 2)):
        with pytest.raises(errors.MalformedRequest, match="key_groups is range"):
            await _all(client, key_groups=wrong)
    with pytest.raises(errors.MalformedRequest, match=r"key_groups is \[0\]; .* give a part of range"):
        await _all(client, key_groups=[0])

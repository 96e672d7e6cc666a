"""Ranges of keys, and all keys in their order: of real servers and fakes, with and without a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from keyhole import AsyncClient, Client, KeyholeError, field
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import KeyMismatch, MalformedRequest, Unsupported
from keyhole.model.state import StateKind
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, hourly, hours, row
from tests.support.proxies import fake_servers, proxy_of
from tests.support.state_servers import state_server
from tests.support.waiting import PATIENCE_SECONDS

SENSORS = [f"sensor-{number}" for number in range(60)] + ["a", "z\0", "z\0a", "ü"]
ROWS = {key: of for sensor in SENSORS for key, of in hours(sensor, range(-1, 3)).items()}
IN_ORDER = sorted(ROWS, key=lambda key: (key[0].encode(), key[1]))


async def known(client: AsyncClient) -> None:
    """Until an owner of each key group was heard of."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                held = {
                    group
                    for server in await client.status()
                    for holding in server.holdings
                    for group in holding.key_groups
                }
                await client.describe_state(APPLICATION, STATE)
            except KeyholeError:
                held = set()
            if len(held) == KEY_GROUPS:
                return
            await asyncio.sleep(0.005)


@pytest.fixture(params=["fake", "fakes behind a proxy", "state server", "state servers behind a proxy"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[AsyncClient]:
    codec, several = StateCodec(hourly()), request.param.endswith("proxy")
    async with AsyncExitStack() as stack:
        addresses = []
        for first in range(2 if several else 1):
            groups = range(first, KEY_GROUPS, 2 if several else 1)
            mine = {key: of for key, of in ROWS.items() if group_of(codec.storage_key(key)) in groups}
            if request.param.startswith("fake"):
                (fake,) = await stack.enter_async_context(fake_servers(f"server-{first}"))
                fake.host(hourly(), mine, groups)
                addresses.append(fake.address)
            else:
                server = await stack.enter_async_context(state_server(f"server-{first}"))
                await server.own(hourly(), groups)
                await server.commit(mine)
                addresses.append(server.address)
        address = addresses[0]
        if several:
            address = (await stack.enter_async_context(proxy_of(*addresses))).address
        made = await stack.enter_async_context(AsyncClient(address, timeout=PATIENCE_SECONDS))
        await known(made)
        yield made


async def keys(client: AsyncClient, **options: Any) -> list[tuple[Any, Any]]:
    async with client.scan_all(APPLICATION, STATE, **options) as entries:
        return [(entry.key, entry.map_key) async for entry in entries]


async def test_all_keys_come_in_order_from_either_end_and_go_on_behind_a_token(client: AsyncClient) -> None:
    assert await keys(client, ordered=True) == IN_ORDER
    assert await keys(client, descending=True) == IN_ORDER[::-1]
    assert await keys(client, ordered=True, limit=5) == IN_ORDER[:5]
    assert await keys(client, descending=True, limit=len(IN_ORDER) + 1) == IN_ORDER[::-1]
    warm = [key for key in IN_ORDER if key[1] > 1]
    assert await keys(client, ordered=True, where=field("celsius") > 1, keys_only=True) == warm
    for descending, order in ((False, IN_ORDER), (True, IN_ORDER[::-1])):
        found: list[tuple[Any, Any]] = []
        token: str | None = None
        for _ in range(len(order)):  # each gives one at least
            scan = client.scan_all(APPLICATION, STATE, ordered=True, descending=descending, after=token, limit=37)
            found += [(entry.key, entry.map_key) async for entry in scan]
            token = scan.token
            if token is None or len(found) >= len(order):
                break
        assert found == order
    scan = client.scan_all(APPLICATION, STATE, ordered=True)
    async for entry in scan:
        if entry.key == "sensor-30":
            break
    await scan.close()
    behind = IN_ORDER.index(("sensor-30", -1)) + 1
    assert await keys(client, ordered=True, after=scan.token) == IN_ORDER[behind:]


async def test_ranges_and_prefixes_of_keys_are_those_of_their_order(client: AsyncClient) -> None:
    def within(test: Any) -> list[tuple[Any, Any]]:
        return [key for key in IN_ORDER if test(key[0].encode())]

    for options, test in (
        ({"prefix": "sensor-1"}, lambda key: key.startswith(b"sensor-1")),
        ({"prefix": "z\0"}, lambda key: key.startswith(b"z\0")),
        ({"prefix": "nobody"}, lambda _: False),
        ({"start": "sensor-3"}, lambda key: key >= b"sensor-3"),
        ({"stop": "sensor-3"}, lambda key: key < b"sensor-3"),
        ({"start": "sensor-3", "stop": "sensor-30"}, lambda key: b"sensor-3" <= key < b"sensor-30"),
        ({"start": "sensor-30", "stop": "sensor-3"}, lambda _: False),
    ):
        expected = within(test)
        assert sorted(await keys(client, **options)) == sorted(expected), options
        assert await keys(client, ordered=True, **options) == expected
        assert await keys(client, descending=True, **options) == expected[::-1]
        part = client.scan_all(APPLICATION, STATE, descending=True, limit=3, **options)
        first = [(entry.key, entry.map_key) async for entry in part]
        assert first == expected[::-1][:3]
        if len(expected) > 3:
            assert await keys(client, descending=True, after=part.token, **options) == expected[::-1][3:]


async def test_ranges_of_map_keys_are_those_under_each_key(client: AsyncClient) -> None:
    for options, test in (
        ({"map_start": 0, "map_stop": 2}, lambda hour: 0 <= hour < 2),
        ({"map_start": 1}, lambda hour: hour >= 1),
        ({"map_stop": (0,)}, lambda hour: hour < 0),
        ({"map_start": 7}, lambda _: False),
    ):
        expected = [key for key in IN_ORDER if test(key[1])]
        assert sorted(await keys(client, **options)) == sorted(expected), options
        assert await keys(client, ordered=True, **options) == expected
        assert await keys(client, descending=True, **options) == expected[::-1]
        some = [key for key in expected if key[0].startswith("sensor-1")]
        assert await keys(client, ordered=True, prefix="sensor-1", **options) == some
        warm = [key for key in expected if key[1] > 0]
        assert await keys(client, ordered=True, where=field("celsius") > 0, **options) == warm
        part = client.scan_all(APPLICATION, STATE, ordered=True, limit=3, **options)
        assert [(entry.key, entry.map_key) async for entry in part] == expected[:3]
        if expected:
            assert await keys(client, ordered=True, after=part.token, **options) == expected[3:]


async def test_threads_and_handles_have_order_and_range(client: AsyncClient) -> None:
    def read() -> list[Any]:
        with Client(client._target, timeout=PATIENCE_SECONDS) as blocking:
            state = blocking.state(f"{APPLICATION}/{STATE}")
            return [(entry.key, entry.map_key) for entry in state.scan_all(prefix="sensor-2", descending=True, limit=2)]

    assert await asyncio.to_thread(read) == [("sensor-29", 2), ("sensor-29", 1)]


async def test_what_contradicts_itself_or_does_not_fit_is_refused(client: AsyncClient) -> None:
    with pytest.raises(MalformedRequest, match="key_groups are read in no order"):
        client.scan_all(APPLICATION, STATE, ordered=True, key_groups=range(2))
    for options, kind, said in (
        ({"prefix": "a", "start": "b"}, MalformedRequest, "leave start and stop out"),
        ({"start": 3}, KeyMismatch, "sensor is a string"),
        ({"map_start": "a"}, KeyMismatch, "m0"),
        ({"map_stop": (1, 2)}, KeyMismatch, "m0"),
        ({"stop": ("a", "b")}, KeyMismatch, "2 values are given"),
        ({"prefix": 3, "ordered": True}, KeyMismatch, "sensor is a string"),
    ):
        with pytest.raises(kind, match=said):
            await keys(client, **options)
    unordered = client.scan_all(APPLICATION, STATE, limit=3)
    ordered = client.scan_all(APPLICATION, STATE, limit=3, ordered=True)
    for scan in (unordered, ordered):
        assert len([entry async for entry in scan]) == 3
    with pytest.raises(MalformedRequest, match="of a scan in no order"):
        await keys(client, ordered=True, after=unordered.token)
    with pytest.raises(MalformedRequest, match="of a scan in the order of keys"):
        await keys(client, after=ordered.token)
    with pytest.raises(MalformedRequest, match="other direction"):
        await keys(client, descending=True, after=ordered.token)


async def test_a_broadcast_state_and_one_of_a_server_of_before() -> None:
    async with fake_servers("old") as (server,), AsyncClient(server.address, timeout=PATIENCE_SECONDS) as client:
        of = hourly(kind=StateKind.BROADCAST, key_groups=1)
        server.host(of, {name: row(1.0) for name in ("a", "ab", "b")})
        async with client.scan_all(APPLICATION, STATE, prefix="a", descending=True) as entries:
            assert [entry.key async for entry in entries] == ["ab", "a"]
        server.selects = False
        with pytest.raises(Unsupported, match="has no map keys under its keys"):
            await client.scan_all(APPLICATION, STATE, map_start="a").page()
        for options in ({"prefix": "a"}, {"ordered": True, "start": "a"}, {"descending": True}):
            with pytest.raises(Unsupported, match="earlier version"):
                await client.scan_all(APPLICATION, STATE, **options).page()

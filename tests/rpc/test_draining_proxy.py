"""What a client proxy that is to stop lets end, by gRPC and over HTTP, within one drain time."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

from keyhole import AsyncClient
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, eventually

_KEY_GROUPS = frozenset(range(KEY_GROUPS))


async def _takes_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        return True
    return False


async def test_a_draining_proxy_takes_nothing_new_by_grpc_while_a_read_over_http_is_under_way() -> None:
    """Or else gRPC would begin to drain once HTTP has, and both would take twice the time that a pod has for it."""
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, http="127.0.0.1:0", drain_seconds=10 * LONG_SECONDS) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
        aiohttp.ClientSession() as http,
    ):
        server.host(descriptor(), rows(10), _KEY_GROUPS)
        await client.get(APPLICATION, STATE, "sensor-1")
        stopping = asyncio.Event()
        running = asyncio.create_task(proxy.run_until(stopping))
        server.hold.clear()

        async def read() -> int:
            async with http.get(f"http://{proxy.http_address}/v1/{APPLICATION}/{STATE}/sensor-3") as response:
                return response.status

        under_way = asyncio.create_task(read())
        await eventually(lambda: server.held == 1)
        stopping.set()
        async with asyncio.timeout(LONG_SECONDS / 2):  # before the read's own deadline
            while await _takes_connections(proxy.address):  # noqa: ASYNC110 - a port has no event to wait for
                await asyncio.sleep(0.02)
        assert not under_way.done()
        assert not running.done(), "what is under way may end"
        server.hold.set()
        assert await under_way == 200
        await running


async def test_a_proxy_whose_reads_over_http_do_not_end_stops_all_the_same() -> None:
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, http="127.0.0.1:0", drain_seconds=0.2) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
        aiohttp.ClientSession() as http,
    ):
        server.host(descriptor(), rows(10), _KEY_GROUPS)
        await client.get(APPLICATION, STATE, "sensor-1")
        server.hold.clear()
        stopping = asyncio.Event()
        running = asyncio.create_task(proxy.run_until(stopping))
        under_way = asyncio.create_task(http.get(f"http://{proxy.http_address}/v1/{APPLICATION}/{STATE}/sensor-3"))
        await eventually(lambda: server.held == 1)
        stopping.set()
        async with asyncio.timeout(LONG_SECONDS):
            await running
            (ended,) = await asyncio.gather(under_way, return_exceptions=True)
        assert isinstance(ended, aiohttp.ClientError)
        server.hold.set()

"""A thousand connections that send nothing, at each port: good look-ups go on, they take little, and they are ended."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import psutil

from keyhole import AsyncClient
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy
from tests.support.lookup_ports import HAS_LOOKUP_PORT
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.server_readers import port_of
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS

SILENT = 1_000

# Of each, in the process that it is at; a lookup port's is that of the callers, too. One that kept what it gives to a
# message or a call would take megabytes.
_MOST_BYTES = 100 << 10


class Silent:
    """Connections of which nothing comes."""

    def __init__(self) -> None:
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(SILENT):
            self._open.append(await asyncio.open_connection(host, int(port)))

    async def until_ended(self) -> None:
        """By the other side."""
        async with asyncio.timeout(LONG_SECONDS):
            await asyncio.gather(*(self._ended(reader) for reader, _ in self._open))

    @staticmethod
    async def _ended(reader: asyncio.StreamReader) -> None:
        try:
            # The lookup port says why it ends.
            while await reader.read(1 << 10):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        for _, writer in self._open:
            writer.transport.abort()


@asynccontextmanager
async def looked_up(client: AsyncClient, url: str) -> AsyncIterator[list[int]]:
    """While this is open, keys are looked up over gRPC and HTTP, one after the other: how many were, each right."""
    counted, ends = [0], asyncio.Event()

    async def by_grpc() -> None:
        while not ends.is_set():
            assert (await client.get(APPLICATION, STATE, f"sensor-{counted[0] % 10}")).found
            counted[0] += 1

    async def by_http() -> None:
        async with aiohttp.ClientSession() as http:
            while not ends.is_set():
                async with http.get(f"{url}/sensor-{counted[0] % 10}?timeout={LONG_SECONDS}") as response:
                    said = await response.json(content_type=None)
                    assert (response.status, said.get("found")) == (200, True), said
                counted[0] += 1

    tasks = [asyncio.create_task(by_grpc()), asyncio.create_task(by_http())]
    try:
        yield counted
    finally:
        ends.set()
        async with asyncio.timeout(LONG_SECONDS):
            await asyncio.gather(*tasks)


def weight(pid: int) -> int:
    gc.collect()
    found: int = psutil.Process(pid).memory_info().rss
    return found


async def test_a_thousand_connections_that_send_nothing_hold_up_no_lookup_take_little_and_are_ended(
    tmp_path: Path,
) -> None:
    grpc_port, http_port = free_ports(2)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("server-a", security=HAS_LOOKUP_PORT))
        await server.own(descriptor())
        await server.commit(rows(10))
        proxy = await asyncio.to_thread(
            start_client_proxy,
            "proxy",
            grpc_port,
            servers=[server.address],
            directory=tmp_path,
            environ=dict(os.environ) | {"KEYHOLE_CLIENT_PROXY_HTTP": f"127.0.0.1:{http_port}"},
        )
        stack.callback(proxy.terminate)
        address = f"127.0.0.1:{grpc_port}"
        client = await stack.enter_async_context(AsyncClient(address, timeout=LONG_SECONDS))
        await client.get(APPLICATION, STATE, "sensor-1", min_epoch=1)
        url = f"http://127.0.0.1:{http_port}/v1/{APPLICATION}/{STATE}"
        silent = Silent()
        stack.callback(silent.close)
        places = {
            "gRPC": (address, proxy.pid),
            "HTTP": (f"127.0.0.1:{http_port}", proxy.pid),
            "the lookup port": (f"127.0.0.1:{port_of(server)}", os.getpid()),
        }
        async with looked_up(client, url) as counted:
            for what, (where, pid) in places.items():
                before, answered = weight(pid), counted[0]
                await silent.connect(where)
                while counted[0] < answered + 100:  # noqa: ASYNC110 - good ones, while all of them are open
                    await asyncio.sleep(0.01)
                took = (weight(pid) - before) // SILENT
                print(f"{what}: {took:,} bytes for each of {SILENT:,}")
                assert took < _MOST_BYTES, f"{what} takes {took:,} bytes for a connection that sends nothing"
            await silent.until_ended()
        await server.commit({"sensor-1": row(7.0)})
        assert (await client.get(APPLICATION, STATE, "sensor-1", min_epoch=2)).value.celsius == 7.0

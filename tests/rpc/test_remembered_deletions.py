"""A deletion that is remembered by its order is no entry to anybody who reads, whichever way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
import pytest

from keyhole import AsyncClient, Client, field
from keyhole.encoding.envelope import deletion
from keyhole.model.state import StateDescriptor
from services.state_server.read.indexed_scans import IndexRule
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually

NAME = (APPLICATION, STATE)
PATH = "/".join(NAME)
# Epochs are committed at 1970 here, and read now.
LONG_MS = 10**13


def ordered(**changes: Any) -> StateDescriptor:
    """The order is the count."""
    of = msgspec.structs.replace(descriptor(), order_by="count", keep_deleted_ms=LONG_MS, index=("count",))
    return msgspec.structs.replace(of, **changes)


def left(*names: str) -> Mapping[str, float]:
    return {name: float(name.removeprefix("sensor-")) for name in names}


@pytest.mark.parametrize("ttl_ms", [0, LONG_MS])
async def test_no_read_scan_aggregate_index_watch_or_mirror_has_it_nor_what_is_older(ttl_ms: int) -> None:
    all_names = [f"sensor-{number}" for number in range(6)]
    async with (
        state_server("server-a") as server,
        proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
        aiohttp.ClientSession() as http,
    ):
        await server.own_new(ordered(ttl_ms=ttl_ms))
        await server.commit({name: row(float(number), 10) for number, name in enumerate(all_names)})
        table = server.server._registry.tables[NAME]
        table.index_rule = IndexRule(1, 1000)
        await eventually(lambda: proxy._directory.tables)
        seen: list[tuple[str, str]] = []
        async with client.mirror(PATH) as mirror:
            watching = asyncio.create_task(_watched(client, lambda *change: seen.append(change)))
            await eventually(lambda: len(seen) == len(all_names))
            await server.commit({"sensor-1": deletion(20), "sensor-2": deletion(9), "never": deletion(30)})
            # What is older does not come back.
            await server.commit({"sensor-1": row(1.5, 19), "never": row(7.0, 29)})
            await mirror.wait_for(3)
            expected = left("sensor-0", "sensor-2", "sensor-3", "sensor-4", "sensor-5")
            assert {entry.key: entry.value.celsius for entry in mirror} == expected
            assert [answer.found for answer in mirror.get_many(["sensor-1", "sensor-2", "never"])] == [
                False,
                True,
                False,
            ]
            await server.commit({"sensor-0": row(0.5, 11)})
            expected = expected | {"sensor-0": 0.5}
            await eventually(lambda: len(seen) > len(all_names) and seen[-1] == ("put", "sensor-0"))
            watching.cancel()
        # Of what the watch has nobody is told who had nothing before.
        assert set(seen[len(all_names) :]) <= {("delete", "sensor-1"), ("delete", "never"), ("put", "sensor-0")}
        assert ("delete", "sensor-1") in seen

        for address in (server.address, proxy.address):
            async with AsyncClient(address, timeout=LONG_SECONDS) as reader:
                found = await reader.get_many(*NAME, ["sensor-1", "never", "sensor-3"])
                assert [answer.found for answer in found] == [False, False, True]
                for where in (None, field("count") >= 0, field("celsius") > -1):
                    scanned = [entry async for entry in reader.scan_all(*NAME, where=where)]
                    assert {entry.key: entry.value.celsius for entry in scanned} == expected, where
                keys = {entry.key async for entry in reader.scan_all(*NAME, keys_only=True)}
                assert keys == set(expected)
                assert await reader.state(PATH).count() == len(expected)
                assert await reader.state(PATH).count(where=field("count") < 100) == len(expected)
                assert not [entry async for entry in reader.scan_all(*NAME, where=field("count") >= 19)]
                assert [entry.key async for entry in reader.scan_all(*NAME, where=field("count") == 11)] == ["sensor-0"]

        def in_a_thread() -> list[Any]:
            with Client(proxy.address, timeout=LONG_SECONDS) as threads:
                return list(threads.sql(f"select sensor from '{PATH}' order by 1"))

        assert await asyncio.to_thread(in_a_thread) == [(name,) for name in sorted(expected)]
        base = f"http://{proxy.http_address}/v1/{PATH}"
        async with http.get(f"{base}:scan") as response:
            assert {of["key"] for of in json.loads(await response.read())["entries"]} == set(expected)
        async with http.get(f"{base}/sensor-1") as response:
            assert json.loads(await response.read())["found"] is False

        # What is only staged too.
        await server.stage({"sensor-3": deletion(99), "sensor-4": deletion(1), "sensor-1": row(1.25, 21)})
        latest = await client.get_many(*NAME, ["sensor-3", "sensor-4", "sensor-1", "never"], consistency="latest")
        assert [answer.found for answer in latest] == [False, True, True, False]
        staged = {entry.key async for entry in client.scan_all(*NAME, consistency="latest")}
        assert staged == {"sensor-0", "sensor-1", "sensor-2", "sensor-4", "sensor-5"}


async def _watched(client: AsyncClient, note: Callable[[str, str], None]) -> None:
    async for change in client.watch(*NAME):
        note(change.kind.value, str(change.key))

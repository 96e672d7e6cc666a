"""Caps of scans at a proxy and at a state server: what is refused, by which setting, and for whom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from keyhole import AsyncClient, Client, Credentials
from keyhole import aggregates as agg
from keyhole.client.state_scans import AsyncStateScan
from keyhole.errors import KeyholeError, MalformedRequest, Overloaded, TooLarge
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, hourly, hours
from tests.support.proxies import fake_servers, proxy_of
from tests.support.state_servers import state_server
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

ROWS = {key: of for sensor in range(40) for key, of in hours(f"sensor-{sensor}", range(3)).items()}
POLICY = """
[[allow]]
who = ["token:*"]
verbs = ["read", "scan"]
states = ["*/*"]
"""


async def _rows(scan: AsyncStateScan) -> int:
    async with scan:
        return len([entry async for entry in scan])


async def _refused(scan: AsyncStateScan, kind: type[KeyholeError], setting: str) -> int:
    """How many entries it gave before."""
    given = 0

    async def read() -> None:
        nonlocal given
        async for _ in scan:
            given += 1

    with pytest.raises(kind, match=setting) as no:
        await read()
    assert no.value.facts["cap"] == setting
    return given


async def test_a_scan_that_is_too_large_for_the_cap_of_a_proxy_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A scan that was broken off has all the time to end, before the next one counts as one too many.
    monkeypatch.setattr("keyhole.rpc.scan_caps._ROOM_SECONDS", LONG_SECONDS)
    caps: Any = {"max_scan_rows": 100, "max_caller_scans": 1}
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, security=caps, http="127.0.0.1:0") as proxy,
        AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client,
        aiohttp.ClientSession() as http,
    ):
        server.host(hourly(), ROWS)
        rows = "KEYHOLE_CLIENT_PROXY_MAX_SCAN_ROWS"
        for options in ({}, {"ordered": True}, {"keys_only": True}):
            # All its calls are one scan, also where some are under way at a time.
            assert await _refused(client.scan_all(APPLICATION, STATE, **options), TooLarge, rows) <= 100
            first = client.scan_all(APPLICATION, STATE, limit=5, **options)
            assert await _rows(first) == 5
            assert await _rows(client.scan_all(APPLICATION, STATE, after=first.token, limit=5, **options)) == 5
        parts = [{"key_groups": range(begin, begin + 8), "part_of": 7} for begin in (0, 8)]
        assert await _rows(client.scan_all(APPLICATION, STATE, **parts[0])) < 100
        await _refused(client.scan_all(APPLICATION, STATE, **parts[1]), TooLarge, rows)
        with Client(proxy.address, timeout=PATIENCE_SECONDS) as blocking:
            with pytest.raises(TooLarge, match=rows):
                await asyncio.to_thread(blocking.sql, f"select * from '{APPLICATION}/{STATE}'")
            few = await asyncio.to_thread(
                blocking.sql, f"select * from '{APPLICATION}/{STATE}' where sensor = 'sensor-1'"
            )
        assert len(few) == 3
        with pytest.raises(MalformedRequest, match="part_of is 0"):
            client.scan_all(APPLICATION, STATE, part_of=0)
        # What servers compute is no row.
        assert await client.count(APPLICATION, STATE) == len(ROWS)
        assert len(await client.scan(APPLICATION, STATE, "sensor-1")) == 3
        url = f"http://{proxy.http_address}/v1/{APPLICATION}/{STATE}"
        async with http.get(f"{url}:scan?limit=1000") as answer:
            assert (answer.status, (await answer.json())["facts"]["cap"]) == (400, rows)
        async with http.get(f"{url}:scan?limit=5&ordered=true") as answer:
            assert len((await answer.json())["entries"]) == 5
        server.hold.clear()
        at_once = "KEYHOLE_CLIENT_PROXY_MAX_CALLER_SCANS"
        waiting = asyncio.ensure_future(client.aggregate(APPLICATION, STATE, {"n": agg.count()}))
        await eventually(lambda: server.scans == 8)
        with monkeypatch.context() as impatient:
            impatient.setattr("keyhole.rpc.scan_caps._ROOM_SECONDS", 0.1)
            await _refused(client.scan_all(APPLICATION, STATE), Overloaded, at_once)
            async with http.get(f"{url}/sensor-1?limit=2") as answer:
                assert (answer.status, (await answer.json())["reason"]) == (429, "OVERLOADED")
        server.hold.set()
        assert (await waiting)["n"] == len(ROWS)
        assert await _rows(client.scan_all(APPLICATION, STATE, limit=5)) == 5


async def test_a_scan_that_takes_too_long_is_refused_and_so_is_one_too_many_bytes() -> None:
    seconds: Any = {"max_scan_seconds": 0.3}
    async with fake_servers("a") as (server,):
        server.host(hourly(), ROWS)
        async with (
            proxy_of(server.address, security=seconds) as proxy,
            AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
        ):
            # Nothing comes, and the caller has all the time.
            server.hold.clear()
            scan = client.scan_all(APPLICATION, STATE, timeout=LONG_SECONDS)
            assert await _refused(scan, TooLarge, "KEYHOLE_CLIENT_PROXY_MAX_SCAN_SECONDS") == 0
            server.hold.set()
        size: Any = {"max_scan_bytes": 1000}
        async with (
            proxy_of(server.address, security=size) as proxy,
            AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client,
        ):
            scan = client.scan_all(APPLICATION, STATE)
            assert 0 < await _refused(scan, TooLarge, "KEYHOLE_CLIENT_PROXY_MAX_SCAN_BYTES") < 100
            assert await _rows(client.scan_all(APPLICATION, STATE, limit=5)) == 5


async def test_each_caller_of_a_proxy_has_scans_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "tokens.toml").write_text(make_tokens(tmp_path, "one", "two"))
    settings: Any = {
        "policy": str(tmp_path / "policy.toml"),
        "tokens": str(tmp_path / "tokens.toml"),
        "max_caller_scans": 1,
    }
    shown = [Credentials(tls=False, token_file=str(tmp_path / f"{name}.token")) for name in ("one", "two")]
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, security=settings) as proxy,
        AsyncClient(proxy.address, timeout=PATIENCE_SECONDS, credentials=shown[0]) as one,
        AsyncClient(proxy.address, timeout=PATIENCE_SECONDS, credentials=shown[1]) as two,
    ):
        server.host(hourly(), ROWS)
        server.hold.clear()
        waiting = asyncio.ensure_future(one.scan(APPLICATION, STATE, "sensor-1"))
        await eventually(lambda: server.scans == 1)
        with pytest.raises(Overloaded, match="token:one: 1 scans are under way in this proxy"):
            await one.scan(APPLICATION, STATE, "sensor-2")
        others = asyncio.ensure_future(two.scan(APPLICATION, STATE, "sensor-2"))
        await eventually(lambda: server.scans == 2)
        server.hold.set()
        assert len(await waiting) == len(await others) == 3


async def test_a_state_server_has_caps_of_its_own() -> None:
    """How many scans there are at once is for tests/unit/test_scan_caps.py: here they end too soon to meet."""
    caps: Any = {"max_scan_rows": 100}
    async with (
        state_server("server-a", security=caps) as server,
        AsyncClient(server.address, timeout=PATIENCE_SECONDS) as client,
    ):
        await server.own(hourly(), range(KEY_GROUPS))
        await server.commit(ROWS)
        rows = "KEYHOLE_STATE_SERVER_MAX_SCAN_ROWS"
        assert await _refused(client.scan_all(APPLICATION, STATE), TooLarge, rows) <= 100
        assert await _rows(client.scan_all(APPLICATION, STATE, limit=100)) == 100

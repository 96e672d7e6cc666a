"""A watermark of a year that Python has not: one event with a wrong time sets it, and every read goes on."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import aiohttp
import pytest

from keyhole import AsyncClient
from keyhole.cli.main import main
from keyhole.coordinator.counts import SparkCounts
from keyhole.coordinator.progress import note_progress
from keyhole.rpc.convert import time_from_ms
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually

LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
# Milliseconds since 1970 that were taken for seconds: the year 57842.
FAR_MS = 1_763_200_000_000 * 1000
NAME = (APPLICATION, STATE)
PATH = "/".join(NAME)


async def test_every_way_to_read_a_state_goes_on_and_has_the_last_moment_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with (
        state_server("server-a") as server,
        proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS) as proxy,
        aiohttp.ClientSession() as http,
    ):
        await server.own_new(descriptor())
        await server.commit(rows(3), watermark_ms=FAR_MS)
        await eventually(lambda: proxy._directory.tables)
        for address in (server.address, proxy.address):
            async with AsyncClient(address, timeout=LONG_SECONDS) as client:
                answers = [await client.get(*NAME, "sensor-1"), *await client.get_many(*NAME, ["sensor-1", "nobody"])]
                assert [of.source.watermark for of in answers] == [LAST] * 3
                assert [of.found for of in answers] == [True, True, False]
                assert len([entry async for entry in client.scan_all(*NAME)]) == 3
                async with client.mirror(PATH) as mirror:
                    assert (len(mirror), mirror.get("sensor-1").source.watermark) == (3, LAST)
                watch = client.watch(*NAME)
                async with watch:
                    assert (await anext(aiter(watch))).value is not None
        async with http.get(f"http://{proxy.http_address}/v1/{PATH}/sensor-1") as response:
            body = json.loads(await response.read())
        assert (response.status, body["source"]["watermark"]) == (200, LAST.isoformat())
        assert await asyncio.to_thread(main, ["get", PATH, "sensor-1", "--proxy", proxy.address]) == 0
        assert "sensor-1" in capsys.readouterr().out


@pytest.mark.parametrize("milliseconds", [FAR_MS, (1 << 63) - 1])
def test_a_time_beyond_the_years_that_there_are_is_the_last_or_the_first_moment(milliseconds: int) -> None:
    assert time_from_ms(milliseconds) == LAST
    assert time_from_ms(-milliseconds) == datetime(1, 1, 1, tzinfo=UTC)


def test_the_figures_of_a_batch_count_though_its_watermark_is_of_no_year() -> None:
    """As Spark spells it."""
    counts = SparkCounts()
    batch = {"durationMs": {"addBatch": 1}, "sources": [{"endOffset": {"orders": {"0": 7}}}]}
    note_progress(counts, batch | {"eventTime": {"watermark": "57842-11-15T10:13:20.000Z"}})
    assert (counts.batches, counts.watermark_ms, counts.sources) == (1, 0, {("orders", 0): 7})

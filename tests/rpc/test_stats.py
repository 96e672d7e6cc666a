"""Stats and /metrics of real servers, on real sockets."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from keyhole import AsyncClient
from keyhole.errors import DeadlineExceeded, UnknownState
from keyhole.metrics.page import own_page
from keyhole.testing.changelog import MemoryKafka
from tests.support import figures
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.refusals import raised_at_deadline
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually


async def test_a_server_counts_what_was_staged_committed_and_read() -> None:
    async with state_server("server-a") as server:
        await server.own(descriptor())
        await server.commit(rows(5))
        await server.commit(rows(3))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            for number in range(4):
                await client.get(APPLICATION, STATE, f"sensor-{number}")
        stats = await figures.read_stats(server.address)
    assert stats.name == "server-a"
    assert not figures.beyond_the_catalogue(stats)
    of = {"server": "server-a", "application": APPLICATION, "state": STATE}
    assert figures.value(stats, "keyhole_state_server_staged_rows_total", **of) == 8
    assert figures.value(stats, "keyhole_state_server_committed_rows_total", **of) == 8
    assert figures.value(stats, "keyhole_state_server_committed_bytes_total", **of) > 0
    assert figures.value(stats, "keyhole_state_server_committed_epochs_total") == 2
    assert figures.value(stats, "keyhole_state_server_commit_seconds") == 2
    assert figures.value(stats, "keyhole_state_server_staged_epoch") == 2
    assert figures.value(stats, "keyhole_state_server_committed_epoch") == 2
    assert figures.value(stats, "keyhole_state_server_store_entries", **of) == 5
    assert figures.value(stats, "keyhole_state_server_lookup_keys_total", **of) == 4
    assert figures.value(stats, "keyhole_state_server_ready") == 1


async def test_a_standby_tells_how_far_it_is_behind() -> None:
    kafka = MemoryKafka()
    async with state_server("owner", kafka) as owner, state_server("follower", kafka) as follower:
        await owner.own(descriptor())
        await owner.commit(rows(5))
        owner.complete()
        await follower.follow(descriptor())
        table = follower.server._registry.tables[APPLICATION, STATE]  # type: ignore[union-attr]  # it is started
        await eventually(lambda: table.standby.standing.as_of_ms > 0)
        stats = await figures.read_stats(follower.address)
    (copy,) = stats.copies
    assert (copy.epoch, copy.lag_epochs, len(copy.key_groups)) == (1, 0, descriptor().key_groups)
    assert figures.value(stats, "keyhole_state_server_standby_lag_epochs") == 0
    assert "keyhole_state_server_standby_lag_seconds" in figures.names(stats)
    assert figures.value(stats, "keyhole_state_server_readable_key_groups", role="standby") == descriptor().key_groups


async def test_its_own_page_has_the_same_figures_and_prometheus_can_read_them() -> None:
    async with state_server("server-a") as server:
        await server.own(descriptor())
        await server.commit(rows(5))
        page = own_page("127.0.0.1:0", lambda: figures.read_stats(server.address))
        await page.start()
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{page.address}/metrics") as answer:
                text = await answer.text()
                assert answer.headers["Content-Type"].startswith("text/plain")
        finally:
            await page.stop()
        stats = await figures.read_stats(server.address)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name.removesuffix("_total") for name in figures.names(stats)} == set(families)
    committed = families["keyhole_state_server_committed_rows"].samples[0]
    assert committed.value == 5
    assert committed.labels == {"server": "server-a", "application": APPLICATION, "state": STATE}
    buckets = [s for s in families["keyhole_state_server_commit_seconds"].samples if s.name.endswith("_bucket")]
    assert [sample.value for sample in buckets] == sorted(sample.value for sample in buckets)
    assert (buckets[-1].labels["le"], buckets[-1].value) == ("+Inf", 1)


async def test_a_proxy_counts_the_keys_that_it_routes_and_what_got_no_answer() -> None:
    async with state_server("server-a") as server, proxy_of(server.address) as proxy:
        await server.own(descriptor())
        await server.commit(rows(5))
        async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await asyncio.gather(*(client.get(APPLICATION, STATE, f"sensor-{number}") for number in range(4)))
            for _ in range(2):
                with pytest.raises(UnknownState):
                    await client.get(APPLICATION, "made-up", "sensor-1")
        stats = await figures.read_stats(proxy.address)
    assert not figures.beyond_the_catalogue(stats)
    of = {"application": APPLICATION, "state": STATE}
    assert figures.value(stats, "keyhole_client_proxy_lookup_keys_total", **of) == 4
    assert figures.value(stats, "keyhole_client_proxy_route_hit_keys_total", **of) == 4
    assert figures.value(stats, "keyhole_client_proxy_route_missed_keys_total", **of) == 0
    assert figures.value(stats, "keyhole_client_proxy_unrouted_key_groups", **of) == 0
    assert figures.value(stats, "keyhole_client_proxy_known_servers", status="reached") == 1
    frames = figures.value(stats, "keyhole_client_proxy_lookup_frames_total", **of)
    assert figures.value(stats, "keyhole_client_proxy_lookup_seconds") == frames
    assert {label for family in stats.families for sample in family.samples for label in sample.labels}.isdisjoint(
        {"made-up"}
    )


async def test_keys_whose_owner_is_gone_are_missed_and_their_key_groups_unrouted() -> None:
    asked = []
    async with state_server("server-a") as server, proxy_of(server.address) as proxy:
        await server.own(descriptor())
        await server.commit(rows(5))
        async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client:
            await client.get(APPLICATION, STATE, "sensor-1")
            await server.server.stop()

            async def read(seconds: float) -> None:
                asked.append(seconds)
                await client.get(APPLICATION, STATE, "sensor-1", timeout=seconds)

            await raised_at_deadline(read, 0.5, DeadlineExceeded, "failed because")
        stats = await figures.read_stats(proxy.address)
    missed = figures.value(stats, "keyhole_client_proxy_route_missed_keys_total")
    # Where the machine is slow, one that was asked for first may not have got as far as the proxy in time.
    assert 1 <= missed <= len(asked)
    assert figures.value(stats, "keyhole_client_proxy_failed_reads_total", state=STATE) == missed
    assert figures.value(stats, "keyhole_client_proxy_unrouted_key_groups") == descriptor().key_groups
    assert figures.value(stats, "keyhole_client_proxy_known_servers", status="lost") == 1

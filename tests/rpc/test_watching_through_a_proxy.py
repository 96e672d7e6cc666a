"""Watches through a client proxy: parts of several owners as one stream, and owners that change under it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from keyhole import AsyncClient, errors
from keyhole.testing.changelog import MemoryKafka
from services.state_server.read.watcher import Watcher
from tests.support import figures
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import KEY_GROUPS, descriptor, row, rows, values
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually
from tests.support.watches import WatchReader, refused_watch


async def test_a_watch_goes_on_without_a_word_where_an_owner_is_replaced_and_at_another_proxy() -> None:
    kafka = MemoryKafka()
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(state_server("a", kafka))
        b = await stack.enter_async_context(state_server("b", kafka))
        of = a.made_topic(descriptor())
        await a.own(of)
        await a.commit(rows(40))
        proxies = [await stack.enter_async_context(proxy_of(a.address, b.address)) for _ in range(2)]
        reader = WatchReader(of)
        task = asyncio.create_task(reader.until(proxies[0].address, lambda of: "end" in of.rows))
        await eventually(lambda: reader.snapshot_done or task.done())
        assert reader.rows == values(40)
        await a.commit(rows(40, 100.0))
        await eventually(lambda: reader.rows == values(40, 100.0) or task.done())
        # Another server takes all over; the first one has them as a standby.
        await b.succeed(a)
        await a.follow(of)
        await b.commit(rows(20, 200.0))
        await eventually(lambda: reader.rows == values(40, 100.0) | values(20, 200.0) or task.done())
        # And half of them come back: two servers have a part each.
        await a.succeed(b, range(0, KEY_GROUPS, 2))
        await b.keep(range(1, KEY_GROUPS, 2))
        before = len(reader.seen)
        await a.commit_own(rows(40, 300.0))
        await b.commit_own(rows(40, 300.0))
        await eventually(lambda: reader.rows == values(40, 300.0) or task.done())
        assert len(reader.seen) == before + 40
        task.cancel()
        # What has come meanwhile comes by the other proxy, and nothing else does.
        await a.commit_own(rows(40, 400.0))
        await b.commit_own(rows(40, 400.0))
        before = len(reader.seen)
        await reader.until(proxies[1].address, lambda of: of.rows == values(40, 400.0))
        assert len(reader.seen) == before + 40
        seen = [(change.key, change.epoch) for change in reader.seen]
        assert len(set(seen)) == len(seen)
        # Only of one key group, and so of one server.
        one = WatchReader(of)
        await one.until(proxies[1].address, lambda of: of.snapshot_done, "sensor-7")
        assert one.rows == {"sensor-7": 407.0}
        assert len(one.token) < len(reader.token)


async def test_a_watch_waits_for_an_owner_and_ends_with_why_there_is_none_or_no_state() -> None:
    kafka = MemoryKafka()
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(state_server("b", kafka))
        async with state_server("a", kafka) as a:
            of = a.made_topic(descriptor())
            await a.own(of)
            await a.commit(rows(10))
            patient = await stack.enter_async_context(proxy_of(a.address, b.address))
            reader = WatchReader(of)
            task = asyncio.create_task(
                reader.until(patient.address, lambda of: of.rows == values(10, 50.0) | {"end": 1.0})
            )
            await eventually(lambda: reader.snapshot_done or task.done())
        # The owner is gone; in its place comes another one.
        await b.succeed(a)
        await b.commit(rows(10, 50.0) | {"end": row(1.0)})
        await task
        assert reader.rows == values(10, 50.0) | {"end": 1.0}
        # This one says why after five seconds.
        proxy = await stack.enter_async_context(proxy_of(b.address, timeout_seconds=5.0))
        before = len(reader.messages)
        ended = asyncio.create_task(refused_watch(reader, proxy.address))
        await eventually(lambda: len(reader.messages) > before or ended.done())
        await b.retire()
        assert isinstance(await ended, (errors.UnknownApplication, errors.UnknownState))


async def test_a_watch_that_ends_is_no_read_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def let_go(watcher: Watcher, pending: object) -> None:
        watcher.error = errors.TooSlow("by this test")

    async with state_server("a") as server, proxy_of(server.address) as proxy:
        await server.own(descriptor())
        await server.commit(rows(10))
        reader = WatchReader(descriptor())
        ended = asyncio.create_task(refused_watch(reader, proxy.address))
        await eventually(lambda: reader.snapshot_done or ended.done())
        monkeypatch.setattr(Watcher, "give", let_go)
        await server.commit(rows(10, 50.0))
        assert isinstance(await ended, errors.TooSlow)
        of_server, of_proxy = await figures.read_stats(server.address), await figures.read_stats(proxy.address)
        assert "keyhole_state_server_failed_reads_total" not in figures.names(of_server)
        assert "keyhole_client_proxy_failed_reads_total" not in figures.names(of_proxy)


async def test_the_epoch_up_to_which_all_was_given_is_no_lower_while_an_owner_is_away() -> None:
    async with fake_servers("a", "b") as (a, b), proxy_of(a.address, b.address) as proxy:
        for number, server in enumerate((a, b)):
            server.host(descriptor(), {}, range(number, KEY_GROUPS, 2)).epoch = 7
            server.changed()
        of = descriptor()
        async with (
            AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
            client.watch(of.application, of.state) as changes,
        ):
            while changes.epoch != 7:
                await changes.page()
            await b.stop()
            for _ in range(3):
                await changes.page()
                assert changes.epoch == 7

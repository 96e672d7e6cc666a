"""A client whose lookups are refused for a while comes again when it was told to, within its time, and not sooner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keyhole import AsyncClient, Client
from keyhole.client.wire import state_reads
from keyhole.errors import ClientClosed, Overloaded
from tests.support.direct_reads import reaches
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

SENSORS = [f"sensor-{number}" for number in range(100)]
LOW, HIGH = range(8), range(8, KEY_GROUPS)


async def test_a_client_comes_again_when_it_was_told_to_and_not_where_there_is_no_time() -> None:
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        server.host(descriptor(), rows(100))
        assert (await client.get(APPLICATION, STATE, "sensor-0")).found
        server.refuse = Overloaded("the server has enough", retry_after_seconds=0.05)
        before = server.frames
        one = asyncio.ensure_future(client.get(APPLICATION, STATE, "sensor-1"))
        many = asyncio.ensure_future(client.get_many(APPLICATION, STATE, SENSORS))
        await eventually(lambda: server.frames >= before + 6)
        assert not one.done()
        assert not many.done()
        server.refuse = None
        assert (await one).value.celsius == 1.0
        assert [answer.value.celsius for answer in await many] == [float(number) for number in range(100)]
        assert _refused_keys(client) == 0
        server.refuse = Overloaded("the server has enough", retry_after_seconds=LONG_SECONDS)
        before = server.frames
        with pytest.raises(Overloaded, match="the server has enough") as no:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await client.get(APPLICATION, STATE, "sensor-1")
        assert (server.frames, no.value.facts["retry_after_seconds"]) == (before + 1, str(LONG_SECONDS))


async def test_a_client_that_is_told_to_come_again_at_once_pauses_all_the_same() -> None:
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        server.host(descriptor(), rows(100))
        assert (await client.get(APPLICATION, STATE, "sensor-0")).found
        server.refuse = Overloaded("the server has enough", retry_after_seconds=0)
        before, began = server.frames, asyncio.get_running_loop().time()
        reading = asyncio.ensure_future(client.get(APPLICATION, STATE, "sensor-1"))
        await eventually(lambda: server.frames >= before + 20)
        # Of the 20 pauses, the shortest there may be.
        assert asyncio.get_running_loop().time() - began >= 19 * 0.025
        server.refuse = None
        assert (await reading).found


async def test_of_keys_of_several_servers_only_those_that_were_refused_are_asked_for_again() -> None:
    async with (
        fake_servers("a", "b") as (a, b),
        proxy_of(a.address, b.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        a.host(descriptor(), rows(100), LOW)
        b.host(descriptor(), rows(100), HIGH)
        await client.get_many(APPLICATION, STATE, SENSORS)
        a.refuse = Overloaded("a has enough", retry_after_seconds=0.05)
        asked_of_a, asked_of_b = a.frames, b.frames
        reading = asyncio.ensure_future(client.get_many(APPLICATION, STATE, SENSORS))
        await eventually(lambda: a.frames >= asked_of_a + 6)
        assert b.frames <= asked_of_b + 2
        a.refuse = None
        assert [answer.value.celsius for answer in await reading] == [float(number) for number in range(100)]


async def test_a_client_that_asks_the_servers_itself_comes_again_too() -> None:
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS, routing="direct") as client,
    ):
        server.host(descriptor(), rows(100))
        await client.get(APPLICATION, STATE, "sensor-0")
        await eventually(lambda: reaches(client, server.address), LONG_SECONDS)
        server.refuse = Overloaded("the server has enough", retry_after_seconds=0.05)
        before, by_proxy = server.frames, proxy._servicer.counts.states[APPLICATION, STATE].keys
        reading = asyncio.ensure_future(client.get(APPLICATION, STATE, "sensor-1"))
        await eventually(lambda: server.frames >= before + 3)
        server.refuse = None
        assert (await reading).found
        # It would have been refused there, too: that would only have been more load.
        assert proxy._servicer.counts.states[APPLICATION, STATE].keys == by_proxy


async def test_a_blocking_client_comes_again_too() -> None:
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        server.host(descriptor(), rows(100))
        with Client(proxy.address, timeout=LONG_SECONDS) as client:
            await asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-0")
            server.refuse = Overloaded("the server has enough", retry_after_seconds=0.05)
            before = server.frames
            reading = asyncio.create_task(asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-1"))
            await eventually(lambda: server.frames >= before + 3)
            server.refuse = None
            assert (await reading).found


async def test_what_waits_in_a_client_to_be_sent_again_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_reads, "_MOST_REFUSED_KEYS", 10)
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address) as proxy,
        AsyncClient(proxy.address, timeout=10 * LONG_SECONDS) as client,
    ):
        server.host(descriptor(), rows(100))
        assert (await client.get(APPLICATION, STATE, "sensor-0")).found
        server.refuse = Overloaded("the server has enough", retry_after_seconds=LONG_SECONDS)
        waiting = [asyncio.ensure_future(client.get(APPLICATION, STATE, name)) for name in SENSORS[:10]]
        await eventually(lambda: _refused_keys(client) == 10)
        with pytest.raises(Overloaded, match="the server has enough"):
            await client.get(APPLICATION, STATE, "sensor-11")
        assert not any(read.done() for read in waiting)
        await client.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(of) for of in outcomes} == {ClientClosed}


def _refused_keys(client: AsyncClient) -> int:
    connection: Any = client._connection
    return sum(reads._refused_keys for reads in connection._states.values())

"""Reads of an owner that is slow, and not silent: through a proxy that hedges, and of a client that asks servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing

import pytest

from keyhole import AsyncClient
from keyhole.addresses import parted
from keyhole.client.routing.hedging import Hedging
from keyhole.client.routing.known_servers import KnownServers
from keyhole.local.ports import free_ports
from keyhole.model.read import Role
from keyhole.testing.network import Network
from services.client_proxy.app import ClientProxy
from tests.support import figures
from tests.support.copies import copies
from tests.support.direct_reads import servers_of, until_reached
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, eventually

QUANTILE = 0.95


class _Reads:
    """Of an owner behind a link that can be cut, and of its standby."""

    def __init__(self, network: Network, proxy: ClientProxy, client: AsyncClient, hedging: Hedging | None) -> None:
        self.network, self.proxy, self.client = network, proxy, client
        self._hedging = hedging

    @property
    def hedging(self) -> Hedging:
        """Of whoever asks the servers."""
        assert self._hedging is not None
        return self._hedging

    async def one(self, **bounds: str) -> Role:
        answer = await self.client.get(APPLICATION, STATE, "sensor-7", **bounds)
        assert answer.value.celsius == 7.0
        return answer.source.role


def _copies_in(servers: KnownServers) -> set[str]:
    """Whom they know that have a copy of any key group. A hedge goes to no other."""
    table = servers.tables.get((APPLICATION, STATE))
    return {address for of in table.copies for address in of} if table is not None else set()


@pytest.fixture(params=["proxy", "direct"])
async def reads(request: pytest.FixtureRequest) -> AsyncIterator[_Reads]:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(copies("state server", descriptor(), rows(100)))
        owner, standby = both.addresses
        network = stack.enter_context(closing(Network()))
        (port,) = free_ports(1)
        network.link("owner", port, parted(owner, "an address")[1])
        away = f"127.0.0.1:{port}"
        proxy = await stack.enter_async_context(proxy_of(away, standby, hedge_quantile=QUANTILE))
        client = AsyncClient(proxy.address, timeout=LONG_SECONDS, routing=request.param)
        await stack.enter_async_context(client)
        await client.get(APPLICATION, STATE, "sensor-7")
        await eventually(lambda: _copies_in(proxy._directory) == {away, standby}, LONG_SECONDS)
        hedging = proxy._directory.hedging
        if request.param == "direct":
            await eventually(lambda: _copies_in(servers_of(client)) == {away, standby}, LONG_SECONDS)
            await until_reached(client, away, standby)
            hedging = servers_of(client).hedging
        made = _Reads(network, proxy, client, hedging)
        assert made.hedging.quantile == QUANTILE
        # What it nearly always takes is known from 100 answers on. On a slow machine some are hedged, and take keys.
        for _ in range(120):
            await made.one()
        made.hedging.read(1_000)
        yield made


async def test_a_slow_owner_is_not_waited_for_alone_and_not_suspected(reads: _Reads) -> None:
    reads.network.cut("owner")
    assert await reads.one() is Role.STANDBY
    reads.network.heal("owner")
    assert reads.hedging.keys >= 1
    assert reads.hedging.answered_keys >= 1
    async with asyncio.timeout(LONG_SECONDS):
        while await reads.one() is not Role.OWNER:  # its first answers may come late
            pass
    assert not reads.proxy._directory.silent_calls
    stats = await figures.read_stats(reads.proxy.address)
    of_proxy = reads.proxy._directory.hedging
    assert of_proxy is not None
    assert figures.value(stats, "keyhole_client_proxy_hedged_keys_total") == of_proxy.keys
    assert figures.value(stats, "keyhole_client_proxy_hedge_answered_keys_total") == of_proxy.answered_keys


async def test_who_wants_nothing_stale_waits_for_a_slow_owner(reads: _Reads) -> None:
    before = reads.hedging.keys
    for _ in range(20):
        assert await reads.one(stale="never") is Role.OWNER
    assert reads.hedging.keys == before

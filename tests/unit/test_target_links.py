"""A client's target that stands for several addresses: all who answer there are asked, as many as there are now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from keyhole import AsyncClient
from keyhole.client.wire import target_links
from keyhole.client.wire.links import Links
from keyhole.errors import ServerLost
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import query_pb2
from tests.support import entries
from tests.support.proxies import fake_servers, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, eventually

SENSORS = [f"sensor-{number}" for number in range(40)]
OFTEN_SECONDS = 0.02
ASKED = query_pb2.ListStatesRequest()


class Name:
    """Whose addresses a test changes."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0

    async def resolve(self, target: str) -> tuple[str, list[str]]:
        self.asked += 1
        return target.removeprefix("dns:"), [f"ipv4:{address}" for address in self.addresses]


@asynccontextmanager
async def links_of(target: str, name: Name) -> AsyncIterator[Links]:
    links = Links((target,), (None,), name.resolve, OFTEN_SECONDS)
    try:
        yield links
    finally:
        await links.close(ServerLost("closed"))


async def asks(links: Links) -> str:
    """Asks whoever is next, as a read does; whom."""
    while (link := links.next()) is None:
        await links.pause(links.free_at())
    await link.stub.ListStates(ASKED, timeout=LONG_SECONDS)
    link.heard()
    return link.target


async def until(links: Links, are: Callable[[set[str]], bool]) -> set[str]:
    """Asks until those who are asked in turn are so."""
    async with asyncio.timeout(LONG_SECONDS):
        while True:
            if are(found := {await asks(links) for _ in range(8)}):
                return found
            await asyncio.sleep(OFTEN_SECONDS)


def named(*addresses: str) -> set[str]:
    return {f"ipv4:{address}" for address in addresses}


async def test_reads_are_spread_over_all_addresses_that_are_written_out() -> None:
    async with fake_servers("a", "b") as (a, b):
        for server in (a, b):
            server.host(descriptor(), rows(40))
        async with AsyncClient(f"ipv4:{a.address},{b.address}", timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, SENSORS[0])
            connection = client._connection
            assert connection is not None
            await eventually(lambda: len(connection._links._links) == 2, LONG_SECONDS)
            before = a.frames, b.frames
            for name in SENSORS:
                await client.get(APPLICATION, STATE, name)
            assert (a.frames - before[0], b.frames - before[1]) == (20, 20)


async def test_no_read_fails_while_one_of_them_ends_and_comes_back() -> None:
    async with fake_servers("a", "b") as (a, b):
        for server in (a, b):
            server.host(descriptor(), rows(40))
        async with AsyncClient(f"ipv4:{a.address},{b.address}", timeout=LONG_SECONDS) as client:
            over = asyncio.Event()

            async def read() -> None:
                while not over.is_set():
                    answers = await asyncio.gather(*(client.get(APPLICATION, STATE, name) for name in SENSORS))
                    assert all(answer.found for answer in answers)

            async with asyncio.TaskGroup() as reading:
                reading.create_task(read())
                await eventually(lambda: a.frames and b.frames, LONG_SECONDS)
                await a.stop()
                before = b.frames
                await eventually(lambda: b.frames > before + 5, LONG_SECONDS)
                again = FakeServer("a", a.port)
                again.host(descriptor(), rows(40))
                await again.start()
                try:
                    await eventually(lambda: again.frames, LONG_SECONDS)
                    over.set()
                finally:
                    await again.stop()


async def test_addresses_come_and_go_with_the_name_and_who_answers_is_asked_as_long_as_it_does() -> None:
    async with fake_servers("a", "b", "c") as (a, b, c):
        name = Name(a.address, b.address)
        async with links_of(f"dns:{a.address}", name) as links:
            await until(links, lambda found: found == named(a.address, b.address))
            name.addresses = (b.address, c.address)
            # An answer may be cut short: a proxy that answers is asked on.
            await until(links, lambda found: found == named(a.address, b.address, c.address))
            # Once it ends, a look at the name may find that before anybody else does.
            lost = next(link for link in links._links if link.target in named(a.address))
            await a.stop()
            lost.lost(ServerLost("gone"))
            await eventually(lambda: lost not in links._links, LONG_SECONDS)
            await until(links, lambda found: found == named(b.address, c.address))
            # It can't be resolved for a while.
            name.addresses = ()
            asked = name.asked
            await eventually(lambda: name.asked > asked + 2, LONG_SECONDS)
            assert await until(links, lambda found: len(found) > 1) == named(b.address, c.address)


async def test_an_address_that_can_not_be_connected_to_is_not_asked() -> None:
    async with fake_servers("a", "b") as (a, b):
        with unused_address() as nobody:
            name = Name(nobody, a.address, b.address)
            async with links_of(f"dns:{a.address}", name) as links:
                await until(links, lambda found: found == named(a.address, b.address))
                for _ in range(50):
                    assert await asks(links) in named(a.address, b.address)


async def test_nothing_is_looked_up_before_a_proxy_has_answered_nor_for_a_host() -> None:
    async with fake_servers("a", "b") as (a, b):
        name = Name(a.address, b.address)
        async with links_of(f"dns:{a.address}", name) as links:
            await asyncio.sleep(0)
            assert name.asked == 0
            assert await asks(links) == f"dns:{a.address}"
            await eventually(lambda: name.asked > 0, LONG_SECONDS)
        host = Name(a.address, b.address)
        async with links_of(a.address, host) as links:
            for _ in range(5):
                assert await asks(links) == a.address
            assert host.asked == 0


async def test_a_name_of_one_address_is_asked_as_it_is_until_it_has_more() -> None:
    async with fake_servers("a", "b") as (a, b):
        name = Name(a.address)
        async with links_of(f"dns:{a.address}", name) as links:
            await asks(links)
            await eventually(lambda: name.asked > 2, LONG_SECONDS)
            assert await asks(links) == f"dns:{a.address}"
            name.addresses = (a.address, b.address)
            await until(links, lambda found: found == named(a.address, b.address))


async def test_of_very_many_addresses_some_are_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_links, "_MOST", 2)
    async with fake_servers("a", "b", "c") as servers:
        name = Name(*(server.address for server in servers))
        async with links_of(f"dns:{servers[0].address}", name) as links:
            assert (
                len(await until(links, lambda found: len(found) == 2 and not any("dns" in one for one in found))) == 2
            )
            assert len(links._links) == 2


async def test_what_is_under_way_at_an_address_that_goes_comes_to_its_end() -> None:
    async with fake_servers("a", "b") as (a, b):
        for server in (a, b):
            server.host(entries.hourly(), entries.hours("sensor-7", range(9)))
        name = Name(a.address, b.address)
        async with links_of(f"dns:{a.address}", name) as links:
            await until(links, lambda found: found == named(a.address, b.address))
            gone = next(link for link in links._links if link.target in named(a.address))
            a.hold_after = 3
            a.hold.clear()
            scan = gone.stub.Scan(entries.scan_request(), timeout=LONG_SECONDS)
            await eventually(lambda: a.scans == 1, LONG_SECONDS)
            name.addresses = (b.address,)
            gone.lost(ServerLost("it drains"))
            await eventually(lambda: gone not in links._links, LONG_SECONDS)
            a.hold.set()
            assert sum([len(page.values) async for page in scan]) == 9


async def test_addresses_that_are_all_replaced_go_though_nobody_has_noticed_that_they_are_lost() -> None:
    async with fake_servers("a", "b", "c") as (a, b, c):
        name = Name(a.address, b.address)
        async with links_of(f"dns:{a.address}", name) as links:
            await until(links, lambda found: found == named(a.address, b.address))
            await a.stop()
            await b.stop()
            name.addresses = (c.address,)
            await eventually(lambda: {link.target for link in links._links} == named(c.address), LONG_SECONDS)
            assert await asks(links) == f"ipv4:{c.address}"


async def test_those_that_are_lost_take_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_links, "_MOST", 1)
    async with fake_servers("a", "b") as (a, b):
        name = Name(a.address, b.address)
        async with links_of(f"dns:{a.address}", name) as links:
            (first,) = await until(links, lambda found: not any("dns" in one for one in found))
            await (a if first in named(a.address) else b).stop()
            links._links[0].lost(ServerLost("gone"))
            await eventually(lambda: len(links._links) == 2, LONG_SECONDS)
            assert await asks(links) != first

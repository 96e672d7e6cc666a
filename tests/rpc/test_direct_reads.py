"""A client that asks the servers itself, told by a proxy where they are: the same answers, whatever becomes of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, closing

import pytest

from keyhole import AsyncClient, Client, Credentials
from keyhole.backoff import Backoff
from keyhole.client.read_sessions import AsyncSession
from keyhole.client.routing import direct_reads, direct_servers
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import (
    InvalidConfiguration,
    KeyholeError,
    KeyMismatch,
    MalformedRequest,
    NotReady,
    PermissionDenied,
    UnknownState,
    Unsupported,
)
from keyhole.local.ports import free_ports
from keyhole.model.read import Role
from keyhole.protocol.server_view import ServerView, StateName
from keyhole.rpc import server_views
from keyhole.testing.network import Network
from keyhole.v1 import query_pb2 as pb
from services.client_proxy import directory
from services.client_proxy.app import ClientProxy
from services.client_proxy.grpc import route_watches
from tests.support.copies import copies
from tests.support.direct_reads import direct_streams_of, reaches, servers_of, until_reached
from tests.support.lookup_ports import until_by_port
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, row, rows
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

NAMES = [f"sensor-{number}" for number in range(100)]


def forwarded(proxy: ClientProxy) -> int:
    """How many keys have gone through the proxy."""
    return sum(counts.keys for counts in proxy._servicer.counts.states.values())


def direct(proxy: ClientProxy) -> AsyncClient:
    return AsyncClient(proxy.address, timeout=LONG_SECONDS, routing="direct")


async def values(client: AsyncClient) -> list[float]:
    return [answer.value.celsius for answer in await client.get_many(APPLICATION, STATE, NAMES)]


async def test_keys_go_to_their_owners_and_follow_them_and_all_else_goes_through_the_proxy() -> None:
    half = range(KEY_GROUPS // 2)
    async with fake_servers("a", "b") as (first, second), proxy_of(first.address, second.address) as proxy:
        first.host(descriptor(), rows(100), half)
        second.host(descriptor(), rows(100), range(KEY_GROUPS // 2, KEY_GROUPS))
        async with direct(proxy) as client:
            expected = list(map(float, range(100)))
            assert await values(client) == expected
            await until_reached(client, first.address, second.address)
            before = forwarded(proxy)
            assert await values(client) == expected
            typed = client.state(f"{APPLICATION}/{STATE}")
            assert [(await typed.get(name)).value.celsius for name in NAMES[:9]] == expected[:9]
            assert {answer.server for answer in await client.get_many(APPLICATION, STATE, NAMES)} == {"a", "b"}
            with pytest.raises(KeyMismatch):
                await client.get(APPLICATION, STATE, 7)
            with pytest.raises(UnknownState, match=STATE):
                await client.get(APPLICATION, "nothing", "sensor-7")
            assert forwarded(proxy) == before
            assert await client.count(APPLICATION, STATE) == 100
            # One gives its key groups to the other: whom it is asked of before that is known says so.
            second.host(descriptor(), rows(100))
            first.states.clear()
            first.changed()
            assert await values(client) == expected
            await eventually(lambda: not reaches(client, first.address), LONG_SECONDS)  # it is named no more
            before = forwarded(proxy)
            assert {answer.server for answer in await client.get_many(APPLICATION, STATE, NAMES)} == {"b"}
            assert forwarded(proxy) == before

        def in_threads() -> list[float]:
            with Client(proxy.address, timeout=LONG_SECONDS, routing="direct") as threads:
                return [answer.value.celsius for answer in threads.get_many(APPLICATION, STATE, NAMES)]

        assert await asyncio.to_thread(in_threads) == expected
        # Nothing of a closed client's goes on at the proxy.
        await eventually(lambda: proxy._servicer._route_watches._count == 0, LONG_SECONDS)


async def test_servers_that_it_cant_reach_are_asked_by_the_proxy_and_later_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        server.host(descriptor(), rows(100))
        (port,) = free_ports(1)
        elsewhere = f"127.0.0.1:{port}"

        def rerouted(view: ServerView, holdings: list[pb.StateHolding], name: StateName) -> pb.RoutedServer:
            of = server_views.routed(view, holdings, name)
            of.address = elsewhere
            return of

        monkeypatch.setattr(route_watches, "routed", rerouted)
        with closing(Network()) as network:
            network.link("way", port, server.port)
            network.cut("way")  # connected to, and silent: as a firewall that drops
            async with direct(proxy) as client:
                for _ in range(3):
                    assert await values(client) == list(map(float, range(100)))
                assert forwarded(proxy) == 300
                assert not reaches(client, elsewhere)
                network.heal("way")
                network.reset("way")
                await until_reached(client, elsewhere)
                assert await values(client) == list(map(float, range(100)))
                assert forwarded(proxy) == 300
            network.cut("way")
            async with direct(proxy) as client:  # and what is cut in the middle of it
                network.heal("way")
                await values(client)
                await until_reached(client, elsewhere)
                network.reset("way")
                assert await values(client) == list(map(float, range(100)))


@pytest.mark.parametrize("kind", ["fake", "state server", "state server by its lookup port"])
async def test_reads_of_a_session_never_fail_and_never_go_back_while_the_owner_is_killed(kind: str) -> None:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(copies(kind, descriptor(), rows(100)))
        proxy = await stack.enter_async_context(proxy_of(*both.addresses))
        async with direct(proxy) as client:
            await client.get(APPLICATION, STATE, "sensor-7")
            await until_reached(client, *both.addresses)
            await until_by_port(direct_streams_of(client))
            standby_answered = asyncio.Event()

            async def read_on(session: AsyncSession) -> None:
                epoch, after = 0, 0
                while after < 5:
                    answer = await session.get(APPLICATION, STATE, "sensor-7")
                    assert answer.found
                    assert answer.epoch >= epoch
                    assert answer.value.celsius == (8.0 if answer.epoch > 1 else 7.0)
                    epoch = answer.epoch
                    after += answer.role is Role.STANDBY
                standby_answered.set()

            readers = [asyncio.ensure_future(read_on(client.session())) for _ in range(4)]
            await both.advance({"sensor-7": row(8.0)})
            await both.lose_owner()
            async with asyncio.timeout(LONG_SECONDS):
                await asyncio.gather(*readers)


async def test_a_silent_owner_costs_one_hop_deadline_and_is_asked_again_once_it_lives() -> None:
    async with AsyncExitStack() as stack:
        owner, standby = await stack.enter_async_context(fake_servers("a", "b"))
        proxy = await stack.enter_async_context(proxy_of(owner.address, standby.address, hop_seconds=0.2))
        owner.host(descriptor(), rows(100))
        standby.follow(descriptor(), rows(100))
        client = await stack.enter_async_context(direct(proxy))
        await client.get(APPLICATION, STATE, "sensor-7")
        await until_reached(client, owner.address, standby.address)
        owner.hold.clear()
        assert (await client.get(APPLICATION, STATE, "sensor-7")).role is Role.STANDBY
        owner.hold.set()
        await until_reached(client, owner.address)
        async with asyncio.timeout(LONG_SECONDS):
            # It is asked first once the proxy hears it again, too.
            while (await client.get(APPLICATION, STATE, "sensor-7")).role is not Role.OWNER:  # noqa: ASYNC110 - a reader
                await asyncio.sleep(0.01)


async def test_what_no_server_that_it_is_told_of_owns_is_asked_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where routes are old."""
    name = NAMES[0]
    own = group_of(StateCodec(descriptor()).storage_key(name))
    async with fake_servers("a", "b") as (owner, other), proxy_of(owner.address, other.address) as proxy:
        owner.host(descriptor(), rows(100), [own])
        other.host(descriptor(), rows(100), set(range(KEY_GROUPS)) - {own})

        def rerouted(view: ServerView, holdings: list[pb.StateHolding], name: StateName) -> pb.RoutedServer:
            of = server_views.routed(view, holdings, name)
            of.address = other.address
            return of

        monkeypatch.setattr(route_watches, "routed", rerouted)
        async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS, routing="direct") as client:
            await client.get(APPLICATION, STATE, name)
            await until_reached(client, other.address)
            before = forwarded(proxy), other.frames
            answer = await client.get(APPLICATION, STATE, name)
            assert (answer.value.celsius, answer.server) == (0.0, "a")
            assert (forwarded(proxy), other.frames) == (before[0] + 1, before[1] + 1)
            # That it owns something else is nothing against it.
            assert reaches(client, other.address)


async def test_keys_that_are_answered_wait_for_no_slow_copy_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    own = group_of(StateCodec(descriptor()).storage_key(NAMES[0]))
    async with fake_servers("a", "b", "c") as (old, standby, owner):
        old.host(descriptor(), rows(100), set(range(KEY_GROUPS)) - {own})
        standby.follow(descriptor(), rows(100))
        owner.host(descriptor(), rows(100), [own])

        def rerouted(view: ServerView, holdings: list[pb.StateHolding], name: StateName) -> pb.RoutedServer:
            of = server_views.routed(view, [] if view.server == "c" else holdings, name)
            if view.server == "a":
                of.holdings[0].key_groups.append(own)
            return of

        monkeypatch.setattr(route_watches, "routed", rerouted)
        async with proxy_of(old.address, standby.address, owner.address) as proxy, direct(proxy) as client:
            await values(client)
            await until_reached(client, old.address, standby.address)
            watches, known, name = proxy._servicer._route_watches, proxy._directory, (APPLICATION, STATE)
            before = watches._routes(name, known.next_change())
            standby.hold.clear()  # it is silent, for as long as no hop deadline has come
            async with asyncio.timeout(LONG_SECONDS / 2):
                assert await values(client) == list(map(float, range(100)))
            standby.hold.set()
            # Who follows the routes of a state is told of no change of another.
            owner.host(descriptor("other"))
            await eventually(lambda: (APPLICATION, "other") in known.tables)
            assert watches._routes(name, known.next_change()) is before


async def test_what_a_server_refuses_the_proxy_has_the_last_word_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy, direct(proxy) as client:
        server.host(descriptor(), rows(100))
        await client.get(APPLICATION, STATE, "sensor-7")
        await until_reached(client, server.address)

        async def refused_and_read(error: KeyholeError) -> int:
            """How many keys have gone through the proxy."""
            before = forwarded(proxy)
            server.refuse = error
            with pytest.raises(type(error), match="not like this"):
                await client.get(APPLICATION, STATE, "sensor-7")
            server.refuse = None
            assert (await client.get(APPLICATION, STATE, "sensor-7")).value.celsius == 7.0
            assert reaches(client, server.address)
            return forwarded(proxy) - before

        # What the caller does wrong is nothing against the server.
        assert await refused_and_read(Unsupported("not like this")) == 1
        assert await refused_and_read(PermissionDenied("not like this")) == 2
        # It is left alone for this state, and for a while.
        server.host(descriptor("other"), rows(100))
        await eventually(lambda: (APPLICATION, "other") in proxy._directory.tables)
        await client.get(APPLICATION, "other", "sensor-7")
        await eventually(lambda: (APPLICATION, "other") in servers_of(client).tables)
        before = forwarded(proxy)
        await client.get(APPLICATION, "other", "sensor-7")
        assert forwarded(proxy) == before
    monkeypatch.setattr(direct_reads, "_REFUSED_SECONDS", 0.0)
    async with fake_servers("a", "b") as (owner, standby), proxy_of(owner.address, standby.address) as proxy:
        owner.host(descriptor(), rows(100))
        standby.follow(descriptor(), rows(100))
        async with direct(proxy) as client:
            await client.get(APPLICATION, STATE, "sensor-7")
            await until_reached(client, owner.address, standby.address)
            monkeypatch.setattr(direct_reads, "_REFUSED_SECONDS", LONG_SECONDS)
            owner.refuse, standby.refuse = NotReady("restoring"), PermissionDenied("not like this")
            with pytest.raises(PermissionDenied):
                await client.get(APPLICATION, STATE, "sensor-7")
            owner.refuse = standby.refuse = None
            before = forwarded(proxy)
            assert (await client.get(APPLICATION, STATE, "sensor-7")).role is Role.OWNER
            assert forwarded(proxy) == before  # the owner has refused nothing


async def test_a_state_that_is_no_more_is_not_followed_nor_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_servers, "_MOST_STATES", 1)
    # Fakes say nothing of their process, by which a proxy tells that they have let go from that they were restarted.
    monkeypatch.setattr(directory, "let_go", lambda before, after: (before.held if before else set()) - after.held)
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy, direct(proxy) as client:
        server.host(descriptor(), rows(100))
        server.host(descriptor("other"), rows(100))
        await client.get(APPLICATION, STATE, "sensor-7")
        await until_reached(client, server.address)
        servers = servers_of(client)
        for _ in range(2):
            assert (await client.get(APPLICATION, "other", "sensor-7")).value.celsius == 7.0
        assert set(servers._following) == {(APPLICATION, STATE)}
        del server.states[APPLICATION, STATE]
        server.changed()
        await eventually(lambda: not servers._following)
        assert not servers.tables
        assert not servers._servers
        await client.get(APPLICATION, "other", "sensor-7")
        await until_reached(client, server.address)
        before = forwarded(proxy)
        await client.get(APPLICATION, "other", "sensor-7")
        assert forwarded(proxy) == before


async def test_routes_that_cant_be_read_and_servers_that_cant_be_shown_anything_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server_made, views_read = direct_servers.DirectServer, server_views.views_of
    tried: list[str] = []
    resets: list[Backoff] = []

    class Counted(Backoff):
        def reset(self) -> None:
            resets.append(self)
            super().reset()

    def unread(routes: pb.Routes) -> list[ServerView]:
        tried.append("routes")
        raise MalformedRequest("no key")

    def unshown(address: str, credentials: Credentials) -> direct_servers.DirectServer:
        tried.append(address)
        raise InvalidConfiguration("the token's file is empty")

    monkeypatch.setattr(direct_servers, "Backoff", Counted)
    monkeypatch.setattr(direct_servers, "_FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(direct_servers, "views_of", unread)
    monkeypatch.setattr(direct_servers, "DirectServer", unshown)
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy, direct(proxy) as client:
        server.host(descriptor(), rows(100))
        await client.get(APPLICATION, STATE, "sensor-7")
        await eventually(lambda: len(tried) > 2)
        assert not resets  # each pause is longer than the one before
        monkeypatch.setattr(direct_servers, "views_of", views_read)
        for groups in (range(9), range(10)):
            tried.clear()
            server.host(descriptor(), rows(100), groups)
            await eventually(lambda: server.address in tried)
        warned = [record for record in caplog.records if record.message == "a server is not asked directly"]
        assert len(warned) == 1
        monkeypatch.setattr(direct_servers, "DirectServer", server_made)
        server.host(descriptor(), rows(100))
        await until_reached(client, server.address)
        assert await values(client) == list(map(float, range(100)))


async def test_reads_go_on_along_the_last_routes_while_no_proxy_is_there() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(100))
        async with proxy_of(server.address) as proxy:
            client = direct(proxy)
            await client.get(APPLICATION, STATE, "sensor-7")
            await until_reached(client, server.address)
        assert await values(client) == list(map(float, range(100)))
        await client.close()


async def test_a_target_that_tells_no_routes_is_asked_for_everything_and_a_way_that_there_is_not_is_refused() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(100))
        async with AsyncClient(server.address, timeout=LONG_SECONDS, routing="direct") as client:
            assert await values(client) == list(map(float, range(100)))
    for made in (AsyncClient, Client):
        with pytest.raises(InvalidConfiguration, match="proxy, direct"):
            made("proxy:7400", routing="nearest")

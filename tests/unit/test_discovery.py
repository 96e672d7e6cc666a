"""Finding servers: how a setting spells it, fixed lists, and DNS names."""

from __future__ import annotations

import asyncio
import logging

import pytest

from keyhole.discovery import FollowedServers, StaticDiscovery, discovery_of
from keyhole.discovery.dns import DnsSource
from keyhole.discovery.following import Telling
from keyhole.discovery.parse import DEFAULT_SELECTOR, Address, DnsName, Pods, read
from keyhole.errors import InvalidConfiguration
from tests.support.waiting import PATIENCE_SECONDS, until


async def test_a_static_list_is_told_once_and_stays() -> None:
    addresses = StaticDiscovery(["a:1", "b:2", "a:1"]).addresses()
    assert await anext(addresses) == {"a:1", "b:2"}
    await addresses.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("server", ["a", "a:", ":1", "a:b", "a:0", "a:65536", "a:\u0661"])
def test_what_is_not_host_and_port_is_refused_by_name(server: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"state server '{server}' is not host:port"):
        StaticDiscovery([server])
    with pytest.raises(InvalidConfiguration, match=f"state server '{server}' is not host:port"):
        discovery_of(server)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="name at least one"):
        StaticDiscovery([])
    with pytest.raises(InvalidConfiguration, match="the list of servers is empty"):
        discovery_of(" , ")


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a:7410, b:7410,", (Address("a:7410"), Address("b:7410"))),
        ("[::1]:7410", (Address("[::1]:7410"),)),
        ("dns:servers.data.svc:7410", (DnsName("servers.data.svc", 7410),)),
        ("kubernetes:7410", (Pods(7410, None, DEFAULT_SELECTOR),)),
        ("kubernetes:7410?namespace=data", (Pods(7410, "data", DEFAULT_SELECTOR),)),
        ("kubernetes:1?selector=app=x,tier!=web", (Pods(1, None, "app=x,tier!=web"),)),
        (
            "kubernetes:1?namespace=n&selector=app in (x, y),!old,a:1",
            (Pods(1, "n", "app in (x,y),!old"), Address("a:1")),
        ),
        ("kubernetes:1?selector=a%3Db%2Cc&namespace=n", (Pods(1, "n", "a=b,c"),)),
        ("a:1,kubernetes:2,dns:b:3", (Address("a:1"), Pods(2), DnsName("b", 3))),
        ("kubernetes:1?selector=a,b,kubernetes:2?selector=c", (Pods(1, None, "a,b"), Pods(2, None, "c"))),
    ],
)
def test_a_setting_spells_where_the_servers_are(text: str, entries: tuple[object, ...]) -> None:
    assert read(text) == entries


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dns:7410", "it is not dns:name:port"),
        ("dns:a:b:7410", "it is not dns:name:port"),
        ("dns:a:0", "it is not dns:name:port"),
        ("kubernetes:", "after kubernetes: comes the port"),
        ("kubernetes:http", "after kubernetes: comes the port"),
        ("kubernetes:7410?", None),
        ("kubernetes:7410?selektor=a", "it has 'selektor'"),
        ("kubernetes:7410?namespace", "come namespace=... and selector=..."),
        ("kubernetes:7410?namespace=", "its namespace is empty"),
        ("kubernetes:7410?namespace=a&namespace=b", "it says something twice"),
    ],
)
def test_what_is_spelled_otherwise_is_refused_and_says_how_it_is_spelled(text: str, why: str | None) -> None:
    if why is None:
        read(text)
        return
    with pytest.raises(InvalidConfiguration) as caught:
        read(text)
    assert why in caught.value.message
    assert "kubernetes:port?namespace=...&selector=..." in caught.value.message


async def test_fixed_addresses_are_told_to_asyncio_and_known_to_threads() -> None:
    servers = discovery_of(("a:1", "b:2"))
    assert servers.known() == {"a:1", "b:2"}
    addresses = servers.addresses()
    assert await anext(addresses) == {"a:1", "b:2"}
    await addresses.aclose()  # type: ignore[attr-defined]
    servers.close()


class Names:
    """A DNS server, and a clock."""

    def __init__(self) -> None:
        self.answer: list[str] | OSError = []
        self.now = 0.0

    def __call__(self, name: str, port: int) -> list[str]:
        assert (name, port) == ("servers", 7410)
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def source(self) -> DnsSource:
        return DnsSource(DnsName("servers", 7410), self, 0.005, 15.0, lambda: self.now)


def test_every_address_of_a_name_is_a_server_and_ipv6_is_bracketed() -> None:
    names = Names()
    names.answer = ["10.0.0.1", "fd00::7"]
    source = names.source()
    assert source.ask()
    assert source.known() == {"10.0.0.1:7410", "[fd00::7]:7410"}


def test_an_address_that_answers_lack_goes_after_the_grace_and_not_before() -> None:
    names = Names()
    source = names.source()
    names.answer = ["a", "b"]
    source.ask()
    names.answer, names.now = ["b"], 15.0
    source.ask()
    assert source.known() == {"a:7410", "b:7410"}
    names.now = 15.1
    source.ask()
    assert source.known() == {"b:7410"}


def test_a_name_that_cannot_be_resolved_keeps_the_last_known_servers_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    names = Names()
    source = names.source()
    names.answer = ["a"]
    source.ask()
    names.answer, names.now = OSError("no such name"), 1000.0
    for _ in range(3):
        assert not source.ask()
    assert source.known() == {"a:7410"}
    assert [record.message for record in caplog.records] == ["the name can't be resolved; the last known servers stay"]
    names.answer = ["b"]
    source.ask()
    assert caplog.records[-1].message == "the name is resolved again"
    assert source.known() == {"b:7410"}


async def test_a_name_is_asked_for_again_and_its_changes_reach_both_worlds() -> None:
    names = Names()
    names.answer = ["a"]
    servers = FollowedServers(["fixed:1"], [names.source()], "dns:servers:7410")
    seen: list[frozenset[str]] = []

    async def follow() -> None:
        async for addresses in servers.addresses():
            seen.append(addresses)  # noqa: PERF401 - it never ends

    task = asyncio.create_task(follow())
    try:
        await asyncio.to_thread(until, lambda: bool(seen) and seen[-1] == {"fixed:1", "a:7410"})
        names.answer, names.now = ["b"], 100.0
        await asyncio.to_thread(until, lambda: seen[-1] == {"fixed:1", "b:7410"})
        assert servers.known() == {"fixed:1", "b:7410"}
    finally:
        task.cancel()
        servers.close()


class Refusing:
    """A source that refuses, and may tell later."""

    def __init__(self) -> None:
        self.telling: Telling | None = None

    def follow(self, telling: Telling, closed: object) -> None:
        telling.refused(InvalidConfiguration("no rights"))
        self.telling = telling

    def interrupt(self) -> None: ...


async def test_a_refusal_at_the_start_is_raised_to_both_worlds_and_later_it_is_not() -> None:
    source = Refusing()
    servers = FollowedServers((), [source], "refusing")
    with pytest.raises(InvalidConfiguration, match="no rights"):
        servers.wait(PATIENCE_SECONDS)
    with pytest.raises(InvalidConfiguration, match="no rights"):
        servers.known()
    with pytest.raises(InvalidConfiguration, match="no rights"):
        await anext(servers.addresses())
    await asyncio.to_thread(until, lambda: source.telling is not None)
    assert source.telling is not None
    source.telling.found(["a:1"])
    source.telling.refused(InvalidConfiguration("no rights any more"))
    assert servers.known() == {"a:1"}
    servers.close()

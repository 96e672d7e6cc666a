"""A client's target with several addresses, of which some are no proxy's: who answers is asked, and who never will is
told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from keyhole import AsyncClient
from keyhole.client.wire.each_address import _addresses, misplaced
from keyhole.client.wire.links import Links
from keyhole.errors import KeyholeError, ServerLost
from tests.support.proxies import fake_servers
from tests.support.waiting import LONG_SECONDS, eventually

REFUSED = ServerLost("can't be reached")
REFUSED.facts = {"details": "failed to connect to all addresses; last error: ipv4:127.0.0.1:1: Connection refused"}


@asynccontextmanager
async def http_port() -> AsyncIterator[str]:
    """Whatever is said there, it is no request of HTTP's."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def test_the_address_that_answers_is_asked_whatever_the_others_are(nobody: str) -> None:
    async with fake_servers("server-a") as (server,), http_port() as http:
        for addresses in ((nobody, server.address), (http, server.address), (server.address, http)):
            async with AsyncClient(f"ipv4:{','.join(addresses)}", timeout=LONG_SECONDS) as client:
                assert await client.list_states() == []


async def test_a_port_for_http_is_told_of_at_once_where_the_other_address_is_refused(nobody: str) -> None:
    """gRPC tells of the last address alone, which may be refused for a moment: it was waited for until the deadline."""
    async with http_port() as http:
        target = f"ipv4:{http},{nobody}"
        async with AsyncClient(target, timeout=10 * LONG_SECONDS) as client, asyncio.timeout(LONG_SECONDS):
            for ask in (client.list_states(), client.get("app", "counts", "a")):
                with pytest.raises(ServerLost, match=r"speaks HTTP and not gRPC.*the proxy's gRPC port"):
                    await ask


async def told(target: str, *, answered: bool = False) -> tuple[KeyholeError | None, KeyholeError | None]:
    """What a client of the target makes of a refusal at its last address, and what it tells then."""
    links = Links((target,), (None,))
    link = links.next()
    assert link is not None
    if answered:
        link.heard()
    link.lost(REFUSED)
    if link._looking is not None:
        await link._looking
    why = links.cause, links.given_up(REFUSED)
    await links.close(ServerLost("closed"))
    return why


async def test_what_is_behind_an_address_is_looked_for_until_a_proxy_has_answered(nobody: str) -> None:
    async with http_port() as http:
        target = f"ipv4:{http},{nobody}"
        for why in await told(target):
            assert why is not None
            assert f"server {target} at ipv4:{http} speaks HTTP and not gRPC" in why.message
        # It is away for a moment: it was there.
        assert await told(target, answered=True) == (REFUSED, None)


async def test_it_is_waited_for_where_all_are_refused_or_one_answers_by_now(nobody: str) -> None:
    async with fake_servers("server-a") as (server,), http_port() as http:
        for target in (f"ipv4:{nobody},127.0.0.1:1", f"ipv4:{http},{server.address}"):
            assert await told(target) == (REFUSED, None)
        # Of one alone gRPC says all that there is to say.
        assert await misplaced(http, None) is None


async def test_the_addresses_of_a_name_are_those_that_grpc_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(self: object, host: str, port: int, **_: object) -> list[object]:
        return [(2, 1, 6, "", (address, port)) for address in ("192.0.2.1", "2001:db8::1", "192.0.2.1")]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolved)
    two = ["ipv4:192.0.2.1:7400", "ipv6:[2001:db8::1]:7400"]
    assert await _addresses("proxies:7400") == ("proxies:7400", two)
    assert await _addresses("localhost:7400") == ("localhost:7400", ["ipv4:127.0.0.1:7400", "ipv6:[::1]:7400", *two])
    assert await _addresses("dns:///proxies:7400") == ("proxies:7400", two)
    assert await _addresses("unix:/run/proxy") == ("unix:/run/proxy", [])


async def test_a_client_that_is_closed_looks_at_nothing_more(nobody: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        links = Links((f"ipv4:127.0.0.1:{silent.getsockname()[1]},{nobody}",), (None,))
        link = links.next()
        assert link is not None
        link.lost(REFUSED)
        looking = link._looking
        assert looking is not None
        await eventually(lambda: not looking.done(), LONG_SECONDS)
        await links.close(ServerLost("closed"))
        assert looking.cancelled()

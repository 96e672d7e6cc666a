"""A client's target with several addresses, of which some are no proxy's: who answers is asked, and who never will is
told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from keyhole import AsyncClient
from keyhole.client.wire import each_address
from keyhole.client.wire import link as client_link
from keyhole.client.wire.each_address import addresses_of, misplaced
from keyhole.client.wire.link import Link
from keyhole.client.wire.links import Links
from keyhole.client.wire.lookup_stream import _Opened
from keyhole.errors import Draining, KeyholeError, PermissionDenied, ServerLost, Unsupported
from keyhole.rpc import channels, status
from tests.support.proxies import fake_servers
from tests.support.waiting import LONG_SECONDS

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


async def refusals(target: str, *, answered: bool = False) -> tuple[KeyholeError | None, KeyholeError | None]:
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
        for why in await refusals(target):
            assert why is not None
            assert f"server {target} at ipv4:{http} speaks HTTP and not gRPC" in why.message
        # It is away for a moment: it was there.
        assert await refusals(target, answered=True) == (REFUSED, None)


def call_that_ended(error: KeyholeError) -> grpc.aio.AioRpcError:
    """A peer has sent it."""
    sent = grpc.aio.Metadata((status.METADATA_KEY, status.to_proto(error).SerializeToString()))
    return grpc.aio.AioRpcError(status.code(error), grpc.aio.Metadata(), sent, error.message)


async def looked(link: Link, error: KeyholeError = REFUSED) -> None:
    """It is lost once more, and looks at its addresses."""
    link.until = 0.0
    link.lost(error)
    assert link._looking is not None
    await link._looking


async def test_a_proxy_that_refuses_or_goes_is_one_and_is_waited_for_as_one(nobody: str) -> None:
    """It was told to be a port for HTTP, where that was behind the other address before it began."""
    async with http_port() as http:
        for first, waits in ((PermissionDenied("you may not"), None), (Draining("it ends"), "it ends")):
            links = Links((f"ipv4:{http},{nobody}",), (None,))
            (link,) = links._links
            await looked(link)
            assert links.given_up(REFUSED) is not None
            link.until = 0.0
            link.failed(call_that_ended(first))
            assert (links.cause.message if links.cause else None) == waits
            link.until = 0.0
            link.lost(REFUSED)
            assert link._looking is None
            assert links.given_up(REFUSED) is None
            await links.close(ServerLost("closed"))


async def test_a_stream_that_a_proxy_ends_with_an_error_says_that_there_is_one(nobody: str) -> None:
    """Of a stream that nobody has answered, and of no other call."""

    class Ended:
        async def read(self) -> None:
            raise call_that_ended(PermissionDenied("you may not"))

    links = Links((f"ipv4:127.0.0.1:1,{nobody}",), (None,))
    (link,) = links._links
    link._misplaced = link.cause = ServerLost("speaks HTTP")
    await link.stream._read(_Opened(Ended()))
    assert (link._has_answered, link._misplaced, link.cause) == (True, None, None)
    await links.close(ServerLost("closed"))


async def test_what_is_behind_its_addresses_is_looked_at_again_as_that_changes(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look was made: what it found was told for ever, and where it found nothing, nothing was told."""
    monkeypatch.setattr(client_link, "_LOOK_SECONDS", 0.0)
    http = ServerLost("it speaks HTTP")
    http.facts = {"details": "http1.x server"}
    found: list[KeyholeError | None] = [None, http, None, None]

    async def finds(*_: object) -> KeyholeError | None:
        return found.pop(0)

    monkeypatch.setattr(client_link, "misplaced", finds)
    links = Links((f"ipv4:127.0.0.1:1,{nobody}",), (None,))
    (link,) = links._links
    for said in (REFUSED, http, REFUSED):
        await looked(link)
        assert links.cause is said
        assert (links.given_up(REFUSED) is None) == (said is REFUSED)
    monkeypatch.setattr(client_link, "_LOOK_SECONDS", 1e6)
    await looked(link)
    link.until = 0.0
    link.lost(REFUSED)
    assert link._looking is None
    await links.close(ServerLost("closed"))


async def test_it_is_waited_for_where_all_are_refused_or_one_answers_by_now(nobody: str) -> None:
    async with fake_servers("server-a") as (server,), http_port() as http:
        for target in (f"ipv4:{nobody},127.0.0.1:1", f"ipv4:{http},{server.address}"):
            assert await refusals(target) == (REFUSED, None)
        # Of one alone gRPC says all that there is to say.
        assert await misplaced(http, None) is None


async def test_the_addresses_of_a_name_are_those_that_grpc_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(self: object, host: str, port: int, **_: object) -> list[object]:
        return [(2, 1, 6, "", (address, port)) for address in ("192.0.2.1", "2001:db8::1", "192.0.2.1")]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolved)
    two = ["ipv4:192.0.2.1:7400", "ipv6:[2001:db8::1]:7400"]
    assert await addresses_of("proxies:7400") == ("proxies:7400", two)
    for target in ("dns:///proxies:7400", "dns:proxies:7400"):
        assert await addresses_of(target) == ("proxies:7400", two)
    # A token without TLS may go there alone, whatever the name is resolved to.
    assert await addresses_of("localhost:7400") == ("localhost:7400", ["ipv4:127.0.0.1:7400", "ipv6:[::1]:7400"])


@pytest.mark.parametrize(
    "target",
    ["unix:/run/proxy", "unix:/run/proxy:7400", "unix-abstract:proxy:7400", "xds:///a:7400", "dns://192.0.2.1/a:7400"],
)
async def test_what_is_no_name_of_a_host_is_not_looked_up_as_one(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", lambda *_, **__: pytest.fail("it was looked up"))
    assert (await addresses_of(target))[1] == []


async def test_a_name_that_is_resolved_for_too_long_has_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", never)
    monkeypatch.setattr(each_address, "_SECONDS", 0.01)
    async with asyncio.timeout(LONG_SECONDS):
        assert await addresses_of("proxies:7400") == ("proxies:7400", [])


async def test_a_name_of_many_addresses_is_not_judged_by_the_first_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    http = ServerLost("it speaks HTTP")
    http.facts = {"details": "http1.x server"}

    async def said(*_: object) -> KeyholeError:
        return http

    monkeypatch.setattr(each_address, "_said", said)
    each = [f"127.0.0.1:{port}" for port in range(1, 18)]
    assert await misplaced(f"ipv4:{','.join(each[:16])}", None) is http
    assert await misplaced(f"ipv4:{','.join(each)}", None) is None


async def test_where_one_address_can_not_be_asked_at_all_the_others_are_asked_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    class Silent:
        def unary_unary(self, *_: object, **__: object) -> object:
            async def never(*_: object, **__: object) -> None:
                await asyncio.Event().wait()

            return never

        def __getattr__(self, name: str) -> object:
            return lambda *_, **__: None

        async def close(self) -> None:
            ended.append("closed")

    def channel(address: str, *_: object) -> Silent:
        if address.endswith(":2"):
            raise Unsupported("this process was forked")
        return Silent()

    monkeypatch.setattr(channels, "aio_channel_to", channel)
    with pytest.raises(ExceptionGroup) as failed:
        await misplaced("ipv4:127.0.0.1:1,127.0.0.1:2", None)
    assert failed.group_contains(Unsupported)
    assert ended == ["closed"]


async def test_a_client_that_is_closed_looks_at_nothing_more(nobody: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        links = Links((f"ipv4:127.0.0.1:{silent.getsockname()[1]},{nobody}",), (None,))
        link = links.next()
        assert link is not None
        link.lost(REFUSED)
        looking = link._looking
        assert looking is not None
        await links.close(ServerLost("closed"))
        assert looking.cancelled()
        # What was under way is told of, too, as it is closed.
        link._looking, link.until, link._look_from = None, 0.0, 0.0
        link.lost(REFUSED)
        assert link._looking is None

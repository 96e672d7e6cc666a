"""Reads that come before a job has begun may be tried again: each kind of call, over gRPC and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from keyhole import AsyncClient
from keyhole.errors import DeadlineExceeded, KeyholeError, NoServer, UnknownApplication
from keyhole.local.ports import free_ports
from keyhole.testing.fake_server import FakeServer
from services.client_proxy.app import ClientProxy
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.refusals import longer_and_longer
from tests.support.waiting import LONG_SECONDS

KEY = "sensor-3"
# They go on trying for so long.
SHORT_SECONDS = 0.5
HTTP_READS = ("", f"/{KEY}", ":scan", ":aggregate?of=count", f":watch?key={KEY}", ":batchGet")


def reads_of(client: AsyncClient, application: str, seconds: float) -> dict[str, Callable[[], Awaitable[object]]]:
    async def watched() -> object:
        async with client.watch(application, STATE, KEY, timeout=seconds) as watch:
            return await anext(aiter(watch))

    async def scanned() -> object:
        return [entry async for entry in client.scan_all(application, STATE, timeout=seconds)]

    return {
        "get": lambda: client.get(application, STATE, KEY, timeout=seconds),
        "get_many": lambda: client.get_many(application, STATE, [KEY], timeout=seconds),
        "describe": lambda: client.describe_state(application, STATE, timeout=seconds),
        "scan": scanned,
        "watch": watched,
    }


async def errors_of(client: AsyncClient, application: str) -> dict[str, type[KeyholeError] | None]:
    """By the call: None where it answers."""

    async def error_of(name: str) -> type[KeyholeError] | None:
        for seconds in longer_and_longer(SHORT_SECONDS):
            try:
                await reads_of(client, application, seconds)[name]()
            except DeadlineExceeded:  # the machine is so slow that nobody has said why by then
                continue
            except KeyholeError as error:
                return type(error)
            return None
        return DeadlineExceeded

    names = list(reads_of(client, application, SHORT_SECONDS))
    return dict(zip(names, await asyncio.gather(*map(error_of, names)), strict=True))


async def refusals(
    http: aiohttp.ClientSession, proxy: ClientProxy, application: str, state: str = STATE
) -> set[tuple[Any, ...]]:
    """Status, reason and Retry-After of all kinds of reads over HTTP."""

    async def refusal(read: str) -> tuple[Any, ...]:
        method = "POST" if read == ":batchGet" else "GET"
        url = f"http://{proxy.http_address}/v1/{application}/{state}{read}"
        body = {"json": {"keys": [KEY]}} if method == "POST" else {}
        async with http.request(method, url, **body) as response:
            problem = await response.json(content_type=None) if response.status != 200 else {"reason": read}
            return response.status, problem["reason"], response.headers.get("Retry-After")

    return set(await asyncio.gather(*map(refusal, HTTP_READS)))


async def seen(
    http: aiohttp.ClientSession, proxy: ClientProxy, application: str, statuses: set[int], state: str = STATE
) -> None:
    """Returns once all kinds of reads over HTTP have one of these."""
    async with asyncio.timeout(LONG_SECONDS):
        while {status for status, _, _ in await refusals(http, proxy, application, state)} != statuses:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_application_that_is_to_be_there_is_unavailable_and_never_unknown_until_it_is() -> None:
    early, unknown = {(503, "NO_SERVER", "1")}, {(404, "UNKNOWN_APPLICATION", None)}
    options: dict[str, Any] = {"http": "127.0.0.1:0", "applications": (APPLICATION,)}
    async with aiohttp.ClientSession() as http:
        with unused_address() as nobody:
            async with proxy_of(nobody, **options) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
                # No server was reached: nobody knows which applications there are.
                for application in (APPLICATION, "another"):
                    assert await refusals(http, proxy, application) == early
                    assert set((await errors_of(client, application)).values()) == {NoServer}
                async with http.get(f"http://{proxy.http_address}/readyz") as response:
                    assert response.status == 503
        async with (
            fake_servers("a") as (server,),
            proxy_of(server.address, **options) as proxy,
            AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
        ):
            # One was reached, and no job has given it a state yet.
            assert await refusals(http, proxy, APPLICATION) == early
            assert set((await errors_of(client, APPLICATION)).values()) == {NoServer}
            assert await refusals(http, proxy, "another") == unknown
            assert set((await errors_of(client, "another")).values()) == {UnknownApplication}
            server.host(descriptor(), rows(10))
            async with asyncio.timeout(LONG_SECONDS):
                while (seen := await refusals(http, proxy, APPLICATION)) & early:
                    assert not seen & unknown
            assert {status for status, _, _ in seen} == {200}


async def test_a_state_of_a_server_that_was_not_reached_yet_is_unavailable_and_not_unknown() -> None:
    early, unknown = {(503, "NO_SERVER", "1")}, {(404, "UNKNOWN_STATE", None)}
    (port,) = free_ports(1)
    options: dict[str, Any] = {"http": "127.0.0.1:0", "applications": (APPLICATION,)}
    async with aiohttp.ClientSession() as http, fake_servers("a") as (server,):
        server.host(descriptor(), rows(10))
        server.host(msgspec.structs.replace(descriptor(topic_id="topic-2"), application="another"), rows(10))
        async with proxy_of(server.address, f"127.0.0.1:{port}", **options) as proxy:
            await seen(http, proxy, APPLICATION, {200})
            await seen(http, proxy, "another", {200})
            assert await refusals(http, proxy, APPLICATION, "late") == early
            assert await refusals(http, proxy, "another", "late") == unknown, "it is not one that is to be there"
            late = FakeServer("b", port)
            late.host(descriptor("late", topic_id="topic-3"), rows(10))
            await late.start()
            try:
                await seen(http, proxy, APPLICATION, {200}, "late")
                assert await refusals(http, proxy, APPLICATION, "never") == unknown
            finally:
                await late.stop()
            # It was reached once, and what it has is known.
            assert await refusals(http, proxy, APPLICATION, "never") == unknown


async def test_a_state_of_an_application_that_has_only_begun_is_unavailable_and_not_unknown() -> None:
    async with (
        aiohttp.ClientSession() as http,
        fake_servers("a") as (server,),
        proxy_of(server.address, http="127.0.0.1:0", applications=(APPLICATION,)) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        await seen(http, proxy, APPLICATION, {503})
        server.host(descriptor(), rows(10))
        await seen(http, proxy, APPLICATION, {200})
        # Its second query has not begun.
        assert await refusals(http, proxy, APPLICATION, "late") == {(503, "NO_SERVER", "1")}
        reading = client.get(APPLICATION, "late", KEY)
        server.host(descriptor("late", topic_id="topic-2"), rows(10))
        assert (await reading).found, "it was tried again until it was there"

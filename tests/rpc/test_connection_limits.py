"""Connections that are too many, that don't get anywhere, or that nobody uses, at ports of gRPC and of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from aiohttp import web

from keyhole.config import StateServerConfig
from keyhole.rpc import server as rpc_server
from keyhole.rpc.http.port import HttpLimits, HttpPort
from keyhole.rpc.server import RpcServer
from keyhole.security.guard import PortGuard
from tests.fuzz import attacks
from tests.support.certificates import Authority
from tests.support.rpc_servers import Listing, answers, bare_server
from tests.support.waiting import PATIENCE_SECONDS

_HELLO = attacks.PREFACE + attacks.frame(4, 0, 0, b"")


@pytest.fixture
def security(tmp_path: Path) -> StateServerConfig:
    files = Authority(tmp_path).issue("server", "localhost", "127.0.0.1")
    return StateServerConfig(
        bootstrap_servers="memory", id="a", tls="on", tls_certificate=files.certificate, tls_key=files.key
    )


@asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, security: StateServerConfig | None = None, **options: int
) -> AsyncIterator[RpcServer]:
    """A server with other limits."""
    given = {f"grpc.{name}": number for name, number in options.items()}
    assert given.keys() <= dict(rpc_server._SERVER).keys(), "a limit that servers don't have"
    monkeypatch.setattr(rpc_server, "_SERVER", tuple({**dict(rpc_server._SERVER), **given}.items()))
    async with bare_server(Listing(), security) as server:
        yield server


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ends(reader: asyncio.StreamReader) -> bool:
    """The other side closes it, within a time that is long for the limits of these tests."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.read()
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


async def answers_in_time(server: RpcServer) -> None:
    """It does to a new caller, whom the machine may keep from beginning in the little time that these tests give."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(grpc.RpcError):
                assert await answers(server)
                return


async def test_a_port_takes_so_many_connections_and_more_once_some_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch, max_allowed_incoming_connections=2) as server:
        async with connection(server.address) as (reader, one), connection(server.address) as (other, two):
            for writer, its in ((one, reader), (two, other)):
                writer.write(_HELLO)
                await its.readexactly(9)  # the server's settings: it has taken the connection
            async with connection(server.address) as (beyond, writer):
                writer.write(_HELLO)
                assert await ends(beyond)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:  # until the server has seen that they ended
                async with connection(server.address) as (reader, writer):
                    writer.write(_HELLO)
                    try:
                        await reader.readexactly(9)
                        break
                    except (asyncio.IncompleteReadError, ConnectionError):
                        await asyncio.sleep(0.02)


@pytest.mark.parametrize("data", [b"", attacks.PREFACE[:10]])
async def test_who_begins_no_conversation_in_time_is_let_go(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    async with serving(monkeypatch, server_handshake_timeout_ms=300) as server:
        async with connection(server.address) as (reader, writer):
            writer.write(data)
            assert await ends(reader)
        await answers_in_time(server)


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00"])
async def test_who_goes_on_with_no_tls_handshake_in_time_is_let_go(
    monkeypatch: pytest.MonkeyPatch, security: StateServerConfig, data: bytes
) -> None:
    async with (
        serving(monkeypatch, security, server_handshake_timeout_ms=300) as server,
        connection(server.address) as (reader, writer),
    ):
        writer.write(data)
        assert await ends(reader)


async def test_a_connection_without_calls_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        serving(monkeypatch, max_connection_idle_ms=300) as server,
        connection(server.address) as (reader, writer),
    ):
        writer.write(_HELLO + attacks.frame(4, 1, 0, b""))
        await reader.readexactly(9)
        assert await ends(reader)


async def test_a_peer_that_answers_no_pings_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        serving(monkeypatch, **{"keepalive_time_ms": 1_000, "http2.ping_timeout_ms": 300}) as server,
        connection(server.address) as (reader, writer),
    ):
        writer.write(_HELLO + attacks.frame(4, 1, 0, b""))
        assert await ends(reader)


async def _http(limits: HttpLimits, guard: PortGuard | None) -> HttpPort:
    async def healthy(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    port = HttpPort("the test", "127.0.0.1:0", app, limits, guard)
    await port.start()
    return port


async def test_who_goes_on_with_no_tls_handshake_at_an_http_port_is_let_go(security: StateServerConfig) -> None:
    port = await _http(HttpLimits(header_seconds=0.3), PortGuard("test", "127.0.0.1", security))
    try:
        for data in (b"", b"\x16\x03\x01\x02\x00"):
            async with connection(port.address) as (reader, writer):
                writer.write(data)
                assert await ends(reader)
    finally:
        await port.stop()


async def test_an_http_connection_that_waits_too_long_for_its_next_request_is_ended() -> None:
    port = await _http(HttpLimits(idle_seconds=0.3), None)
    try:
        async with connection(port.address) as (reader, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert await ends(reader)
    finally:
        await port.stop()

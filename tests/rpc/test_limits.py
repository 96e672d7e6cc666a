"""What one caller can't do to a server: end it, fill it, or hold on to it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest

from keyhole.errors import Unsupported
from keyhole.metrics.page import MetricsPage
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.frames import MAX_MESSAGE_BYTES
from keyhole.rpc.interceptors import ErrorInterceptor
from keyhole.rpc.status import from_rpc_error
from keyhole.security.credentials import PLAIN
from keyhole.v1 import query_pb2, query_pb2_grpc
from tests.fuzz import attacks
from tests.fuzz.http_attacks import HTTP_ATTACKS
from tests.support.rpc_servers import Listing, answers, bare_server
from tests.support.waiting import LONG_SECONDS, eventually

_ANSWER_BYTES = 50_000

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc tells what is allocated"
)


class _Servicer(Listing):
    scans = 0

    async def Scan(self, request: Any, context: Any) -> AsyncIterator[query_pb2.ScanResponse]:  # noqa: N802
        self.scans += 1
        try:
            while True:
                yield query_pb2.ScanResponse(values=[bytes(100_000)])
        finally:
            self.scans -= 1


class _Allocated(ctypes.Structure):
    # What each is called is in mallinfo(3).
    _fields_ = tuple((f"field_{number}", ctypes.c_size_t) for number in range(10))


def _allocated_bytes() -> int:
    """By this process, outside of Python's own allocator; what is free is not counted."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Allocated
    usage = library.mallinfo2()
    in_heaps, in_maps = usage.field_7, usage.field_4
    return int(in_heaps + in_maps)


async def test_a_path_that_is_no_text_does_not_end_the_server() -> None:
    async with bare_server(_Servicer()) as server:
        for path in (b"/keyhole.v1.Query/ListStat\xf3", b"\xff\xfe", b"/" + bytes(range(128, 228))):
            headers = attacks.headers("PATH").replace(bytes([4]) + b"PATH", bytes([len(path)]) + path)
            frames = [attacks.PREFACE, attacks.frame(4, 0, 0, b""), attacks.frame(1, 5, 1, headers)]
            await attacks.send(server.address, frames)
            assert await answers(server)
        async with aio_channel(server.address) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/keyhole.v1.Query/Rewind")(b"", timeout=LONG_SECONDS)
                assert isinstance(from_rpc_error(caught.value), Unsupported)


@pytest.mark.parametrize("attack", attacks.ATTACKS[:-1], ids=lambda attack: attack.__name__)
async def test_a_server_answers_after_each_kind_of_attack(attack: attacks.Attack) -> None:
    async with bare_server(_Servicer()) as server:
        for seed in range(3):
            await attack(random.Random(seed), server.address, PLAIN)
            assert await answers(server)


@needs_glibc
async def test_answers_to_callers_who_have_gone_are_given_back() -> None:
    class Servicer(_Servicer):
        async def Scan(self, request: Any, context: Any) -> AsyncIterator[query_pb2.ScanResponse]:  # noqa: N802
            context.set_details("x" * _ANSWER_BYTES)
            yield query_pb2.ScanResponse()
            # A call that is broken off before this is never gone on with here.
            waits.set()
            # Ends well, though the caller has gone: the status can't be sent.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            ended.set()

    async def break_off(times: int) -> None:
        for _ in range(times):
            waits.clear()
            ended.clear()
            call = stub.Scan(query_pb2.ScanRequest())
            await call.read()
            await waits.wait()
            call.cancel()
            await ended.wait()

    waits, ended = asyncio.Event(), asyncio.Event()
    async with bare_server(Servicer()) as server, aio_channel(server.address) as channel:
        stub: Any = query_pb2_grpc.QueryStub(channel)
        await break_off(20)
        before = _allocated_bytes()
        await break_off(200)
        assert _allocated_bytes() - before < 20 * _ANSWER_BYTES


@pytest.fixture
async def page() -> AsyncIterator[MetricsPage]:
    async def body() -> bytes:
        return b"figures"

    page = MetricsPage("127.0.0.1:0", body)
    await page.start()
    yield page
    await page.stop()


@needs_glibc
@pytest.mark.parametrize(
    "beginning", [b"GET /metrics HTTP/1.1\r\n" + 5_000 * b"x: y\r\n", b"GET /" + bytes(50_000), b"\0"]
)
async def test_what_is_no_request_is_not_kept_until_the_collector_looks(page: MetricsPage, beginning: bytes) -> None:
    await attacks.send(page.address, [beginning, bytes(1 << 20)])
    gc.disable()
    try:
        before = _allocated_bytes()
        for _ in range(20):
            await attacks.send(page.address, [beginning, bytes(1 << 20)])
        assert _allocated_bytes() - before < 10 << 20
    finally:
        gc.enable()
    async with aiohttp.ClientSession() as session, session.get(f"http://{page.address}/metrics") as response:
        assert await response.text() == "figures"


async def test_what_is_no_request_leaves_no_line_in_the_log(
    page: MetricsPage, caplog: pytest.LogCaptureFixture
) -> None:
    for data in (b"\0", b"GET / HTTP/9\r\n\r\n", b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n"):
        await attacks.send(page.address, [data])
    assert not [record for record in caplog.records if record.levelname != "DEBUG" and "aiohttp" in record.name]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("attack", HTTP_ATTACKS, ids=lambda attack: attack.__name__)
async def test_a_page_answers_after_each_kind_of_attack(page: MetricsPage, attack: attacks.Attack) -> None:
    for seed in range(3):
        await attack(random.Random(seed), page.address, PLAIN)
        async with aiohttp.ClientSession() as session, session.get(f"http://{page.address}/metrics") as response:
            assert await response.text() == "figures"


async def test_headers_beyond_the_limit_are_refused_and_the_server_goes_on() -> None:
    async with bare_server(_Servicer()) as server:
        async with aio_channel(server.address) as channel:
            metadata = (("x-large", "v" * 64_000),)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/keyhole.v1.Query/ListStates")(b"", metadata=metadata, timeout=LONG_SECONDS)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await answers(server)


async def test_a_message_beyond_the_limit_is_refused_and_the_server_goes_on() -> None:
    async with bare_server(_Servicer()) as server:
        async with grpc.aio.insecure_channel(
            server.address, options=(("grpc.max_send_message_length", -1),)
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/keyhole.v1.Query/ListStates")(
                    bytes(MAX_MESSAGE_BYTES + 1), timeout=LONG_SECONDS
                )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await answers(server)


async def test_a_reader_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ErrorInterceptor.__init__, "__defaults__", (0.5,))
    servicer = _Servicer()
    async with bare_server(servicer) as server, aio_channel(server.address) as channel:
        stub: Any = query_pb2_grpc.QueryStub(channel)
        call = stub.Scan(query_pb2.ScanRequest())
        await call.read()
        await eventually(lambda: servicer.scans == 0)
        call.cancel()
        assert await answers(server)

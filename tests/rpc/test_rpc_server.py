"""The server that every deployable starts: its errors, its health, its port."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keyhole import errors
from keyhole.local.ports import free_ports
from keyhole.metrics.page import MetricsPage
from keyhole.rpc import health_check
from keyhole.rpc.channels import aio_channel, aio_link, sync_channel
from keyhole.rpc.liveness import LIVENESS
from keyhole.rpc.server import RpcServer
from keyhole.rpc.status import from_rpc_error
from keyhole.testing.network import Network
from keyhole.v1 import query_pb2, query_pb2_grpc
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually


class _Servicer(query_pb2_grpc.QueryServicer):
    """Raises whatever it is given, from a unary and from a streaming method."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def Get(self, request: query_pb2.GetRequest, context: Any) -> query_pb2.GetResponse:  # noqa: N802
        raise self._error

    async def Lookup(  # noqa: N802
        self, request_iterator: AsyncIterator[query_pb2.LookupRequest], context: Any
    ) -> AsyncIterator[query_pb2.LookupResponse]:
        async for request in request_iterator:
            if request.frame == 0:
                raise self._error
            yield query_pb2.LookupResponse(frame=request.frame)


async def _serve(error: Exception) -> RpcServer:
    server = RpcServer("test", "127.0.0.1", 0)
    server.add(query_pb2_grpc.add_QueryServicer_to_server, _Servicer(error), "keyhole.v1.Query")
    await server.start()
    return server


@pytest.mark.parametrize("kind", errors.by_reason().values(), ids=lambda kind: kind.__name__)
async def test_every_error_arrives_as_the_class_that_was_raised(kind: type[errors.KeyholeError]) -> None:
    server = await _serve(kind("what is wrong; what to do", states="a, b"))
    async with aio_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest())
    await server.stop(0)
    back = from_rpc_error(caught.value)
    assert type(back) is kind
    assert (back.message, back.facts) == ("what is wrong; what to do", {"states": "a, b"})
    assert caught.value.code() is grpc.StatusCode[kind.code]
    assert caught.value.details() == "what is wrong; what to do"


@pytest.mark.parametrize("letter", ["a", "é", "漢", "🎈"])
async def test_a_long_message_in_any_letters_keeps_its_class_and_its_code(letter: str) -> None:
    server = await _serve(errors.UnknownState(letter * 5000, facts=letter * 500))
    async with aio_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest())
    await server.stop(0)
    back = from_rpc_error(caught.value)
    assert type(back) is errors.UnknownState
    assert back.message.startswith(letter * 500)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_error_in_the_middle_of_a_stream_arrives_after_the_responses_before_it() -> None:
    server = await _serve(errors.Fenced("a newer run has taken over"))
    async with aio_channel(server.address) as channel:
        call = query_pb2_grpc.QueryStub(channel).Lookup()
        await call.write(query_pb2.LookupRequest(frame=1))
        first = await call.read()
        assert isinstance(first, query_pb2.LookupResponse)
        assert first.frame == 1
        await call.write(query_pb2.LookupRequest(frame=0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    await server.stop(0)
    assert isinstance(from_rpc_error(caught.value), errors.Fenced)


async def test_a_stream_that_is_cancelled_ends_what_it_holds_on_to_whether_it_is_read_or_not() -> None:
    class Endless(query_pb2_grpc.QueryServicer):
        open = 0

        async def Scan(  # noqa: N802
            self, request: query_pb2.ScanRequest, context: Any
        ) -> AsyncIterator[query_pb2.ScanResponse]:
            self.open += 1
            try:
                while True:
                    yield query_pb2.ScanResponse(values=[bytes(10_000)])
            finally:
                self.open -= 1

    servicer = Endless()
    server = RpcServer("test", "127.0.0.1", 0)
    server.add(query_pb2_grpc.add_QueryServicer_to_server, servicer, "keyhole.v1.Query")
    await server.start()
    gc.disable()
    try:
        async with aio_channel(server.address) as channel:
            # Where nobody reads, the server waits to be let write.
            for seconds in (0.0, 0.2):
                call: Any = query_pb2_grpc.QueryStub(channel).Scan(query_pb2.ScanRequest())
                await call.read()
                await asyncio.sleep(seconds)
                assert servicer.open == 1
                call.cancel()
                await eventually(lambda: servicer.open == 0)
    finally:
        gc.enable()
    await server.stop(0)


async def test_a_bug_is_answered_as_internal_and_logged_but_its_text_is_not_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = await _serve(ValueError("a secret"))
    async with aio_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest())
    await server.stop(0)
    back = from_rpc_error(caught.value)
    assert isinstance(back, errors.InternalError)
    assert "a secret" not in str(back)
    assert any(record.exc_info and "a secret" in str(record.exc_info[1]) for record in caplog.records)


async def test_a_call_that_reads_on_when_the_server_has_just_ended_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    server = await _serve(cygrpc._ServerStoppedError("Server already stopped."))
    async with aio_channel(server.address) as channel:
        call = query_pb2_grpc.QueryStub(channel).Lookup()
        await call.write(query_pb2.LookupRequest(frame=0))
        await eventually(lambda: "due to server stop" in caplog.text)
        await server.stop(0)
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("method", ["Get", "Lookup"])
async def test_bytes_that_are_no_message_are_refused_and_the_server_goes_on(method: str) -> None:
    server = await _serve(errors.NoServer("reached"))
    async with aio_channel(server.address) as channel:
        stream = channel.stream_stream("/keyhole.v1.Query/Lookup")
        calls = {
            "Get": lambda: channel.unary_unary("/keyhole.v1.Query/Get")(b"\xff\xff garbage"),
            "Lookup": lambda: stream(iter([b"\xff\xff garbage"])).read(),
        }
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls[method]()
        assert isinstance(from_rpc_error(caught.value), errors.MalformedRequest)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest())
        assert isinstance(from_rpc_error(caught.value), errors.NoServer)
    await server.stop(0)


async def test_random_bytes_on_the_port_do_not_harm_the_server() -> None:
    server = await _serve(errors.NoServer("reached"))
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(bytes(range(256)) * 64)
    async with aio_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest())
    assert isinstance(from_rpc_error(caught.value), errors.NoServer)
    await server.stop(0)


async def test_a_taken_port_is_refused_by_name_f32() -> None:
    """F32: the server's initialisation fails where its port is taken."""
    first = await _serve(errors.NoServer("reached"))
    second = RpcServer("test", "127.0.0.1", first.port)
    with pytest.raises(errors.PortTaken, match=f"127.0.0.1:{first.port}"):
        await second.start()
    await second.stop(0)
    await first.stop(0)


async def test_health_says_not_serving_until_it_is_told_and_again_while_draining() -> None:
    server = await _serve(errors.NoServer("reached"))
    async with aio_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        states = [(await stub.Check(health_pb2.HealthCheckRequest(service="keyhole.v1.Query"))).status]
        await server.set_serving(True)
        states += [
            (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in ("", "keyhole.v1.Query")
        ]
    await server.stop(0)
    assert states == [
        health_pb2.HealthCheckResponse.NOT_SERVING,
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.SERVING,
    ]


async def test_a_server_is_alive_before_it_serves_and_while_it_drains() -> None:
    """Or else Kubernetes would kill a server for being in the middle of a restore or of a drain."""
    began, let_go = asyncio.Event(), asyncio.Event()

    class Slow(query_pb2_grpc.QueryServicer):
        async def Get(self, request: query_pb2.GetRequest, context: Any) -> query_pb2.GetResponse:  # noqa: N802
            began.set()
            await let_go.wait()
            return query_pb2.GetResponse()

    server = RpcServer("test", "127.0.0.1", 0)
    server.add(query_pb2_grpc.add_QueryServicer_to_server, Slow(), "keyhole.v1.Query")
    await server.start()
    seen = []
    async with aio_channel(server.address) as channel:
        watched = {
            name: health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))
            for name in ("", LIVENESS)
        }
        seen += [(await watched[name].read()).status for name in ("", LIVENESS)]
        await server.set_serving(True)
        seen.append((await watched[""].read()).status)
        under_way = asyncio.ensure_future(query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest()))
        await began.wait()
        stopping = asyncio.ensure_future(server.stop(30))
        seen.append((await watched[""].read()).status)
        await server.set_serving(True)
        alive = asyncio.ensure_future(watched[LIVENESS].read())
        let_go.set()
        await under_way
        assert not alive.done()
        for watch in watched.values():
            watch.cancel()
        await asyncio.gather(alive, stopping, return_exceptions=True)
    up, down = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert seen == [down, up, up, down]


async def test_an_unreachable_server_is_server_lost_for_threads_and_for_asyncio_f16() -> None:
    """F16: a host that is not there fails with the reason, and names the address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        async with aio_channel(target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as from_loop:
                await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest(), timeout=PATIENCE_SECONDS)
        with sync_channel(target) as channel, pytest.raises(grpc.RpcError) as from_thread:
            query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest(), timeout=PATIENCE_SECONDS)
    for caught in (from_loop.value, from_thread.value):
        back = from_rpc_error(caught, target)
        assert isinstance(back, errors.ServerLost)
        assert target in back.message


async def test_a_server_that_takes_a_while_to_accept_a_connection_is_waited_for() -> None:
    """A busy machine, or a far one: the connection attempt must not be what ends a call that has time."""
    server, network = await _serve(errors.NoServer("reached")), Network()
    (port,) = free_ports(1)
    network.link("slow", port, server.port)
    network.slow("slow", 0.3)
    reached: list[grpc.RpcError] = []
    try:
        for connect in (aio_channel, aio_link):
            async with connect(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as from_loop:
                    await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest(), timeout=LONG_SECONDS)
            reached.append(from_loop.value)
        with sync_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as from_thread:
            await asyncio.to_thread(query_pb2_grpc.QueryStub(channel).Get, query_pb2.GetRequest(), timeout=LONG_SECONDS)
        reached.append(from_thread.value)
    finally:
        network.close()
        await server.stop(0)
    assert [from_rpc_error(error, "").message for error in reached] == ["reached"] * 3


async def test_a_method_that_the_server_does_not_know_is_unsupported() -> None:
    server = await _serve(errors.NoServer("reached"))
    async with aio_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/keyhole.v1.Query/Rewind")(b"")
    await server.stop(0)
    assert isinstance(from_rpc_error(caught.value), errors.Unsupported)


async def test_an_error_that_names_a_thousand_states_still_arrives() -> None:
    names = ", ".join(f"state-{number}" for number in range(1000))
    server = await _serve(errors.UnknownState(f"no such state; there are {names}", states=names))
    async with aio_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await query_pb2_grpc.QueryStub(channel).Get(query_pb2.GetRequest())
    await server.stop(0)
    assert isinstance(from_rpc_error(caught.value), errors.UnknownState)


async def test_the_health_command_tells_serving_from_living_and_from_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_check, "_SECONDS", PATIENCE_SECONDS)
    server = await _serve(errors.NotReady("x"))
    environ = {"KEYHOLE_CLIENT_PROXY_SERVERS": "s:1", "KEYHOLE_CLIENT_PROXY_PORT": str(server.port)}

    async def check(*arguments: str) -> int:
        return await asyncio.to_thread(health_check.main, list(arguments), environ)

    assert await check("client-proxy") == 1
    assert f"127.0.0.1:{server.port}: NOT_SERVING" in capsys.readouterr().err
    assert await check("client-proxy", "--alive") == 0
    await server.set_serving(True)
    assert await check("client-proxy") == 0
    assert await check(server.address) == 0
    await server.stop(0)
    monkeypatch.setattr(health_check, "_ALIVE_SECONDS", 1.0)  # all of which nobody takes
    assert await check("client-proxy", "--alive") == 1
    assert f"127.0.0.1:{server.port}: no answer" in capsys.readouterr().err
    assert await check() == 2


def test_the_health_command_asks_on_loopback_what_listens_on_all_addresses() -> None:
    environ = {"KEYHOLE_STATE_SERVER_BOOTSTRAP_SERVERS": "k:1", "KEYHOLE_STATE_SERVER_HOST": "0.0.0.0"}
    assert health_check.address_of("state-server", environ) == "127.0.0.1:7410"
    assert health_check.address_of("state-server", {**environ, "KEYHOLE_STATE_SERVER_HOST": "::"}) == "[::1]:7410"


def test_the_health_command_begins_without_what_a_server_needs() -> None:
    """It is a process each time, in every container where there is TLS."""
    needless = "{'jwt', 'cryptography', 'keyhole.rpc.server'}"
    asked = f"import sys, keyhole.rpc.health_check; print({needless} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("module", ["services.state_server.app", "services.client_proxy.app"])
def test_a_service_loads_an_http_server_and_what_reads_jwts_only_where_it_is_to_have_them(module: str) -> None:
    """They are half of a proxy's start, and a third of a state server's."""
    asked = f"import sys, {module}; print({{'jwt', 'aiohttp'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "set()"


async def test_the_health_command_asks_a_metrics_exporter_over_http(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> bytes:
        return b""

    page = MetricsPage("127.0.0.1:0", body)
    await page.start()
    environ = {"KEYHOLE_METRICS_EXPORTER_PORT": page.address.rpartition(":")[2]}
    monkeypatch.setattr(health_check, "_SECONDS", PATIENCE_SECONDS)
    assert await asyncio.to_thread(health_check.main, ["metrics-exporter"], environ) == 0
    await page.stop()
    assert await asyncio.to_thread(health_check.main, ["metrics-exporter"], environ) == 1
    assert "no answer" in capsys.readouterr().err


async def test_the_health_command_is_patient_with_an_exporter_that_is_to_live(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where no core is free it may take long to answer, and must not be ended for that."""
    asked, answer = asyncio.Semaphore(0), asyncio.Event()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.release()
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer_late, "127.0.0.1", 0) as server:
        environ = {"KEYHOLE_METRICS_EXPORTER_PORT": str(server.sockets[0].getsockname()[1])}
        alive = asyncio.create_task(asyncio.to_thread(health_check.main, ["metrics-exporter", "--alive"], environ))
        await asked.acquire()
        # This one is asked later, and gives up first.
        assert await asyncio.to_thread(health_check.main, ["metrics-exporter"], environ) == 1
        assert "no answer" in capsys.readouterr().err
        answer.set()
        assert await alive == 0

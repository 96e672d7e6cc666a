"""A client proxy while servers come, go and hand over: real sockets, servers in memory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keyhole import AsyncClient, errors
from keyhole.clock import SystemClock
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy
from keyhole.model.state import KeyType
from keyhole.rpc.channels import aio_channel, sync_channel
from keyhole.testing.fake_server import FakeServer
from services.client_proxy.server_connection import ServerConnection
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, row, rows
from tests.support.refusals import longer_and_longer, raised_at_deadline
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually, until

LOW, HIGH = frozenset(range(8)), frozenset(range(8, KEY_GROUPS))
_WAIT_SECONDS = 2.5
SENSORS = [f"sensor-{number}" for number in range(100)]


async def _healthy(address: str) -> bool:
    async with aio_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _host(server: FakeServer, key_groups: frozenset[int]) -> None:
    server.host(descriptor(), rows(100), key_groups)


async def test_keys_go_to_the_servers_that_own_them_and_come_back_in_order() -> None:
    async with fake_servers("a", "b") as (a, b):
        _host(a, LOW)
        _host(b, HIGH)
        async with proxy_of(a.address, b.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            answers = await client.get_many(APPLICATION, STATE, [*SENSORS, "nobody"])
            assert [answer.value.celsius for answer in answers[:-1]] == [float(number) for number in range(100)]
            assert not answers[-1].found
            codec = a.states[APPLICATION, STATE].codec
            owners = ["a" if codec.storage_key(name)[1] in LOW else "b" for name in SENSORS]
            assert [answer.server for answer in answers[:-1]] == owners
            assert {"a", "b"} == set(owners)


async def test_a_handover_between_servers_is_not_seen_by_readers() -> None:
    async with fake_servers("a", "b") as (a, b):
        _host(a, LOW | HIGH)
        async with proxy_of(a.address, b.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, SENSORS[0])
            stop = asyncio.Event()
            answered: list[str] = []

            async def read() -> None:
                while not stop.is_set():
                    answered.extend(answer.server for answer in await client.get_many(APPLICATION, STATE, SENSORS))

            reader = asyncio.create_task(read())
            for version in range(2, 6):
                giver, taker = (a, b) if version % 2 == 0 else (b, a)
                await eventually(lambda name=giver.server: answered[-1:] == [name])
                giver.states[APPLICATION, STATE].key_groups = frozenset()  # it refuses before the proxy hears of it
                await asyncio.sleep(0.03)
                giver.changed()
                _host(taker, LOW | HIGH)
                taker.states[APPLICATION, STATE].assignment_version = version
                taker.changed()
            await eventually(lambda: answered[-1] == "a")
            stop.set()
            await reader


async def test_keys_of_a_lost_server_fail_at_the_deadline_with_the_cause_and_others_are_answered() -> None:
    async with fake_servers("a", "b") as (a, b):
        _host(a, LOW)
        _host(b, HIGH)
        async with proxy_of(a.address, b.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get_many(APPLICATION, STATE, SENSORS)
            await b.stop()
            codec = a.states[APPLICATION, STATE].codec
            of_a, of_b = ([name for name in SENSORS if codec.storage_key(name)[1] in part] for part in (LOW, HIGH))
            for seconds in longer_and_longer(_WAIT_SECONDS):
                wanted = {name: client.get(APPLICATION, STATE, name, timeout=seconds) for name in SENSORS}
                began = time.monotonic()
                # All of them went in one frame, and still those of the other server do not wait for the deadline.
                answered = await asyncio.gather(*(wanted[name] for name in of_a), return_exceptions=True)
                waited = not any(wanted[name].done() for name in of_b)
                outcomes = await asyncio.gather(*(wanted[name] for name in of_b), return_exceptions=True)
                took = time.monotonic() - began
                assert {type(error) for error in outcomes} == {errors.DeadlineExceeded}
                # On a slow machine the answers, and the reason, which comes shortly before the deadline, may come
                # after it.
                if waited and all("cause" in error.facts for error in outcomes):  # type: ignore[union-attr]
                    break
            assert waited
            assert took < 2 * seconds
            assert all(of.found for of in answered)  # type: ignore[union-attr]
            for error in outcomes:
                assert isinstance(error, errors.DeadlineExceeded)
                assert b.address in error.message
                assert "attempts" in error.message
                assert error.facts["cause"] in {"SERVER_LOST", "NO_SERVER"}


async def test_keys_of_a_lost_server_do_not_hold_up_those_of_others() -> None:
    async with fake_servers("a", "b") as (a, b):
        _host(a, LOW)
        _host(b, HIGH)
        codec = a.states[APPLICATION, STATE].codec
        fine = [name for name in SENSORS if codec.storage_key(name)[1] in LOW]
        away = [name for name in SENSORS if codec.storage_key(name)[1] in HIGH]
        async with proxy_of(a.address, b.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get_many(APPLICATION, STATE, SENSORS)
            await b.stop()
            waiting = []
            for name in away[:10]:
                waiting.append(client.get(APPLICATION, STATE, name))
                await asyncio.sleep(0.01)
            began = time.monotonic()
            assert (await client.get(APPLICATION, STATE, fine[0])).found
            assert time.monotonic() - began < LONG_SECONDS / 2
            assert not any(future.done() for future in waiting)
            await client.close()
            assert all(isinstance(future.exception(), errors.ClientClosed) for future in waiting)


async def test_a_restarted_server_is_found_again_and_lookups_wait_for_it_inside_their_deadline() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, SENSORS[0])
            await server.stop()
            waiting = client.get(APPLICATION, STATE, SENSORS[7])
            await asyncio.sleep(0.05)
            again = FakeServer("a", server.port)
            await again.start()  # back, but it has been assigned nothing yet
            await asyncio.sleep(0.3)
            assert not waiting.done()
            _host(again, LOW | HIGH)
            assert (await waiting).value.celsius == 7.0
            await again.stop()


async def test_a_restoring_server_is_waited_for_and_its_progress_is_the_cause() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        server.states[APPLICATION, STATE].ready = False
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:

            async def read(seconds: float) -> None:
                await client.get(APPLICATION, STATE, SENSORS[0], timeout=seconds)

            refused = await raised_at_deadline(read, 2, errors.DeadlineExceeded, "restoring readings: 3 of 10 records")
            assert refused.facts["cause"] == "NOT_READY"
            server.states[APPLICATION, STATE].ready = True
            assert (await client.get(APPLICATION, STATE, SENSORS[0])).found


async def test_an_overloaded_server_is_not_asked_again() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, SENSORS[0])
            frames = server.frames
            server.refuse = errors.Overloaded("the queue is full; come back later")
            with pytest.raises(errors.Overloaded, match="come back later"):
                await client.get(APPLICATION, STATE, SENSORS[0])
            assert server.frames == frames + 1


async def test_without_any_server_the_answer_is_no_server_with_the_reason_and_never_unknown_state() -> None:
    with unused_address() as address:
        async with proxy_of(address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            for call in (
                client.get(APPLICATION, STATE, SENSORS[0]),
                client.describe_state(APPLICATION, STATE),
                client.list_states(),
            ):
                with pytest.raises(errors.NoServer, match=address):
                    await call
            (server,) = await client.status()
            assert (server.address, server.holdings) == (address, ())
            assert "can't be reached" in server.unreachable
            assert not await _healthy(proxy.address)


async def test_an_application_that_is_to_be_there_is_not_unknown_before_its_job_has_begun() -> None:
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, applications=(APPLICATION,)) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        with pytest.raises(errors.NoServer, match=f"heard of application {APPLICATION} yet: its job") as early:
            await client.get(APPLICATION, STATE, SENSORS[0])
        assert early.value.retryable
        with pytest.raises(errors.UnknownApplication):
            await client.get("another", STATE, SENSORS[0])
        # Once it is there, and has been for a while, a wrong name is one.
        directory = proxy._directory
        server.host(descriptor("alarms"))
        await eventually(lambda: (APPLICATION, "alarms") in directory.tables)
        with pytest.raises(errors.NoServer, match="has only begun"):
            await client.get(APPLICATION, STATE, SENSORS[0])
        directory._begun[APPLICATION] -= LONG_SECONDS + 60
        assert isinstance(await raised_by(client), errors.UnknownState)


async def test_a_server_that_leaves_the_discovery_while_it_is_asked_of_itself_is_told_of_as_unreachable() -> None:
    """Closing its channel cancels the calls: nobody's own task was cancelled."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        link = ServerConnection(address, lambda: None, 1.0, SystemClock())
        asked = asyncio.gather(link.describe(LONG_SECONDS), link.figures(LONG_SECONDS))
        silent, _ = await asyncio.get_running_loop().sock_accept(listening)
        with silent:
            await link.close()
            for described, figures in (await asked, (await link.describe(1.0), await link.figures(1.0))):
                assert "no longer among the discovered ones" in described.unreachable
                assert (described.address, figures) == (address, None)


async def raised_by(client: AsyncClient) -> errors.KeyholeError | None:
    try:
        await client.get(APPLICATION, STATE, SENSORS[0])
    except errors.KeyholeError as error:
        return error
    return None


async def test_a_state_that_appears_after_it_was_asked_for_is_found_f06() -> None:
    """F06: asking too early fails, and asking again succeeds: nothing is poisoned."""
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        with pytest.raises(errors.UnknownApplication, match=r"there are: none yet .a job makes its states"):
            await client.get(APPLICATION, STATE, SENSORS[0])
        server.host(descriptor("alarms"))

        async def message() -> str:
            try:
                await client.get(APPLICATION, STATE, SENSORS[0])
            except errors.RequestError as error:
                return error.message
            return "found"

        async with asyncio.timeout(PATIENCE_SECONDS):
            while "it has: alarms" not in await message():  # noqa: ASYNC110 - as a user would
                await asyncio.sleep(0.01)
            _host(server, LOW | HIGH)
            while await message() != "found":  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_state_that_is_made_anew_is_described_again_by_the_client_itself() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            assert (await client.get(APPLICATION, STATE, SENSORS[1])).value.celsius == 1.0
            server.host(descriptor(topic_id="topic-2"), {"sensor-1": row(99.0)})
            assert (await client.get(APPLICATION, STATE, SENSORS[1])).value.celsius == 99.0
            renewed = server.host(descriptor(topic_id="topic-3", key=KeyType.BIGINT))
            renewed.put(7, row(7.0))
            async with asyncio.timeout(PATIENCE_SECONDS):  # a proxy hears of it a moment later
                while (await client.describe_state(APPLICATION, STATE)).topic_id != "topic-3":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            # The client itself still has the old descriptor, whose key is a string.
            assert (await client.get(APPLICATION, STATE, 7)).value.celsius == 7.0


async def test_status_names_the_servers_that_do_not_answer_and_why() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        with unused_address() as nobody:
            async with (
                proxy_of(server.address, nobody) as proxy,
                AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
            ):
                assert (await client.get(APPLICATION, STATE, SENSORS[0])).found
                by_address = {status.address: status for status in await client.status()}
                assert by_address[server.address].unreachable == ""
                assert [holding.entries for holding in by_address[server.address].holdings] == [100]
                assert nobody in by_address[nobody].unreachable


async def test_health_is_serving_from_the_first_server_that_is_reached() -> None:
    (port,) = free_ports(1)
    async with proxy_of(f"127.0.0.1:{port}") as proxy:
        assert not await _healthy(proxy.address)
        server = FakeServer("a", port)
        await server.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await _healthy(proxy.address):  # noqa: ASYNC110 - health has no event to wait for
                await asyncio.sleep(0.02)
        await server.stop()
        assert await _healthy(proxy.address)


async def test_a_draining_proxy_answers_what_is_under_way_and_takes_nothing_new() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, SENSORS[0])
            server.hold.clear()
            under_way = client.get(APPLICATION, STATE, SENSORS[3], timeout=PATIENCE_SECONDS)
            await eventually(lambda: server.held == 1)
            stopping = asyncio.create_task(proxy.stop(PATIENCE_SECONDS))
            await asyncio.sleep(0.05)
            server.hold.set()
            assert (await under_way).value.celsius == 3.0
            await stopping

            async def read(seconds: float) -> None:
                await client.get(APPLICATION, STATE, SENSORS[0], timeout=seconds)

            await raised_at_deadline(read, 0.5, errors.ServerLost, proxy.address)


async def test_random_bytes_do_not_harm_the_proxy() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            host, _, port = proxy.address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(os.urandom(65536))
            writer.close()
            async with aio_channel(proxy.address) as channel:
                call = channel.stream_stream("/keyhole.v1.Query/Lookup")(iter([b"\xff\xff"]))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (await client.get(APPLICATION, STATE, SENSORS[0])).found


async def test_a_frozen_server_ends_in_the_callers_deadline_and_names_it() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        async with (
            proxy_of(server.address, hop_seconds=0.1) as proxy,
            AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
        ):
            await client.get(APPLICATION, STATE, SENSORS[0])
            server.hold.clear()

            async def read(seconds: float) -> None:
                await client.get(APPLICATION, STATE, SENSORS[0], timeout=seconds)

            # A tenth of the time is for the reason.
            await raised_at_deadline(read, 2, errors.DeadlineExceeded, server.address)
            server.hold.set()
            assert (await client.get(APPLICATION, STATE, SENSORS[0])).found


async def test_a_cancelled_lookup_leaves_nothing_behind() -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, SENSORS[0])
            server.hold.clear()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.get(APPLICATION, STATE, SENSORS[0]), 0.05)
            server.hold.set()
            assert (await client.get(APPLICATION, STATE, SENSORS[1])).found


def _start(tmp_path: Path, **settings: str) -> subprocess.Popen[bytes]:
    environ = {"PATH": os.environ.get("PATH", "")}
    environ |= {f"KEYHOLE_CLIENT_PROXY_{name}": value for name, value in settings.items()}
    with (tmp_path / "proxy.log").open("wb") as log:
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "services.client_proxy"]
        return subprocess.Popen(command, env=environ, cwd=root, stderr=log, stdout=log)


async def test_what_was_under_way_to_a_killed_proxy_is_answered_by_the_next_at_its_address(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)

    async def started(server: FakeServer) -> Child:
        return await asyncio.to_thread(
            start_client_proxy, "proxy", port, servers=[server.address], directory=tmp_path, environ=os.environ
        )

    async with fake_servers("a") as (server,), AsyncClient(f"127.0.0.1:{port}", timeout=LONG_SECONDS) as client:
        _host(server, LOW | HIGH)
        proxy = await started(server)
        try:
            assert (await client.get(APPLICATION, STATE, SENSORS[5])).value.celsius == 5.0
            server.hold.clear()
            under_way = [client.get(APPLICATION, STATE, name) for name in SENSORS]
            await eventually(lambda: server.held == 1)
            assert proxy.kill() == -signal.SIGKILL

            async def read(seconds: float) -> None:
                await client.get(APPLICATION, STATE, SENSORS[5], timeout=seconds)

            await raised_at_deadline(read, 0.5, errors.ServerLost, f"127.0.0.1:{port}.*; sent [0-9]+ times")
            assert not any(read.done() for read in under_way)
            server.hold.set()

            proxy = await started(server)
            answers = await asyncio.gather(*under_way)
            answers += await client.get_many(APPLICATION, STATE, SENSORS)
            assert [answer.value.celsius for answer in answers] == 2 * [float(number) for number in range(100)]
        finally:
            proxy.kill()


async def test_the_process_says_where_it_listens_and_ends_on_sigterm(tmp_path: Path) -> None:
    async with fake_servers("a") as (server,):
        _host(server, LOW | HIGH)
        process = _start(tmp_path, SERVERS=server.address, PORT="0")
        try:
            log = tmp_path / "proxy.log"
            await eventually(lambda: b"started client-proxy 127.0.0.1:" in log.read_bytes(), LONG_SECONDS)
            address = log.read_text().partition("started client-proxy ")[2].partition('"')[0]
            async with AsyncClient(address, timeout=LONG_SECONDS) as client:
                assert (await client.get(APPLICATION, STATE, SENSORS[5])).value.celsius == 5.0
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, LONG_SECONDS) == 0
        finally:
            process.kill()
            process.wait()


async def test_a_signal_that_ends_the_process_leaves_the_threads_stacks_in_its_log(tmp_path: Path) -> None:
    process = _start(tmp_path, SERVERS="127.0.0.1:1", PORT="0")
    try:
        log = tmp_path / "proxy.log"
        await eventually(lambda: b"started client-proxy 127.0.0.1:" in log.read_bytes(), LONG_SECONDS)
        process.send_signal(signal.SIGBUS)
        assert await asyncio.to_thread(process.wait, LONG_SECONDS) == -signal.SIGBUS
        assert re.search(r"Fatal Python error: Bus error(?s:.)*keyhole/rpc/deployable.py", log.read_text())
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "KEYHOLE_CLIENT_PROXY_SERVERS is not set"),
        ({"SERVERS": "nowhere"}, "state server 'nowhere' is not host:port"),
        ({"SERVERS": "a:1", "PROT": "1"}, "unknown setting KEYHOLE_CLIENT_PROXY_PROT"),
    ],
)
def test_a_wrong_configuration_ends_the_process_with_one_line(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    assert _start(tmp_path, **settings).wait(LONG_SECONDS) == 1
    lines = (tmp_path / "proxy.log").read_text().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_a_channel_of_threads_reaches_the_same_service_as_plain_grpc(tmp_path: Path) -> None:
    """Nothing but the protos: what a client in another language does."""
    from keyhole.v1 import query_pb2, query_pb2_grpc

    with unused_address() as nobody:
        process = _start(tmp_path, SERVERS=nobody, PORT="0")
        try:
            log = tmp_path / "proxy.log"
            until(lambda: b"started client-proxy " in log.read_bytes(), LONG_SECONDS)
            address = log.read_text().partition("started client-proxy ")[2].partition('"')[0]
            with sync_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
                query_pb2_grpc.QueryStub(channel).ListStates(query_pb2.ListStatesRequest(), timeout=PATIENCE_SECONDS)
            assert "no state server can be reached" in str(caught.value)
        finally:
            process.kill()
            process.wait()

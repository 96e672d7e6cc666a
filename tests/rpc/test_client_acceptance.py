"""The client tests of Flink's queryable state, ClientTest.java, in our terms: F15-F20 and F24 of docs/acceptance.md."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import psutil
import pytest

from keyhole import AsyncClient, Client, errors
from keyhole.encoding.murmur3 import key_group
from keyhole.model.read import Answer
from keyhole.model.state import KeyType
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.stores.memory import MemorySnapshot
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from tests.support import figures
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, rows
from tests.support.refusals import longer_and_longer, raised_at_deadline
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually


def _connections(port: int) -> int:
    """Connections of this process to a port of its own."""
    return sum(
        connection.status == psutil.CONN_ESTABLISHED and bool(connection.raddr) and connection.raddr.port == port
        for connection in psutil.Process().net_connections("tcp")
    )


async def test_of_1024_requests_exactly_the_half_that_the_server_refuses_fails_f15() -> None:
    """F15: 1024 requests, half of them failing at the server, exact counts on both sides, and no connection is left."""
    rows_by_half: list[dict[str, bytes]] = [{}, {}]
    for name, stored in rows(2048).items():
        rows_by_half[key_group([name], [KeyType.STRING], KEY_GROUPS) >= KEY_GROUPS // 2][name] = stored
    owned, elsewhere = (list(half)[:512] for half in rows_by_half)
    asked = [name for pair in zip(owned, elsewhere, strict=True) for name in pair]
    async with state_server("a") as server:
        await server.own(descriptor(), range(KEY_GROUPS // 2))
        await server.commit({name: rows_by_half[0][name] for name in owned})
        async with AsyncClient(server.address, timeout=60) as client:
            wanted = (client.get(APPLICATION, STATE, name) for name in asked)
            results = await asyncio.gather(*wanted, return_exceptions=True)
        outcomes: dict[str, Any] = dict(zip(asked, results, strict=True))
        assert Counter(type(outcomes[name]) for name in owned) == {Answer: 512}
        assert all(outcomes[name].value.celsius == float(name.removeprefix("sensor-")) for name in owned)
        assert Counter(type(outcomes[name]) for name in elsewhere) == {errors.NotOwner: 512}
        stats = await figures.read_stats(server.address)
        assert figures.value(stats, "keyhole_state_server_lookup_keys_total", state=STATE) == 1024
        assert figures.value(stats, "keyhole_state_server_failed_reads_total", state=STATE) == 512
        assert figures.value(stats, "keyhole_state_server_failed_reads_total", reason="NOT_OWNER") == 512
        port = int(server.address.rpartition(":")[2])
        await eventually(lambda: _connections(port) == 0)


async def test_an_unreachable_host_fails_within_the_timeout_and_is_named_f16() -> None:
    """F16: nobody listens."""
    with unused_address() as address:
        async with AsyncClient(address, timeout=LONG_SECONDS) as client:
            for read in (
                lambda seconds: client.get(APPLICATION, STATE, "sensor-1", timeout=seconds),
                lambda seconds: client.list_states(timeout=seconds),
            ):
                await raised_at_deadline(read, 0.5, errors.ServerLost, address)


async def test_four_threads_share_a_client_for_1024_queries_each_f17() -> None:
    """F17: 4 threads, 1024 queries each, one client."""
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(1024))
        with Client(server.address, timeout=60) as client:

            def ask(offset: int) -> int:
                names = [(offset + number) % 1024 for number in range(1024)]
                answers = [client.get(APPLICATION, STATE, f"sensor-{name}") for name in names]
                return sum(answer.value.celsius == name for answer, name in zip(answers, names, strict=True))

            with ThreadPoolExecutor(4) as threads:
                loop = asyncio.get_running_loop()
                asked = [loop.run_in_executor(threads, ask, 100 * number) for number in range(4)]
                assert await asyncio.gather(*asked) == [1024] * 4
            assert server.streams == 1
            await asyncio.to_thread(client.close)
        await eventually(lambda: server.streams == 0)


async def test_a_servers_failure_fails_all_pending_requests_and_the_connection_is_gone_f18() -> None:
    """F18: the server fails with requests under way, and does not come back within their timeout."""
    for seconds in longer_and_longer(2.0):
        async with fake_servers("a") as (server,):
            server.host(descriptor(), rows(10))
            async with AsyncClient(server.address, timeout=seconds) as client:
                await client.get(APPLICATION, STATE, "sensor-1", timeout=PATIENCE_SECONDS)
                server.hold.clear()
                pending = [client.get(APPLICATION, STATE, f"sensor-{number}") for number in range(10)]
                await eventually(lambda server=server: server.held == 1)
                await server.stop()
                results = await asyncio.gather(*pending, return_exceptions=True)
                await eventually(lambda server=server: _connections(server.port) == 0)
        ended = {type(result) for result in results}
        # On a slow machine the deadline passes before the server is lost, or while it is asked once more.
        if errors.DeadlineExceeded not in ended:
            break
    assert ended == {errors.ServerLost}


async def test_a_server_that_closes_the_channel_is_found_again_when_it_is_back_f19() -> None:
    """F19: the server closes the channel. Ours goes on: what comes later uses a new connection."""
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(10))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            assert (await client.get(APPLICATION, STATE, "sensor-1")).found
            await server.stop()

            async def read(seconds: float) -> None:
                await client.get(APPLICATION, STATE, "sensor-1", timeout=seconds)

            await raised_at_deadline(read, 0.5, errors.ServerLost, server.address)
            again = type(server)("a", server.port)
            again.host(descriptor(), rows(10))
            await again.start()
            assert (await client.get(APPLICATION, STATE, "sensor-1", timeout=PATIENCE_SECONDS)).found
            await again.stop()


async def test_8_tasks_make_100k_queries_of_2_servers_then_shutdown_fails_the_rest_f20() -> None:
    """F20: 8 client tasks, batches of 16, 2 servers, 100k queries, then shutdown: all outstanding fail, no leak."""
    async with fake_servers("a", "b") as servers:
        for server in servers:
            state = server.host(descriptor(), rows(100))
            state.key_groups = frozenset(range(8) if server.server == "a" else range(8, 16))
        async with proxy_of(*(server.address for server in servers)) as proxy:
            async with AsyncClient(proxy.address, timeout=60) as client:
                answered: Counter[str] = Counter()

                async def ask(task: int) -> None:
                    while answered.total() < 100_000:
                        names = [f"sensor-{(task * 16 + number) % 100}" for number in range(16)]
                        for answer in await asyncio.gather(*(client.get(APPLICATION, STATE, name) for name in names)):
                            assert answer.found
                            answered[answer.server] += 1

                await asyncio.gather(*(ask(task) for task in range(8)))
                assert set(answered) == {"a", "b"}
                assert answered.total() >= 100_000
                for server in servers:
                    server.hold.clear()
                outstanding = [client.get(APPLICATION, STATE, f"sensor-{number}") for number in range(100)]
                await asyncio.sleep(0.05)
                await client.close()
                results = await asyncio.gather(*outstanding, return_exceptions=True)
                assert {type(result) for result in results} == {errors.ClientClosed}
            port = int(proxy.address.rpartition(":")[2])
            await eventually(lambda: _connections(port) == 0)
        for server in servers:
            server.hold.set()
        await eventually(lambda: all(server.streams == 0 for server in servers))


async def test_a_store_that_fails_unexpectedly_fails_one_call_and_the_next_one_has_its_answer_f24(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F24: the state fails while the server reads from it."""
    read = MemorySnapshot.get_many

    def fail_once(snapshot: MemorySnapshot, keys: Sequence[bytes]) -> list[bytes | None]:
        monkeypatch.setattr(MemorySnapshot, "get_many", read)
        raise RuntimeError("a secret")

    name = pb.Key(parts=[pb.KeyPart(string="sensor-7")])
    request = pb.GetRequest(state=pb.StateRef(application=APPLICATION, state=STATE), key=name)
    async with (
        state_server("a") as server,
        AsyncClient(server.address, timeout=LONG_SECONDS) as client,
        aio_channel(server.address) as other,
    ):
        await server.own(descriptor())
        await server.commit(rows(10))
        stub: Any = query_pb2_grpc.QueryStub(other)

        monkeypatch.setattr(MemorySnapshot, "get_many", fail_once)
        with pytest.raises(errors.InternalError, match="failed unexpectedly"):
            await client.get(APPLICATION, STATE, "sensor-7")
        assert (await client.get(APPLICATION, STATE, "sensor-7")).value.celsius == 7.0

        monkeypatch.setattr(MemorySnapshot, "get_many", fail_once)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Get(request)
        assert isinstance(from_rpc_error(caught.value), errors.InternalError)
        assert (await stub.Get(request)).answer.value == rows(10)["sensor-7"]


async def test_closing_a_client_of_threads_fails_what_they_wait_for() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(10))
        client = Client(server.address, timeout=60)
        await asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-1")
        server.hold.clear()
        waiting = asyncio.gather(
            *(asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-1") for _ in range(4)), return_exceptions=True
        )
        await asyncio.sleep(0.05)
        await asyncio.to_thread(client.close)
        assert {type(result) for result in await waiting} == {errors.ClientClosed}
        with pytest.raises(errors.ClientClosed):
            client.get(APPLICATION, STATE, "sensor-1")
        assert not any(thread.name.startswith("keyhole-client") for thread in threading.enumerate())


async def test_something_else_on_the_port_is_no_keyhole_server() -> None:
    """Garbage on the wire, from the other side."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-other\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    other = await asyncio.start_server(talk, "127.0.0.1", 0, family=socket.AF_INET)
    address = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
    async with AsyncClient(address, timeout=LONG_SECONDS) as client:

        async def read(seconds: float) -> None:
            await client.get(APPLICATION, STATE, "sensor-1", timeout=seconds)

        await raised_at_deadline(read, 5.0, errors.KeyholeError, address)
    other.close()

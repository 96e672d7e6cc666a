"""The state server as a service: health, reflection, drain, and what it says when it can't start."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from keyhole import AsyncClient, errors
from keyhole.rpc import channels, status
from keyhole.rpc.version import PROTOCOL_VERSION
from keyhole.stores.base import StoreLimits
from keyhole.stores.choices import chosen_engine
from keyhole.stores.disk.store_directory import directory_name
from keyhole.testing.changelog import MemoryKafka
from keyhole.v1 import query_pb2, query_pb2_grpc, state_server_pb2, state_server_pb2_grpc
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(of: RunningServer) -> int:
    async with channels.aio_channel(of.address) as channel:
        return int((await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status)


async def test_it_is_not_serving_until_it_has_its_key_groups() -> None:
    async with state_server("server-a") as server:
        assert await health(server) == NOT_SERVING
        await server.own(descriptor())
        assert await health(server) == SERVING


async def test_reads_before_any_job_say_that_no_job_has_come_yet() -> None:
    async with state_server("server-a") as server, channels.aio_channel(server.address) as channel:
        request = query_pb2.GetRequest(state=query_pb2.StateRef(application=APPLICATION, state=STATE))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await query_pb2_grpc.QueryStub(channel).Get(request)
        error = status.from_rpc_error(caught.value)
        assert isinstance(error, errors.UnknownApplication)
        assert "no job has given it key groups yet" in error.message


async def test_reflection_lists_its_services() -> None:
    async with state_server("server-a") as server, channels.aio_channel(server.address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        names = {service.name async for answer in call for service in answer.list_services_response.service}
    assert names >= {"keyhole.v1.Query", "keyhole.v1.StateServer", "grpc.health.v1.Health"}


async def test_it_drains_when_it_is_asked_to_until_that_is_undone_and_to_its_end_for_good() -> None:
    async with state_server("server-a") as server, channels.aio_channel(server.address) as channel:
        await server.own(descriptor())
        await server.commit(rows(1))
        stub: Any = state_server_pb2_grpc.StateServerStub(channel)
        stream = stub.WatchOwnership(state_server_pb2.WatchOwnershipRequest())
        assert not (await stream.read()).draining
        look = await stub.Drain(state_server_pb2.DrainRequest(look=True))
        assert (look.draining, look.owns) == (False, True)
        for _ in range(2):
            drained = await stub.Drain(state_server_pb2.DrainRequest())
            assert (drained.draining, drained.owns) == (True, True)
        assert (await stream.read()).draining
        described = (await stub.Describe(state_server_pb2.DescribeRequest())).status
        brief = (await stub.Describe(state_server_pb2.DescribeRequest(brief=True))).status
        assert described.holdings
        assert not brief.holdings
        assert (brief.server, brief.incarnation, brief.draining, brief.goes_on, brief.protocol_version) == (
            described.server, described.incarnation, True, True, PROTOCOL_VERSION,
        )  # fmt: skip
        assert (described.draining, described.goes_on) == (True, True)
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            assert await client.get(APPLICATION, STATE, "sensor-0")
        other = state_server_pb2.Run(application="other", query="main", generation=1, run_id="r")
        opens = state_server_pb2.OpenRunRequest(
            run=other, incarnation=described.incarnation, grant="g", protocol_version=PROTOCOL_VERSION
        )
        await stub.OpenRun(opens)  # as where all servers drain
        assert not (await stub.Drain(state_server_pb2.DrainRequest(undo=True))).draining
        assert not (await stream.read()).draining
        server.server._registry.end()  # type: ignore[union-attr]  # as SIGTERM does first
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Drain(state_server_pb2.DrainRequest(undo=True))
        assert isinstance(status.from_rpc_error(caught.value), errors.Draining)
        assert (await stub.Drain(state_server_pb2.DrainRequest(look=True))).draining
        assert not (await stub.Describe(state_server_pb2.DescribeRequest())).status.goes_on
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.OpenRun(opens)
        assert isinstance(status.from_rpc_error(caught.value), errors.Draining)


async def test_it_wants_what_is_moved_to_it_until_that_is_undone_or_its_query_is_retired() -> None:
    async with state_server("server-a") as server, channels.aio_channel(server.address) as channel:
        await server.own(descriptor())
        stub: Any = state_server_pb2_grpc.StateServerStub(channel)

        async def placed() -> list[tuple[str, str, list[int]]]:
            briefly = (await stub.Describe(state_server_pb2.DescribeRequest(brief=True))).status.placements
            assert briefly == (await stub.Describe(state_server_pb2.DescribeRequest())).status.placements
            return [(of.application, of.state, list(of.key_groups)) for of in briefly]

        def moves(*groups: int, application: str = APPLICATION, state: str = STATE, undo: bool = False) -> Any:
            # Also of a query of which nothing is here.
            query = "main" if state == STATE else "another"
            return stub.Move(
                state_server_pb2.MoveRequest(
                    application=application, query=query, state=state, key_groups=groups, undo=undo
                )
            )

        assert await placed() == []
        assert (await moves(3, 1)).key_groups == [1, 3]
        assert (await moves(3, 2)).key_groups == [1, 2, 3]
        assert (await moves(0, application="other")).key_groups == [0]
        assert await placed() == [("other", STATE, [0]), (APPLICATION, STATE, [1, 2, 3])]
        assert (await moves(2, 9, undo=True)).key_groups == [1, 3]
        assert (await moves(0, application="other", undo=True)).key_groups == []
        assert await placed() == [(APPLICATION, STATE, [1, 3])]
        for wrong in (moves(), moves(1, application=""), moves(1, state=""), moves(65_536)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await wrong
            assert isinstance(status.from_rpc_error(caught.value), errors.MalformedRequest)
        for number in range(3):
            await moves(*range(65_536), state=f"large-{number}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await moves(*range(65_535), state="large-3")
        assert isinstance(status.from_rpc_error(caught.value), errors.TooLarge)
        assert (await moves(*range(65_534), state="large-3")).key_groups
        assert len(await placed()) == 5
        await stub.Drain(state_server_pb2.DrainRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await moves(0)
        assert isinstance(status.from_rpc_error(caught.value), errors.Draining)
        assert (await moves(3, undo=True)).key_groups == [1]
        assert await server.retire() == [STATE]
        assert {state for _, state, _ in await placed()} == {f"large-{number}" for number in range(4)}
        await stub.RetireQuery(state_server_pb2.RetireQueryRequest(application=APPLICATION, query="another"))
        assert await placed() == []


async def test_ownership_streams_end_when_it_drains() -> None:
    async with state_server("server-a") as server, channels.aio_channel(server.address) as channel:
        await server.own(descriptor())
        stub = state_server_pb2_grpc.StateServerStub(channel)
        stream = stub.WatchOwnership(state_server_pb2.WatchOwnershipRequest())
        first = await stream.read()
        assert isinstance(first, state_server_pb2.Ownership)
        assert (first.server, first.draining, len(first.holdings)) == ("server-a", False, 1)
        stopping = asyncio.create_task(server.server.stop())
        messages = [first]
        while (message := await stream.read()) is not grpc.aio.EOF:
            assert isinstance(message, state_server_pb2.Ownership)
            messages.append(message)
        await stopping
        assert messages[-1].draining


async def test_a_state_is_kept_in_the_store_that_the_file_says_served_from_it_and_found_there_after_a_restart(
    tmp_path: Path,
) -> None:
    file = tmp_path / "stores.toml"
    entry = f'states = ["{APPLICATION}/*"]\nstore = "rocksdb"\ndirectory = "{tmp_path / "rocksdb"}"'
    file.write_text(f"[[stores]]\n{entry}\n")
    kafka, limits = MemoryKafka(), StoreLimits(tmp_path / "others")
    for restarts in range(3):
        engine = chosen_engine("lmdb", limits, file)
        async with (
            state_server("server-a", kafka, engine) as server,
            AsyncClient(server.address, timeout=LONG_SECONDS) as client,
        ):
            await server.own(descriptor())
            if not restarts:
                await server.commit(rows(100))
            answers = await client.get_many(APPLICATION, STATE, [f"sensor-{n}" for n in range(101)])
            assert [answer.found and answer.value.celsius for answer in answers] == [*map(float, range(100)), False]
    assert (tmp_path / "rocksdb" / directory_name(APPLICATION, STATE) / "CURRENT").exists()
    assert not (tmp_path / "others" / directory_name(APPLICATION, STATE)).exists()


def start(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "KEYHOLE_STATE_SERVER_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KEYHOLE_STATE_SERVER_DIRECTORY": str(tmp_path / "stores"),
        "KEYHOLE_STATE_SERVER_PORT": "0",
        **{f"KEYHOLE_STATE_SERVER_{name.upper()}": value for name, value in settings.items()},
    }
    command = [sys.executable, "-m", "services.state_server"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONG_SECONDS, check=False)


def test_a_port_that_is_taken_is_named_and_the_process_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = start(tmp_path, port=str(port))
    assert done.returncode == 1
    assert f"state-server can't listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"store": "papyrus"}, "unknown store 'papyrus'; the stores are lmdb, memory, rocksdb"),
        ({"stores": "absent.toml"}, "KEYHOLE_STATE_SERVER_STORES is 'absent.toml', which can't be read"),
        ({"store": "json:JSONDecoder"}, "the store 'json:JSONDecoder' can't be made: too many positional arguments"),
        ({"prot": "7410"}, "unknown setting KEYHOLE_STATE_SERVER_PROT"),
        ({"role": "boss"}, "unknown role 'boss'; the roles are owner and replica"),
        ({"role": "replica"}, "a replica follows applications: name them"),
        ({"applications": "one"}, "only a replica is told which applications to follow"),
        ({"lease_seconds": "soon"}, "KEYHOLE_STATE_SERVER_LEASE_SECONDS is 'soon'; it must be a number"),
    ],
)
def test_a_setting_that_is_wrong_is_named(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    done = start(tmp_path, **settings)
    assert done.returncode == 1
    assert says in done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9092"])
def test_a_wrong_address_of_kafka_is_named_and_the_process_ends(tmp_path: Path, address: str) -> None:
    done = start(tmp_path, bootstrap_servers=address, kafka_wait_seconds="2")
    assert done.returncode == 1
    assert f"state-server: Kafka at {address} could not be reached within 2 s" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_directory_of_another_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    (stores / "FORMAT").write_text("keyhole lmdb 999\n")
    done = start(tmp_path)
    assert done.returncode == 1
    assert str(stores) in done.stderr
    assert "Traceback" not in done.stderr
    assert (stores / "FORMAT").read_text() == "keyhole lmdb 999\n"

"""Processes of different releases say so by name, instead of misunderstanding each other."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from keyhole import AsyncClient
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.server_link import ServerLink
from keyhole.errors import NoServer, ProtocolMismatch
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.rpc.version import PROTOCOL_VERSION, check
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc
from tests.support.proxies import fake_servers, proxy_of
from tests.support.state_servers import state_server
from tests.support.waiting import PATIENCE_SECONDS, eventually

NEWER = PROTOCOL_VERSION + 1


@pytest.mark.parametrize(("theirs", "says"), [(0, "before 1"), (NEWER, f"version {NEWER} of")])
def test_both_versions_are_named_and_which_side_to_update(theirs: int, says: str) -> None:
    with pytest.raises(ProtocolMismatch, match=f"(?s){says}.*this process version {PROTOCOL_VERSION}") as caught:
        check(theirs, "state server a")
    assert ("update Keyhole there" in caught.value.message) == (theirs == 0)
    assert caught.value.facts == {"theirs": str(theirs), "ours": str(PROTOCOL_VERSION)}
    check(PROTOCOL_VERSION, "state server a")


async def test_a_coordinator_uses_no_server_of_another_version_and_knows_why() -> None:
    async with fake_servers("a", "b") as (a, b):
        a.protocol_version = NEWER
        fleet = Fleet(lambda: (a.address, b.address))
        seen = await asyncio.to_thread(fleet.observe)
        assert list(seen) == ["b"]
        assert "state server a" in fleet.mismatched[a.address].message
        a.protocol_version = PROTOCOL_VERSION
        assert sorted(await asyncio.to_thread(fleet.observe)) == ["a", "b"]
        assert not fleet.mismatched
        fleet.close()
        link = ServerLink(a.address)
        a.protocol_version = 0
        with pytest.raises(ProtocolMismatch, match=f"state server a .{a.address}. speaks a version before 1"):
            await asyncio.to_thread(link.describe)
        link.close()


async def test_a_state_server_opens_no_run_of_a_driver_of_another_version() -> None:
    async with state_server("a") as server, aio_channel(server.address) as channel:
        stub: Any = state_server_pb2_grpc.StateServerStub(channel)
        for theirs in (0, NEWER):
            run = pb.Run(application="app", query="main", generation=1, run_id="run")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.OpenRun(pb.OpenRunRequest(run=run, grant="g", protocol_version=theirs))
            error = from_rpc_error(caught.value)
            assert isinstance(error, ProtocolMismatch)
            assert "the driver of app" in error.message


async def test_a_proxy_routes_to_no_server_of_another_version_and_says_why() -> None:
    async with fake_servers("a") as (a,):
        a.protocol_version = NEWER
        async with proxy_of(a.address) as proxy, AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client:
            await eventually(lambda: all(link.view is not None for link in proxy._directory.links))
            with pytest.raises(NoServer, match=f"state server a .* speaks version {NEWER}"):
                await client.list_states()
            (status,) = await client.status()
            assert f"version {NEWER}" in status.unreachable

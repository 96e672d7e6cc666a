"""`keyhole explain`: whom a proxy asks for a key, how long each takes, and why the answer is as it is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from keyhole import AsyncClient
from keyhole.cli.main import main
from keyhole.errors import NotReady, Overloaded, Unsupported
from keyhole.model.read import Role
from keyhole.model.state import KeyType
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.convert import key_to_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.client_proxy.forwarding import explained_reads
from tests.support.entries import hourly
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.refusals import longer_and_longer
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually

PATH = f"{APPLICATION}/{STATE}"


async def test_a_proxy_explains_so_many_keys_at_a_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explained_reads, "_MOST_AT_ONCE", 1)
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        server.host(descriptor(), rows(1))
        await client.get(APPLICATION, STATE, "sensor-0")
        server.hold.clear()
        first = asyncio.ensure_future(client.explain(APPLICATION, STATE, "sensor-0"))
        await eventually(lambda: server.held == 1)
        with pytest.raises(Overloaded, match="1 keys are being explained"):
            await client.explain(APPLICATION, STATE, "sensor-0")
        server.hold.set()
        assert (await first).answer is not None
        assert (await client.explain(APPLICATION, STATE, "sensor-0")).answer is not None


async def test_an_explanation_says_who_was_asked_how_long_each_took_and_why_the_answer_is_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with fake_servers("owner", "standby") as (owner, standby):
        owned = owner.host(descriptor(), rows(100))
        followed = standby.follow(descriptor(), rows(100))
        owner.host(hourly(KeyType.STRING, KeyType.INT, state="windows"), {("sensor-7", "a,b", -1): row(-1.0)})
        owner.host(msgspec.structs.replace(descriptor("fresh"), ttl_ms=60_000)).epoch = 0
        async with proxy_of(owner.address, standby.address) as proxy:

            async def run(*arguments: str, seconds: float = LONG_SECONDS) -> tuple[int, str]:
                given = ["explain", *arguments, "--proxy", proxy.address, "--timeout", str(seconds)]
                code = await asyncio.to_thread(main, given)
                return code, capsys.readouterr().out

            async def explained(*arguments: str, seconds: float = LONG_SECONDS) -> tuple[int, list[dict[str, Any]]]:
                code, out = await run(*arguments, "--json", seconds=seconds)
                return code, json.loads(out)

            async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
                await client.get(APPLICATION, STATE, "sensor-7")

            code, (found,) = await explained(PATH, "sensor-7")
            assert (code, found["found"], found["value"]["celsius"], found["role"]) == (0, True, 7.0, "owner")
            assert (found["key_group"], found["all_key_groups"]) == (_group_of("sensor-7"), 16)
            assert (found["why"], found["error"], found["hops_left_out"]) == ([], None, 0)
            (hop,) = found["hops"]
            assert (hop["server"], hop["address"], hop["error"]) == ("owner", owner.address, None)
            assert 0 < hop["in_server_seconds"] < hop["took_seconds"] < found["seconds"]["read"]
            assert 0 < found["seconds"]["to_target_and_back"] < LONG_SECONDS
            held = [(copy["server"], copy["role"], copy["ready"], copy["wrong"]) for copy in found["copies"]]
            assert held == [("owner", "owner", True, None), ("standby", "standby", True, None)]

            # Typed as for `get`: several keys, and keys of several columns.
            code, explanations = await explained(f"{APPLICATION}/windows", '["sensor-7", "a,b", -1]', "sensor-7,b,2")
            assert (code, [one["found"] for one in explanations]) == (0, [True, False])
            assert explanations[1]["why"] == ["the key was not written up to epoch 1, or was deleted"]
            assert (await explained(f"{APPLICATION}/fresh", "sensor-1"))[1][0]["why"] == [
                "no epoch is complete yet, so that nothing is known of any key"
            ]

            owned.confirmed = False
            assert "unconfirmed: owner owns the key group" in (await explained(PATH, "sensor-7"))[1][0]["why"][0]
            owned.confirmed = True

            followed.lag_epochs = 3
            code, (found,) = await explained(PATH, "sensor-7", "--stale", "always")
            if found["role"] == "standby":
                assert found["why"][0] == "a standby has answered, as any copy may: --stale always"
                assert "has not read the last 3 complete epochs yet" in found["why"][1]

            # As the proxy has not heard yet that the owner can't answer, it is asked first.
            owner.refuse = NotReady("it restores")
            code, (found,) = await explained(PATH, "sensor-7")
            assert (code, found["role"], found["server"]) == (0, "standby", "standby")
            assert [(hop["server"], (hop["error"] or {}).get("reason")) for hop in found["hops"]] == [
                ("owner", "NOT_READY"),
                ("standby", None),
            ]
            assert found["why"][0] == ("a standby has answered, as the owner, owner, did not: NOT_READY, it restores")
            code, shown = await run(PATH, "sensor-7")
            assert code == 0
            for words in (
                f"key group {found['key_group']} of 16",
                "answered by standby",
                "why: a standby",
                "NOT_READY",
            ):
                assert words in shown

            standby.refuse = NotReady("it restores, too")
            for seconds in longer_and_longer(1.0):
                code, (found,) = await explained(PATH, "sensor-7", seconds=seconds)
                assert (code, found["found"]) == (1, None)
                if len(found["hops"]) >= 2:
                    break
            assert found["error"]["reason"] == "DEADLINE_EXCEEDED"
            assert "it restores" in found["why"][0]

            await owner.stop()
            standby.refuse = None
            code, (found,) = await explained(PATH, "sensor-7")
            assert (code, found["role"]) == (0, "standby")
            # The proxy may have heard of it by now, and have no owner, or not.
            assert found["why"][0].startswith("a standby has answered")
            assert owner.address in json.dumps(found)


def _group_of(key: str) -> int:
    from keyhole.encoding.codec import StateCodec
    from keyhole.encoding.storage_key import group_of

    return group_of(StateCodec(descriptor()).storage_key(key))


async def test_a_state_server_explains_for_its_own_key_groups() -> None:
    async with state_server("a") as server:
        await server.own(descriptor())
        await server.commit({"sensor-1": row(21.5)})
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            found = await client.explain(APPLICATION, STATE, "sensor-1")
            assert found.answer is not None
            assert (found.answer.value.celsius, found.answer.server, found.hops) == (21.5, "a", ())
            (copy,) = found.copies
            assert (copy.server, copy.role, copy.ready, copy.source.epoch) == ("a", "owner", True, found.answer.epoch)
            assert found.lookup <= found.whole
            late = await client.explain(APPLICATION, STATE, "sensor-1", min_epoch=99)
            assert (late.answer, late.error.reason) == (None, "EPOCH_NOT_REACHED")
            (status,) = await client.status()
            assert status.now is not None
            assert status.version
        async with proxy_of(server.address) as proxy, aio_channel(proxy.address) as channel:
            async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
                through = await client.explain(APPLICATION, STATE, "sensor-1")
                (hop,) = through.hops
                assert hop.in_server is not None
                assert hop.took is not None
                assert hop.in_server < hop.took <= through.lookup <= through.in_target <= through.whole
                assert through.copies[0].source.role is Role.OWNER
            stub: Any = query_pb2_grpc.QueryStub(channel)
            # For readers in other languages: as Get has it.
            key = key_to_proto(descriptor().key, "sensor-1")
            ref = pb.StateRef(application=APPLICATION, state=STATE)
            options = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
            raw = await stub.Explain(pb.ExplainRequest(state=ref, key=key, options=options))
            assert json.loads(raw.answer.value)["celsius"] == 21.5
            assert raw.lookup_micros > 0
            answered = await stub.Status(pb.StatusRequest())
            assert answered.proxy.version == status.version


async def test_a_lookup_that_is_not_explained_asks_for_no_times() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(3))
        async with aio_channel(server.address) as channel:
            stub: Any = query_pb2_grpc.QueryStub(channel)
            ref = pb.StateRef(application=APPLICATION, state=STATE)
            call = stub.Lookup()
            for timed in (False, True):
                await call.write(
                    pb.LookupRequest(state=ref, keys=[key_to_proto(descriptor().key, "sensor-1")], timed=timed)
                )
                assert bool((await call.read()).server_micros) is timed
            await call.done_writing()


async def test_a_proxy_of_an_earlier_version_is_told_as_such() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(3))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            with pytest.raises(Unsupported, match="does not know the method"):
                await client.explain(APPLICATION, STATE, "sensor-1")


async def test_no_address_is_left_in_what_is_told_without_them_however_much_is_told() -> None:
    address = "10.1.2.3:7410"
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        told = pb.ExplainResponse()
        hop = told.hops.add(address=address)
        hop.error.message = f"ipv4:{address}"
        for number in range(100):
            hop.error.facts[f"fact {number}"] = f"by {address}"
        assert address not in str(proxy._servicer._explained_reads._by_name(told))

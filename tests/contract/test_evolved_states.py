"""A state gets another schema while clients read it, over real sockets: they go on, and get rows of the newest one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
import pytest

from keyhole import AsyncClient, Client
from keyhole.client.options import Routing
from keyhole.encoding.row_codec import encode_row
from keyhole.model.evolution import evolved
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.rpc import channels
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS

UNIT = ValueField("unit", "string", True, msgspec.msgpack.encode("C"))
OLD = descriptor()
NEW = evolved(OLD, msgspec.structs.replace(OLD, value=ValueSchema(1, (UNIT, ValueField("celsius", "double")))))
MAP = msgspec.structs.replace(
    OLD, state="by_hour", kind=StateKind.MAP, map_key=(KeyColumn("hour", KeyType.INT),), topic_id="topic-1"
)
NEW_MAP = msgspec.structs.replace(MAP, value=NEW.value, earlier=NEW.earlier)
OLD_ROW, NEW_ROW = {"celsius": 1.0, "count": 1}, {"unit": "F", "celsius": 2.0}
READ_AS_NEW = {"unit": "C", "celsius": 1.0}


@dataclass
class Served:
    """Where clients ask, and the server behind it."""

    address: str
    server: RunningServer
    routing: Routing

    async def evolve(self, to: StateDescriptor, written: dict[object, bytes]) -> None:
        await self.server.evolve(to)
        await self.server.commit(written)


@pytest.fixture(params=["state server", "state server behind a proxy", "directly, told by a proxy"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("server-a"))
        address = server.address
        if request.param.endswith("proxy"):
            address = (await stack.enter_async_context(proxy_of(address))).address
        yield Served(address, server, "direct" if request.param.startswith("directly") else "proxy")


async def begin(served: Served) -> None:
    await served.server.own(OLD)
    await served.server.commit(rows(3))


async def test_a_client_that_knows_the_old_schema_gets_old_and_new_rows_by_the_new_one(served: Served) -> None:
    await begin(served)
    async with AsyncClient(served.address, routing=served.routing, timeout=LONG_SECONDS) as client:
        assert (await client.get(APPLICATION, STATE, "sensor-1")).value.asdict() == OLD_ROW
        await served.evolve(NEW, {"sensor-2": encode_row(2, ["F", 2.0])})
        # Until a row of the new schema has come, it is not worth a question.
        assert (await client.get(APPLICATION, STATE, "sensor-1")).value.asdict() == OLD_ROW
        assert (await client.get(APPLICATION, STATE, "sensor-2")).value.asdict() == NEW_ROW
        assert (await client.get(APPLICATION, STATE, "sensor-1")).value.asdict() == READ_AS_NEW
        assert (await client.describe_state(APPLICATION, STATE)).value == NEW.value


async def test_many_keys_are_answered_by_one_schema(served: Served) -> None:
    await begin(served)
    async with AsyncClient(served.address, routing=served.routing, timeout=LONG_SECONDS) as client:
        await client.get(APPLICATION, STATE, "sensor-1")
        await served.evolve(NEW, {"sensor-2": encode_row(2, ["F", 2.0])})
        answers = await client.get_many(APPLICATION, STATE, ["sensor-1", "sensor-2", "nobody"])
        assert [answer.found for answer in answers] == [True, True, False]
        assert [answer.value.asdict() for answer in answers if answer.found] == [READ_AS_NEW, NEW_ROW]


async def test_a_client_for_threads_goes_on_too(served: Served) -> None:
    await begin(served)
    with Client(served.address, routing=served.routing, timeout=LONG_SECONDS) as client:
        await asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-1")
        await served.evolve(NEW, {"sensor-2": encode_row(2, ["F", 2.0])})
        answer = await asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-2")
        assert answer.value.asdict() == NEW_ROW


async def test_the_entries_of_a_key_are_told_by_one_schema(served: Served) -> None:
    await served.server.own(MAP)
    await served.server.commit({("sensor", 1): row(1.0), ("sensor", 2): row(1.0)})
    async with AsyncClient(served.address, routing=served.routing, timeout=LONG_SECONDS) as client:
        entries = await client.scan(APPLICATION, "by_hour", "sensor")
        assert [entry.value.asdict() for entry in entries] == [OLD_ROW, OLD_ROW]
        await served.evolve(NEW_MAP, {("sensor", 2): encode_row(2, ["F", 2.0])})
        entries = await client.scan(APPLICATION, "by_hour", "sensor")
        assert [(entry.map_key, entry.value.asdict()) for entry in entries] == [(1, READ_AS_NEW), (2, NEW_ROW)]


async def test_values_as_json_are_of_the_newest_schema_whichever_row_they_come_from(served: Served) -> None:
    await begin(served)
    await served.evolve(NEW, {"sensor-2": encode_row(2, ["F", 2.0])})
    async with channels.aio_channel(served.address) as channel:
        stub = query_pb2_grpc.QueryStub(channel)
        keys = [pb.Key(parts=[pb.KeyPart(string=f"sensor-{number}")]) for number in (1, 2)]
        options = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
        request = pb.GetManyRequest(state=pb.StateRef(application=APPLICATION, state=STATE), keys=keys, options=options)
        response = await stub.GetMany(request)
    assert [json.loads(answer.value) for answer in response.answers] == [READ_AS_NEW, NEW_ROW]

"""Scans that ask for some entries, some fields, or keys alone: of real servers and fakes, with and without a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from keyhole import AsyncClient, Client, KeyholeError, Predicate, field
from keyhole import aggregates as agg
from keyhole.errors import MalformedRequest, Unsupported, ValueMismatch
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.rpc import channels
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import predicate_pb2, query_pb2_grpc
from keyhole.v1 import query_pb2 as pb
from tests.support.entries import APPLICATION, STATE, hourly, hours, row
from tests.support.proxies import fake_servers, proxy_of
from tests.support.refusals import refusal_of
from tests.support.state_servers import state_server
from tests.support.waiting import PATIENCE_SECONDS

# celsius is the hour, count 1 or 2.
ROWS = hours("sensor-7", range(900)) | hours("sensor-8", range(-20, 20), count=2)
PATH = f"{APPLICATION}/{STATE}"


@dataclass
class Read:
    """What is read from, and a client of it."""

    backend: Any
    client: AsyncClient
    address: str

    async def keys(self, **options: Any) -> list[tuple[Any, Any]]:
        async with self.client.scan_all(APPLICATION, STATE, **options) as entries:
            return sorted([(entry.key, entry.map_key) async for entry in entries])


async def known(client: AsyncClient, version: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                described = await client.describe_state(APPLICATION, STATE)
            except KeyholeError:
                described = None
            if described is not None and described.value.version == version:
                return
            await asyncio.sleep(0.005)


@pytest.fixture(params=["fake", "fake behind a proxy", "state server", "state server behind a proxy"])
async def read(request: pytest.FixtureRequest) -> AsyncIterator[Read]:
    async with AsyncExitStack() as stack:
        backend: Any
        if request.param.startswith("fake"):
            (backend,) = await stack.enter_async_context(fake_servers("server-a"))
            backend.host(hourly(), ROWS)
        else:
            backend = await stack.enter_async_context(state_server("server-a"))
            await backend.own(hourly())
            await backend.commit(ROWS)
        address = backend.address
        if request.param.endswith("proxy"):
            address = (await stack.enter_async_context(proxy_of(address))).address
        client = await stack.enter_async_context(AsyncClient(address, timeout=PATIENCE_SECONDS))
        await known(client)
        yield Read(backend, client, address)


async def test_entries_fields_and_keys_alone_come_as_they_are_asked_for(read: Read) -> None:
    def chosen(test: Any) -> list[tuple[Any, Any]]:
        return sorted(key for key, of in ROWS.items() if test(key, *msgspec.msgpack.decode(of)[1:]))

    asked: list[tuple[Predicate, Any]] = [
        (field("celsius") >= 890, lambda _, celsius, __: celsius >= 890),
        ((field("count") == 2) & (field("celsius") < 0), lambda _, celsius, count: count == 2 and celsius < 0),
        (field("sensor") == "sensor-8", lambda key, *_: key[0] == "sensor-8"),
        (field("m0").is_in([3, 7]) | (field("celsius") == 9), lambda key, celsius, _: key[1] in (3, 7) or celsius == 9),
        (~(field("m0") > -18), lambda key, *_: key[1] <= -18),
        (field("celsius").is_null(), lambda *_: False),
    ]
    for predicate, test in asked:
        assert await read.keys(where=predicate) == chosen(test)
        assert await read.keys(where=predicate, keys_only=True) == chosen(test)
    scan = read.client.scan_all(APPLICATION, STATE, where=field("celsius") >= 890, fields=["count", "celsius"], limit=3)
    found = [entry async for entry in scan]
    assert [(dict(entry.value), entry.source.epoch) for entry in found] == [
        ({"count": 1, "celsius": float(entry.map_key)}, 1) for entry in found
    ]
    assert len(found) == 3
    # Its token names a place, whatever was asked for.
    rest = read.client.scan_all(APPLICATION, STATE, where=field("celsius") >= 890, after=scan.token)
    assert len([entry async for entry in rest]) == 7
    one = await read.client.scan(
        APPLICATION, STATE, "sensor-8", where=field("celsius") >= 0, fields=["celsius"], descending=True, limit=2
    )
    assert [(entry.map_key, dict(entry.value)) for entry in one] == [(19, {"celsius": 19.0}), (18, {"celsius": 18.0})]
    keys = await read.client.scan(APPLICATION, STATE, "sensor-8", where=field("count") == 2, start=18, keys_only=True)
    assert list(keys) == [(18, None), (19, None)]
    assert keys.epoch == 1
    nothing = await read.client.scan(APPLICATION, STATE, "sensor-8", where=field("count") > 2)
    assert (list(nothing), nothing.epoch) == ([], 1)


async def test_figures_over_all_entries_are_computed_by_the_servers(read: Read) -> None:
    found = await read.client.aggregate(
        APPLICATION,
        STATE,
        {
            "n": agg.count(),
            "sum": agg.sum("count"),
            "least": agg.min("celsius"),
            "most": agg.max("m0"),
            "mean": agg.avg("celsius"),
            "sensor": agg.max("sensor"),
            "hottest": agg.top(3, "celsius"),
            "coldest": agg.top(2, "celsius", smallest=True),
        },
        fields=["celsius"],
    )
    hottest, coldest = found["hottest"], found["coldest"]
    assert dict(found) == {
        "n": 940,
        "sum": 980,
        "least": -20.0,
        "most": 899,
        "mean": pytest.approx((sum(range(900)) + sum(range(-20, 20))) / 940),
        "sensor": "sensor-8",
        "hottest": hottest,
        "coldest": coldest,
    }
    assert [(entry.key, entry.map_key, dict(entry.value)) for entry in hottest] == [
        ("sensor-7", hour, {"celsius": float(hour)}) for hour in (899, 898, 897)
    ]
    assert [entry.map_key for entry in coldest] == [-20, -19]
    assert len(found.sources) == 1
    assert {source.epoch for source in found.sources} == {entry.source.epoch for entry in hottest} == {1}
    nothing = await read.client.aggregate(
        APPLICATION,
        STATE,
        {"n": agg.count(), "sum": agg.sum("count"), "top": agg.top(1, "count")},
        where=field("count") > 9,
    )
    assert dict(nothing) == {"n": 0, "sum": None, "top": []}
    assert await read.client.count(APPLICATION, STATE) == 940
    assert await read.client.count(APPLICATION, STATE, where=field("sensor") == "sensor-8") == 40


async def test_aggregates_that_can_not_be_are_refused_by_their_names(read: Read) -> None:
    for asked, said in (
        (agg.sum("sensor"), "'sensor' is of type string, of which there is no sum"),
        (agg.max("kelvin"), "no field 'kelvin'"),
    ):
        with pytest.raises(ValueMismatch, match=said):
            await read.client.aggregate(APPLICATION, STATE, {"x": asked})
    with pytest.raises(ValueMismatch, match="no field 'kelvin'"):
        await read.client.count(APPLICATION, STATE, where=field("kelvin") > 1)
    for given in ({}, {"x": 1}, agg.count(), {str(n): agg.count() for n in range(65)}):
        with pytest.raises(MalformedRequest, match="aggregate"):
            await read.client.aggregate(APPLICATION, STATE, given)
    for entries in (0, 1001, True):
        with pytest.raises(MalformedRequest, match="from 1 to 1,000"):
            agg.top(entries, "celsius")
    stub: Any = query_pb2_grpc.QueryStub(channel := channels.aio_channel(read.address))
    for wrong in (
        pb.ScanRequest(limit=1, aggregates=[predicate_pb2.Aggregate(kind=1)]),
        pb.ScanRequest(aggregates=[predicate_pb2.Aggregate()]),
        pb.ScanRequest(aggregates=[predicate_pb2.Aggregate(kind=2)]),
        pb.ScanRequest(aggregates=[predicate_pb2.Aggregate(kind=1, entries=1)]),
        pb.ScanRequest(aggregates=[predicate_pb2.Aggregate(kind=1)] * 65),
    ):
        wrong.state.CopyFrom(pb.StateRef(application=APPLICATION, state=STATE))
        wrong.key_group.key_group = 1
        error = await refusal_of(
            lambda seconds, wrong=wrong: collected(stub.Scan(wrong, timeout=seconds)),  # type: ignore[misc]
            5.0,
        )
        assert isinstance(error, MalformedRequest)
    await channel.close()


async def collected(call: Any) -> list[Any]:
    return [page async for page in call]


async def test_threads_and_handles_ask_alike(read: Read) -> None:
    def asked() -> list[Any]:
        with Client(read.address, timeout=PATIENCE_SECONDS) as client:
            state = client.state(PATH, value=dict)
            found = [entry.value for entry in state.scan_all(where=field("celsius") == 899, fields=["celsius"])]
            found += state.scan(sensor="sensor-8", where=field("m0") == 3, fields=["count"]).values
            found += (entry.value for entry in client.scan_all(*PATH.split("/"), keys_only=True, limit=1))
            found += [state.count(), client.count(*PATH.split("/"), where=field("count") == 2)]
            found.append(state.aggregate({"top": agg.top(1, "celsius")}, fields=["celsius"])["top"][0].value)
            return [*found, client.aggregate(*PATH.split("/"), {"most": agg.max("celsius")})["most"]]

    expected = [{"celsius": 899.0}, {"count": 2}, None, 940, 40, {"celsius": 899.0}, 899.0]
    assert await asyncio.to_thread(asked) == expected
    typed = read.client.state(PATH, value=dict)
    assert await typed.count(where=field("celsius") < 0) == 20
    assert (await typed.aggregate({"top": agg.top(1, "m0")}))["top"][0].value == {"celsius": 899.0, "count": 1}


async def test_what_does_not_fit_the_state_is_refused_by_its_name(read: Read) -> None:
    for where, said in ((field("kelvin") > 1, "'kelvin'; it has sensor"), (field("count") > "1", "'count' is of type")):
        with pytest.raises(ValueMismatch, match=said):
            await read.keys(where=where)
        with pytest.raises(ValueMismatch, match=said):
            await read.client.scan(APPLICATION, STATE, "sensor-8", where=where)
    with pytest.raises(ValueMismatch, match="no field 'kelvin'; it has celsius, count"):
        await read.keys(fields=["kelvin"])
    for options, said in (
        ({"where": True}, "a bool is no predicate"),
        ({"fields": "celsius"}, "a list of names"),
        ({"fields": []}, "a list of names"),
        ({"fields": ["celsius", "celsius"]}, "'celsius' twice"),
        ({"fields": ["celsius"], "keys_only": True}, "contradict"),
    ):
        with pytest.raises(MalformedRequest, match=said):
            read.client.scan_all(APPLICATION, STATE, **options)
        with pytest.raises(MalformedRequest, match=said):
            await read.client.scan(APPLICATION, STATE, "sensor-8", **options)


async def test_a_server_that_knows_of_no_selection_is_refused_and_its_rows_are_not_taken_for_chosen_ones() -> None:
    async with fake_servers("old") as (server,), proxy_of(server.address) as proxy:
        server.host(hourly(), ROWS)
        server.selects = False
        async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client:
            await known(client)
            everything = client.scan_all(APPLICATION, STATE)
            assert len([entry async for entry in everything]) == len(ROWS)
            with pytest.raises(Unsupported, match="old is of an earlier version"):
                await client.scan_all(APPLICATION, STATE, where=field("celsius") > 1).page()
            with pytest.raises(Unsupported, match="old is of an earlier version"):
                await client.scan(APPLICATION, STATE, "sensor-7", keys_only=True)
            with pytest.raises(Unsupported, match="old is of an earlier version"):
                await client.count(APPLICATION, STATE)


def evolved() -> StateDescriptor:
    before = hourly()
    fields = (ValueField("count", "bigint"), ValueField("city", "string", True, msgspec.msgpack.encode("Bern")))
    return msgspec.structs.replace(before, value=ValueSchema(2, fields), earlier=(before.value,))


async def test_a_field_that_is_added_while_a_client_reads_can_be_asked_for_and_one_that_is_gone_can_not() -> None:
    async with fake_servers("a") as (server,), AsyncClient(server.address, timeout=PATIENCE_SECONDS) as client:
        old: FakeServer = server
        old.host(hourly(), {("sensor-7", 1): row(1.0)})
        assert len(await client.scan_all(APPLICATION, STATE, where=field("celsius") > 0).page()) == 1
        old.host(evolved(), {("sensor-7", 1): row(1.0), ("sensor-7", 2): msgspec.msgpack.encode([2, 5, "Chur"])})
        assert (await client.aggregate(APPLICATION, STATE, {"city": agg.max("city")}))["city"] == "Chur"
        scan = client.scan_all(APPLICATION, STATE, where=field("city") == "Bern", fields=["city", "count"])
        assert [dict(entry.value) async for entry in scan] == [{"city": "Bern", "count": 1}]
        assert len(await client.scan(APPLICATION, STATE, "sensor-7", where=field("city") != "Bern")) == 1
        with pytest.raises(ValueMismatch, match="no field 'celsius'"):
            await client.scan_all(APPLICATION, STATE, where=field("celsius") > 0).page()
        with pytest.raises(ValueMismatch, match="no field 'celsius'"):
            await client.scan(APPLICATION, STATE, "sensor-7", fields=["celsius"])

"""Values that are large alone, or together: over real sockets, by every way that reads take."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import pytest

from keyhole import AsyncClient, Client
from keyhole.changelog.settings import MAX_RECORD_BYTES
from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyTooLong, NotOwner, NotReady, TooLarge
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.rpc import frames, status
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.frames import FRAME_BYTES, MAX_VALUE_BYTES
from keyhole.stores.base import StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, row, rows
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually

BLOBS, PARTS = "blobs", "parts"
NAMES = [f"blob-{number}" for number in range(64)]
REF = pb.StateRef(application=APPLICATION, state=BLOBS)
VALUE = ValueSchema(1, (ValueField("data", "binary"),))
_BYTES = 300_000
# Of a value whose row a changelog takes, with its key and what is stored beside it.
LARGEST_BYTES = MAX_RECORD_BYTES - 100


def blobs() -> StateDescriptor:
    of = descriptor(BLOBS, topic_id="topic-blobs")
    return msgspec.structs.replace(of, query="blobs", value=VALUE)


def parts() -> StateDescriptor:
    of = descriptor(PARTS, topic_id="topic-parts")
    map_key = (KeyColumn("number", KeyType.INT),)
    return msgspec.structs.replace(of, query="parts", kind=StateKind.MAP, map_key=map_key, value=VALUE)


def blob(data: bytes) -> bytes:
    """As stored."""
    return msgspec.msgpack.encode([1, data])


def data_of(number: int) -> bytes:
    return bytes([number]) * _BYTES


DATA = [data_of(number) for number in range(64)]


@dataclass
class Large:
    """A proxy before two servers: of the state with 64 large values, and of a state with small ones."""

    blobs_at: str
    small_at: str
    proxy: str
    http: str


@asynccontextmanager
async def large() -> AsyncIterator[Large]:
    async with AsyncExitStack() as stack:
        big = await stack.enter_async_context(state_server("big"))
        await big.own(blobs())
        await big.commit({name: blob(data) for name, data in zip(NAMES, DATA, strict=True)})
        small = await stack.enter_async_context(state_server("small"))
        await small.own(descriptor())
        await small.commit(rows(10))
        proxy = await stack.enter_async_context(
            proxy_of(big.address, small.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS)
        )
        await eventually(lambda: len(proxy._directory.tables) == 2)
        yield Large(big.address, small.address, proxy.address, proxy.http_address)


def client_of(address: str) -> AsyncClient:
    return AsyncClient(address, timeout=LONG_SECONDS)


async def celsius(client: AsyncClient, number: int) -> float:
    return float((await client.get(APPLICATION, STATE, f"sensor-{number}")).value.celsius)


async def test_many_large_values_come_beside_small_lookups_of_another_state_on_the_same_client() -> None:
    async with large() as served, client_of(served.proxy) as client:
        many = asyncio.create_task(client.get_many(APPLICATION, BLOBS, NAMES))
        small = [asyncio.create_task(celsius(client, number)) for number in range(10)]
        assert [answer.value.data for answer in await many] == DATA
        assert await asyncio.gather(*small) == [float(number) for number in range(10)]


async def test_they_come_one_by_one_in_sessions_from_the_server_itself_and_to_threads() -> None:
    async with large() as served, client_of(served.proxy) as client, client_of(served.blobs_at) as direct:
        alone = await asyncio.gather(*(direct.get(APPLICATION, BLOBS, name) for name in NAMES))
        assert [answer.value.data for answer in alone] == DATA
        session = client.session()
        in_session = await session.get_many(APPLICATION, BLOBS, NAMES)
        assert [answer.value.data for answer in in_session] == DATA
        assert session.epochs == {(APPLICATION, BLOBS): 1}

        def in_a_thread() -> list[bytes]:
            with Client(served.proxy, timeout=LONG_SECONDS) as threads:
                return [answer.value.data for answer in threads.get_many(APPLICATION, BLOBS, NAMES)]

        assert await asyncio.to_thread(in_a_thread) == DATA


async def test_they_come_in_one_batch_over_http_up_to_a_limit() -> None:
    async with large() as served, aiohttp.ClientSession() as http:
        url = f"http://{served.http}/v1/{APPLICATION}/{BLOBS}:batchGet?timeout={LONG_SECONDS}"
        async with http.post(url, data=json.dumps({"keys": NAMES})) as response:
            answers = json.loads(await response.read())["answers"]
        assert [base64.b64decode(answer["value"]["data"]) for answer in answers] == DATA
        async with http.post(url, data=json.dumps({"keys": 2 * NAMES})) as response:
            refused = json.loads(await response.read())
        assert (response.status, refused["reason"]) == (400, "TOO_LARGE")
        assert refused["facts"] == {"state": f"{APPLICATION}/{BLOBS}", "keys": "128", "limit": str(32 << 20)}


async def test_a_unary_call_carries_as_much_as_one_value_may_have_and_says_where_that_is_not_enough() -> None:
    async with large() as served:
        for address in (served.blobs_at, served.proxy):
            async with aio_channel(address) as channel:
                stub: Any = query_pb2_grpc.QueryStub(channel)
                keys = [pb.Key(parts=[pb.KeyPart(string=name)]) for name in NAMES]
                answers = (await stub.GetMany(pb.GetManyRequest(state=REF, keys=keys[:55]))).answers
                assert [answer.value for answer in answers] == [blob(data) for data in DATA[:55]]
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.GetMany(pb.GetManyRequest(state=REF, keys=keys))
                error = status.from_rpc_error(caught.value)
                assert isinstance(error, TooLarge)
                assert "these 64 keys of state weather/blobs take more than 16,777,216 bytes" in error.message


async def test_a_client_with_grpcs_default_limits_that_asks_for_what_failed_again_gets_all() -> None:
    """In any language: what was agreed on before there were full responses is enough."""
    codec = StateCodec(blobs())
    async with large() as served:
        for address in (served.blobs_at, served.proxy):
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = query_pb2_grpc.QueryStub(channel)
                call = stub.Lookup()
                left, got, frames = dict(enumerate(map(codec.storage_key, NAMES))), dict[int, bytes](), 0
                while left:
                    frames += 1
                    places = list(left)
                    await call.write(
                        pb.LookupRequest(frame=frames, state=REF, storage_keys=left.values(), topic_id="topic-blobs")
                    )
                    response = await call.read()
                    assert response.frame == frames
                    assert len(response.values) == len(left)
                    assert sum(map(len, response.values)) <= FRAME_BYTES
                    failed = {place for failure in response.failures for place in failure.indexes}
                    errors = [status.from_proto(failure.error) for failure in response.failures]
                    # Full, or (by the proxy) not waited for any longer beside those that are there.
                    assert all(isinstance(error, NotReady) and "ask_again" in error.facts for error in errors)
                    for at, place in enumerate(places):
                        if at not in failed:
                            got[place] = response.values[at]
                            del left[place]
                assert [got[place] for place in range(64)] == [blob(data) for data in DATA]
                assert 1 < frames < 64
                await call.done_writing()


async def test_ten_thousand_large_values_at_once_are_not_read_at_once(tmp_path: Path) -> None:
    engine = LmdbEngine(StoreLimits(tmp_path, 1 << 30))
    asked: list[int] = []

    async with (
        state_server("big", engine=engine) as server,
        proxy_of(server.address, timeout_seconds=LONG_SECONDS) as proxy,
    ):
        await server.own(blobs())
        await server.commit({name: blob(data) for name, data in zip(NAMES, DATA, strict=True)})
        (table,) = server.server._registry.tables.values()
        answers = table.owned.answers

        def noted(*arguments: Any) -> Any:
            found = answers(*arguments)
            asked.append(sum(map(len, filter(None, found.rows))))
            return found

        table.owned.answers = noted  # type: ignore[method-assign]
        keys = [StateCodec(blobs()).storage_key(name) for name in NAMES] * 157
        request = pb.LookupRequest(frame=1, state=REF, storage_keys=keys[:10_000], topic_id="topic-blobs")
        for address in (server.address, proxy.address):
            await eventually(lambda: proxy._directory.tables)
            async with aio_channel(address) as channel:
                stub: Any = query_pb2_grpc.QueryStub(channel)
                (response,) = [response async for response in stub.Lookup(iter([request]))]
            assert sum(map(bool, response.values)) == 6
            assert len(response.failures[0].indexes) == 10_000 - 6
    assert max(asked) <= FRAME_BYTES
    # How many frames are read before the first is answered is up to the machine: one in 50 ms.
    assert sum(asked) < sum(map(len, DATA)) * 157 / 20


async def test_the_largest_row_that_is_stored_is_read_by_every_way() -> None:
    data = bytes(LARGEST_BYTES)
    async with (
        state_server("server-a") as server,
        proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS) as proxy,
        client_of(proxy.address) as client,
        client_of(server.address) as direct,
    ):
        await server.own(blobs())
        await server.commit({"large": blob(data), "small": blob(b"s")})
        names = ["small", "large", "nobody", "small", "large"]
        for one in (client, direct):
            answers = await one.get_many(APPLICATION, BLOBS, names)
            assert [answer.value and answer.value.data for answer in answers] == [b"s", data, None, b"s", data]
        for address in (server.address, proxy.address):
            async with aio_channel(address) as channel:
                stub: Any = query_pb2_grpc.QueryStub(channel)
                key = pb.Key(parts=[pb.KeyPart(string="large")])
                assert (await stub.Get(pb.GetRequest(state=REF, key=key))).answer.value == blob(data)
                as_json = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Get(pb.GetRequest(state=REF, key=key, options=as_json))
                assert isinstance(status.from_rpc_error(caught.value), TooLarge)


@asynccontextmanager
async def too_large() -> AsyncIterator[tuple[FakeServer, FakeServer, str]]:
    """Two servers with half of the blobs each, of which blob-7 is larger than any message; and a proxy."""
    async with fake_servers("a", "b") as (a, b):
        halves = (range(8), range(8, KEY_GROUPS))
        values = {name: blob(name.encode()) for name in NAMES} | {NAMES[7]: blob(bytes(MAX_VALUE_BYTES))}
        for server, groups in zip((a, b), halves, strict=True):
            server.host(blobs(), values, groups)
        async with proxy_of(a.address, b.address, timeout_seconds=LONG_SECONDS) as proxy:
            yield a, b, proxy.address


async def test_a_value_that_no_message_carries_fails_for_its_caller_alone_who_learns_which_and_how_large() -> None:
    async with too_large() as (_, _, address), client_of(address) as client:
        wanted = [client.get(APPLICATION, BLOBS, name) for name in NAMES]
        many = asyncio.create_task(client.get_many(APPLICATION, BLOBS, NAMES))
        others = asyncio.create_task(client.get_many(APPLICATION, BLOBS, NAMES[8:]))
        alone = await asyncio.gather(*wanted, return_exceptions=True)
        error = alone.pop(7)
        assert isinstance(error, TooLarge)
        size = len(blob(bytes(MAX_VALUE_BYTES)))
        assert f"a key of state weather/blobs takes {size:,} bytes, and 16,777,216 is the most" in error.message
        assert error.facts == {"state": "weather/blobs", "bytes": str(size), "limit": str(MAX_VALUE_BYTES)}
        assert [answer if isinstance(answer, BaseException) else answer.value.data.decode() for answer in alone] == [
            *NAMES[:7],
            *NAMES[8:],
        ]
        with pytest.raises(
            TooLarge, match="key 8 of the 64 that were asked for: the value of a key of state"
        ) as caught:
            await many
        assert caught.value.facts == {**error.facts, "index": "7"}
        assert [answer.value.data.decode() for answer in await others] == NAMES[8:]


async def test_it_says_the_same_to_callers_in_other_languages_and_over_http() -> None:
    async with (
        too_large() as (a, b, _),
        proxy_of(a.address, b.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS) as proxy,
        aio_channel(proxy.address) as channel,
        aiohttp.ClientSession() as http,
    ):
        await eventually(lambda: proxy._directory.tables)
        keys = [pb.Key(parts=[pb.KeyPart(string=name)]) for name in NAMES]
        stub: Any = query_pb2_grpc.QueryStub(channel)
        (response,) = [of async for of in stub.Lookup(iter([pb.LookupRequest(frame=1, state=REF, keys=keys)]))]
        (failure,) = response.failures
        assert list(failure.indexes) == [7]
        assert isinstance(status.from_proto(failure.error), TooLarge)
        assert response.values[8] == blob(b"blob-8")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetMany(pb.GetManyRequest(state=REF, keys=keys))
        assert status.from_rpc_error(caught.value).facts["index"] == "7"
        url = f"http://{proxy.http_address}/v1/{APPLICATION}/{BLOBS}"
        async with http.get(f"{url}/blob-7") as alone, http.post(f"{url}:batchGet", data='{"keys": ["blob-7"]}') as one:
            for refused in (alone, one):
                body = json.loads(await refused.read())
                assert (refused.status, body["reason"], body["facts"]["index"]) == (400, "TOO_LARGE", "0")


async def test_large_keys_travel_in_frames_of_their_own_size_and_one_that_is_too_long_fails_alone() -> None:
    long = [f"{number}-".ljust(480, "k") for number in range(6_000)]
    async with state_server("server-a") as server, proxy_of(server.address, timeout_seconds=LONG_SECONDS) as proxy:
        await server.own(descriptor())
        await server.commit({name: row(float(number)) for number, name in enumerate(long)})
        for address in (server.address, proxy.address):
            async with client_of(address) as client:
                whole = asyncio.create_task(client.get_many(APPLICATION, STATE, long))
                bad = [client.get(APPLICATION, STATE, "k" * size) for size in (600, 3 << 20)]
                good = [client.get(APPLICATION, STATE, name) for name in long[:20]]
                huge = asyncio.gather(
                    *(client.get(APPLICATION, STATE, f"{at}".ljust(200_000)) for at in range(20)),
                    return_exceptions=True,
                )
                assert [answer.value.celsius for answer in await whole] == [float(at) for at in range(6_000)]
                assert [answer.value.celsius for answer in await asyncio.gather(*good)] == [
                    float(at) for at in range(20)
                ]
                refused = [*await asyncio.gather(*bad, return_exceptions=True), *await huge]
                assert {type(error) for error in refused} == {KeyTooLong}


async def test_scans_of_large_entries_come_page_by_page_and_over_http_with_where_to_go_on() -> None:
    sizes = [10, LARGEST_BYTES, 5 << 20, 200_000, 200_000, LARGEST_BYTES, 1 << 20, 10]
    entries = [(number, bytes([number]) * size) for number, size in enumerate(sizes)]
    async with (
        state_server("server-a") as server,
        proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS) as proxy,
        client_of(proxy.address) as client,
        aiohttp.ClientSession() as http,
    ):
        await server.own(parts())
        for number, data in entries:
            await server.commit({("key", number): blob(data)})
        scanned = await client.scan(APPLICATION, PARTS, "key")
        assert [(entry.map_key, entry.value.data) for entry in scanned] == entries
        for descending in (False, True):
            found: list[tuple[int, bytes]] = []
            bound: Callable[[Any], str] = (lambda at: f"&to={at}") if descending else (lambda at: f"&from={at}")
            more = ""
            for _ in range(len(entries)):
                url = f"http://{proxy.http_address}/v1/{APPLICATION}/{PARTS}/key?descending={json.dumps(descending)}"
                async with http.get(f"{url}{more}") as response:
                    answer = json.loads(await response.read())
                assert answer["entries"], answer
                found += [(of["map_key"], base64.b64decode(of["value"]["data"])) for of in answer["entries"]]
                if answer["next"] is None:
                    break
                more = bound(answer["next"])
            assert found == (entries[::-1] if descending else entries)


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """The names and bodies of the events of a watch over HTTP, as they come."""
    while True:
        event = (await response.content.readuntil(b"\n\n")).decode()
        fields = dict(line.split(": ", 1) for line in event.splitlines() if line)
        if "event" in fields:  # and not how long to wait before the next connection
            yield fields["event"], json.loads(fields["data"])


async def test_a_watch_and_a_mirror_have_large_values_and_a_change_what_was_before_it() -> None:
    """As JSON each takes a third more, and both together more than a message that is asked."""
    first, second = bytes(7 << 20), bytes([1]) * (7 << 20)
    huge = bytes(LARGEST_BYTES)
    async with (
        state_server("server-a") as server,
        proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS) as proxy,
        client_of(proxy.address) as client,
        aiohttp.ClientSession(read_bufsize=1 << 26) as http,
    ):
        await server.own_new(blobs())
        await server.commit({"a": blob(first), "b": blob(huge), "c": blob(b"c")})
        await eventually(lambda: proxy._directory.tables)
        url = f"http://{proxy.http_address}/v1/{APPLICATION}/{BLOBS}:watch?before=true&key=a"
        path = f"{APPLICATION}/{BLOBS}"
        async with client.mirror(path, max_bytes=1 << 27) as mirror, http.get(url) as events:
            assert {entry.key: len(entry.value.data) for entry in mirror} == {"a": len(first), "b": len(huge), "c": 1}
            watch = aiter(client.watch(APPLICATION, BLOBS, "a", "c", before=True))
            assert {(await anext(watch)).key for _ in range(2)} == {"a", "c"}
            came = events_of(events)
            names = set()
            async for name, body in came:
                names.add(name)
                if body["snapshot_done"]:
                    break
            assert names - {"progress"} == {"rows"}
            await server.commit({"a": blob(second), "b": blob(huge), "c": blob(b"d")})
            changes = {change.key: change for change in [await anext(watch) for _ in range(2)]}
            assert (changes["a"].value.data, changes["a"].before.data) == (second, first)
            assert changes["c"].value.data == b"d"
            await mirror.wait_for(2)
            assert mirror.get("a").value.data == second
            while (event := await anext(came))[0] != "changes":
                assert event[0] == "progress"  # nothing has changed yet
            (change,) = event[1]["changes"]
            assert base64.b64decode(change["value"]["data"]) == second
            assert base64.b64decode(change["before"]["data"]) == first


async def test_json_is_cut_by_its_own_size_and_says_where_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the state server itself: what its store holds is as large as the limit is here."""
    monkeypatch.setattr(frames, "MAX_VALUE_BYTES", 3 << 20)
    stored = {"a": bytes(1 << 20), "b": bytes(1_100_000), "c": bytes(4 << 20), "d": b"d", "e": bytes(2_500_000)}
    stored |= {"f": bytes(900_000)}
    codec = StateCodec(blobs())
    async with state_server("server-a") as server, proxy_of(server.address, timeout_seconds=LONG_SECONDS) as proxy:
        await server.own(blobs())
        await server.commit({name: blob(data) for name, data in stored.items()})
        await eventually(lambda: proxy._directory.tables)
        for address in (server.address, proxy.address):
            async with aio_channel(address) as channel:
                stub: Any = query_pb2_grpc.QueryStub(channel)

                async def answered(
                    names: str, options: pb.ReadOptions | None = None, stub: Any = stub
                ) -> tuple[list[bool], dict[int, str]]:
                    keys = [codec.storage_key(name) for name in names]
                    request = pb.LookupRequest(
                        frame=1, state=REF, storage_keys=keys, topic_id="topic-blobs", options=options
                    )
                    (response,) = [response async for response in stub.Lookup(iter([request]))]
                    errors = {at: status.from_proto(of.error) for of in response.failures for at in of.indexes}
                    reasons = {
                        at: "again" if "ask_again" in error.facts else error.reason for at, error in errors.items()
                    }
                    return [bool(value) for value in response.values], reasons

                assert await answered("abx") == ([True, False, False], {1: "again", 2: "again"})
                assert await answered("xcx") == ([False, False, False], {1: "TOO_LARGE"})
                assert await answered("e") == ([True], {})
                json_ = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
                assert await answered("daxd", json_) == ([True, True, False, True], {})
                assert await answered("ffd", json_) == ([True, False, True], {1: "again"})
                assert await answered("de", json_) == ([True, False], {1: "again"})
                assert await answered("ed", json_) == ([False, False], {0: "TOO_LARGE", 1: "again"})


async def test_key_groups_that_are_elsewhere_and_keys_that_are_too_long_leave_the_others_what_room_there_is() -> None:
    codec = StateCodec(blobs())
    here = [name for name in NAMES if codec.storage_key(name)[1] < 8]
    away = next(name for name in NAMES if codec.storage_key(name)[1] >= 8)
    async with state_server("server-a") as server:
        await server.own(blobs(), range(8))
        await server.commit({name: blob(bytes(_BYTES)) for name in here})
        async with aio_channel(server.address) as channel:
            stub: Any = query_pb2_grpc.QueryStub(channel)
            keys = [codec.storage_key(name) for name in (away, *here)]
            keys.insert(3, keys[2].ljust(600, b"k"))
            request = pb.LookupRequest(frame=1, state=REF, storage_keys=keys, topic_id="topic-blobs")
            (response,) = [response async for response in stub.Lookup(iter([request]))]
    errors = {at: status.from_proto(of.error) for of in response.failures for at in of.indexes}
    assert isinstance(errors[0], NotOwner)
    assert isinstance(errors[3], KeyTooLong)
    full = {at for at, error in errors.items() if "full" in error.facts}
    assert set(errors) == {0, 3} | full
    assert [bool(value) for value in response.values] == [at not in errors for at in range(len(keys))]
    assert sum(map(bool, response.values)) == FRAME_BYTES // _BYTES

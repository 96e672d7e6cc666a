"""Watches whose values take far more as JSON than they do in a store: what is too much for a message comes in several,
and what no message carries is told by its key.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import msgspec
import pytest

from keyhole import AsyncClient
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import TooLarge
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.rpc import frames, status
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.convert import key_to_proto
from keyhole.rpc.frames import FRAME_BYTES, MAX_RESPONSE_BYTES
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, descriptor
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, eventually

WIDE, BLOBS, PARTS = "wide", "blobs", "parts"
_COLUMNS, _ROWS = 300, 500


def wide() -> StateDescriptor:
    """A row takes 300 bytes in a store, and 78 KB as JSON: 500 rows are 39 MB."""
    fields = tuple(ValueField(f"column_{number:03d}_{'x' * 240}", "boolean") for number in range(_COLUMNS))
    return msgspec.structs.replace(descriptor(WIDE, topic_id="wide"), query=WIDE, value=ValueSchema(1, fields))


def blobs() -> StateDescriptor:
    value = ValueSchema(1, (ValueField("data", "binary"),))
    return msgspec.structs.replace(descriptor(BLOBS, topic_id="blobs"), query=BLOBS, value=value)


def parts() -> StateDescriptor:
    map_key = (KeyColumn("number", KeyType.INT),)
    of = msgspec.structs.replace(blobs(), state=PARTS, query=PARTS, topic_id="parts", kind=StateKind.MAP)
    return msgspec.structs.replace(of, map_key=map_key)


def blob(size: int) -> bytes:
    return msgspec.msgpack.encode([1, bytes(size)])


def some_keys(of: StateDescriptor, groups: Iterable[int], count: int) -> list[str]:
    """Keys of these key groups, in the order in which they are stored."""
    codec, among = StateCodec(of), frozenset(groups)
    names = (f"key-{number}" for number in itertools.count())
    found = itertools.islice((name for name in names if group_of(codec.storage_key(name)) in among), count)
    return sorted(found, key=codec.storage_key)


class Events:
    """The events of one stream, and the last id."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.last_id = ""

    async def next(self) -> tuple[str, dict[str, Any]]:
        fields: dict[str, str] = {}
        while (line := (await self._response.content.readline()).decode()) != "\n":
            assert line, "the stream has ended"
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
        self.last_id = fields.get("id", self.last_id)
        return fields.get("event", ""), json.loads(fields.get("data", "{}"))

    async def gathered(self, kind: str, count: int) -> dict[str, Any]:
        """So many rows or changes, by key; each comes once."""
        found: dict[str, Any] = {}
        while len(found) < count:
            event, data = await self.next()
            assert event != "error", data
            if event == kind:
                assert not found.keys() & {change["key"] for change in data["changes"]}
                found |= {change["key"]: change for change in data["changes"]}
        return found


class Served:
    def __init__(self, server: RunningServer, proxy: Any, http: aiohttp.ClientSession) -> None:
        self.server, self.proxy, self.http = server, proxy, http

    @asynccontextmanager
    async def events(self, state: str, parameters: str = "") -> AsyncIterator[Events]:
        url = f"http://{self.proxy.http_address}/v1/{APPLICATION}/{state}:watch{parameters}"
        async with asyncio.timeout(LONG_SECONDS), self.http.get(url) as response:
            yield Events(response)


@asynccontextmanager
async def served(of: StateDescriptor, rows: dict[Any, bytes]) -> AsyncIterator[Served]:
    async with (
        state_server("server-a") as server,
        proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=LONG_SECONDS) as proxy,
        aiohttp.ClientSession(read_bufsize=1 << 26) as http,
    ):
        await server.own_new(of)
        await server.commit(rows)
        await eventually(lambda: proxy._directory.tables)
        yield Served(server, proxy, http)


async def watched(address: str, state: str, count: int, token: str = "") -> list[pb.WatchResponse]:
    """Messages of a watch as JSON, until so many rows have come."""
    found: list[pb.WatchResponse] = []
    ref = pb.StateRef(application=APPLICATION, state=state)
    async with aio_channel(address) as channel, asyncio.timeout(LONG_SECONDS):
        stub: Any = query_pb2_grpc.QueryStub(channel)
        call = stub.Watch(pb.WatchRequest(state=ref, format=pb.VALUE_FORMAT_JSON, token=token))
        async for response in call:
            found.append(response)
            if sum(len(changes.keys) for of in found for changes in of.changes) >= count:
                call.cancel()
                break
    return found


def keys_of(responses: Iterable[pb.WatchResponse]) -> list[bytes]:
    return [key for response in responses for changes in response.changes for key in changes.keys]


async def test_rows_and_changes_that_are_too_much_as_json_for_a_message_come_in_several_each_once() -> None:
    of = wide()
    names = some_keys(of, [0], _ROWS)
    first, second = (msgspec.msgpack.encode([1, *[value] * _COLUMNS]) for value in (True, False))
    taken = len(StateCodec(of).rows.to_json(first)) * _ROWS
    assert taken > MAX_RESPONSE_BYTES, "all together they would be no message"
    async with served(of, dict.fromkeys(names, first)) as at:
        for address in (at.server.address, at.proxy.address):
            responses = await watched(address, WIDE, _ROWS)
            assert max(response.ByteSize() for response in responses) < FRAME_BYTES + (1 << 17)
            assert len(keys_of(responses)) == len(set(keys_of(responses))) == _ROWS
            # One can go on behind each of them, at the next row.
            before = [response for response in responses if response.changes][: taken // FRAME_BYTES // 2]
            rest = await watched(address, WIDE, _ROWS - len(keys_of(before)), before[-1].token)
            assert not set(keys_of(rest)) & set(keys_of(before))
            assert set(keys_of(rest)) | set(keys_of(before)) == set(keys_of(responses))
        async with at.events(WIDE) as events:
            rows = await events.gathered("rows", _ROWS)
            assert rows.keys() == set(names)
            assert all(all(row["value"].values()) for row in rows.values())
            await at.server.commit(dict.fromkeys(names, second))
            changes = await events.gathered("changes", _ROWS)
            assert changes.keys() == set(names)
            assert not any(any(change["value"].values()) for change in changes.values())
            token = events.last_id
        # It goes on behind the end of the last message, though parts of it had no id.
        await at.server.commit({names[0]: first})
        async with at.events(WIDE, f"?after={token}") as events:
            assert (await events.gathered("changes", 1)).keys() == {names[0]}


async def test_a_client_has_each_change_of_an_epoch_that_came_in_parts_and_goes_on_between_any_two() -> None:
    names = some_keys(blobs(), [0], 6)
    size = FRAME_BYTES * 2 // 3
    async with (
        served(blobs(), {name: blob(size) for name in names}) as at,
        AsyncClient(at.proxy.address, timeout=LONG_SECONDS) as client,
    ):
        async with asyncio.timeout(LONG_SECONDS), client.mirror(f"{APPLICATION}/{BLOBS}") as mirror:
            watch = client.watch(APPLICATION, BLOBS)
            changes = aiter(watch)
            assert {(await anext(changes)).key for _ in names} == set(names)
            await at.server.commit({name: blob(size + 1) for name in names})
            tokens, given = [], []
            for number in range(len(names)):
                change = await anext(changes)
                assert (change.epoch, len(change.value.data)) == (2, size + 1)
                tokens.append((number, watch.token))
                given.append(change.key)
            await mirror.wait_for(2)
            assert {len(entry.value.data) for entry in mirror} == {size + 1}
        await at.server.commit({names[0]: blob(7)})
        for number, token in tokens:
            async with asyncio.timeout(LONG_SECONDS):
                rest = aiter(client.watch(APPLICATION, BLOBS, after=token))
                found = [await anext(rest) for _ in range(len(names) - number)]
                assert [change.key for change in found[:-1]] == given[number + 1 :]
                assert (found[-1].key, found[-1].epoch, len(found[-1].value.data)) == (names[0], 3, 7)


@pytest.mark.parametrize("before", [False, True])
async def test_a_value_that_no_message_carries_ends_a_watch_with_its_key_its_size_and_the_limit(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_VALUE_BYTES", 3 << 20)
    large = 2_500_000  # in a store; 3,333,336 and what stands around it as JSON
    async with (
        served(blobs(), {"a": blob(1), "ü": blob(large if before else 1)}) as at,
        at.events(BLOBS, "?snapshot=false" + ("&before=true" if before else "")) as events,
    ):
        await events.next()
        await at.server.commit({"ü": blob(1 if before else large)})
        kind, data = await events.next()
        while kind != "error":
            assert kind in ("", "progress"), data
            kind, data = await events.next()
    what = "the earlier value" if before else "the value"
    assert data["reason"] == "TOO_LARGE"
    assert data["detail"].startswith(f'{what} of key "ü" of state {APPLICATION}/{BLOBS} takes 3,333,')
    assert "3,145,728 is the most" in data["detail"]
    assert data["facts"]["key"] == '"ü"'
    assert (data["facts"]["limit"], int(data["facts"]["bytes"]) > 3_333_336) == ("3145728", True)


async def test_it_is_told_by_its_map_key_too_where_a_watch_begins_with_it_and_where_a_scan_as_json_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_VALUE_BYTES", 3 << 20)
    async with served(parts(), {("a", 1): blob(1), ("a", 7): blob(2_500_000)}) as at:
        async with at.events(PARTS) as events:
            kind, data = await events.next()
            while kind != "error":
                kind, data = await events.next()
        assert data["detail"].startswith('the value of key "a" map key 7 of state')
        assert (data["facts"]["key"], data["facts"]["map_key"]) == ('"a"', "7")
        ref = pb.StateRef(application=APPLICATION, state=PARTS)
        columns = (KeyColumn("sensor", KeyType.STRING),)
        options = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
        scan = pb.ScanRequest(state=ref, key=key_to_proto(columns, "a"), options=options)
        async with aio_channel(at.proxy.address) as channel:
            stub: Any = query_pb2_grpc.QueryStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Scan(scan, timeout=LONG_SECONDS):
                    pass
        error = status.from_rpc_error(caught.value)
        assert isinstance(error, TooLarge)
        assert error.message.startswith('the value of key "a" map key 7 of state')

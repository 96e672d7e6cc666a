"""Names of columns, fields, states, applications and queries: a real state server, a proxy and its HTTP gateway."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import grpc
import msgspec
import pyarrow as pa
import pytest
from yarl import URL

from keyhole import AsyncClient, field
from keyhole.encoding.columnar import SEQUENCE, STORAGE_KEY, VALUE, encode
from keyhole.errors import KeyMismatch, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.registration import settled
from keyhole.rpc import status
from keyhole.spark.worker.aggregating import staged_aggregate
from tests.support.hostile_names import OF_FIELDS, OF_KEYS, OF_STATES, attribute
from tests.support.http_values import plain
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import descriptor as readings
from tests.support.readings import rows as readings_rows
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually

FIELDS = dict(zip(OF_FIELDS, range(len(OF_FIELDS)), strict=True))
KINDS = list(StateKind)
# An earlier version let it be declared.
NAMELESS = ValueField("s", "struct<:int>")


@dataclass(frozen=True)
class Case:
    """A state of a kind, whose columns have all names between them; `turn` says which has which role."""

    kind: StateKind
    turn: int

    @property
    def parts(self) -> tuple[list[str], list[str], list[str]]:
        """The names of the key's, the map key's and the value's columns; the last of these is a struct."""
        names = list(OF_KEYS)
        key, map_key, value = (names[(self.turn + role) % 3 :: 3] for role in range(3))
        if self.kind is StateKind.MAP:
            return key, map_key, [*value, "nested"]
        return [*key, *map_key], [], [*value, "nested"]

    @property
    def of(self) -> StateDescriptor:
        key, map_key, value = self.parts
        fields = [ValueField(name, "bigint") for name in value[:-1]]
        fields.append(ValueField(value[-1], f"struct<{','.join(f'{name}:bigint' for name in OF_FIELDS)}>"))
        described = StateDescriptor(
            application=self._one_of_states(0),
            state=self._one_of_states(5),
            query=self._one_of_states(9),
            kind=self.kind,
            key_groups=1 if self.kind is StateKind.BROADCAST else 4,
            key=tuple(KeyColumn(name, KeyType.SMALLINT) for name in key),
            map_key=tuple(KeyColumn(name, KeyType.SMALLINT) for name in map_key),
            value=ValueSchema(1, tuple(fields)),
            reducers=("sum",) * len(value[:-1]) + ("last",) if self.kind is StateKind.REDUCING else (),
            max_length=3 if self.kind is StateKind.LIST else 0,
            index=tuple(value[:-1]),
        )
        return settled(None, described)

    def _one_of_states(self, place: int) -> str:
        """Another one in each of the cases, of which there are more than names."""
        return OF_STATES[(3 * KINDS.index(self.kind) + self.turn + place) % len(OF_STATES)]

    @property
    def value(self) -> dict[str, Any]:
        *plain_names, nested = self.parts[2]
        return dict(zip(plain_names, range(len(plain_names)), strict=True)) | {nested: FIELDS}

    def rows(self) -> pa.RecordBatch:
        """One row, whose columns stand in another order than they are declared in."""
        key, map_key, value = self.parts
        struct = pa.struct([(name, pa.int64()) for name in OF_FIELDS])
        columns = {name: pa.array([number], pa.int16()) for number, name in enumerate(key)}
        columns |= {name: pa.array([number], pa.int16()) for number, name in enumerate(map_key)}
        columns |= {name: pa.array([self.value[name]], pa.int64()) for name in value[:-1]}
        columns[value[-1]] = pa.array([FIELDS], struct)
        columns[SEQUENCE] = pa.array([0], pa.int64())
        names = list(reversed(columns))
        encoded = encode(pa.RecordBatch.from_arrays([columns[name] for name in names], names=names), self.of)
        if self.kind is not StateKind.AGGREGATING:
            return encoded
        staged = [staged_aggregate(row, b"", 1) for row in encoded.column(VALUE).to_pylist()]
        return pa.record_batch({STORAGE_KEY: encoded.column(STORAGE_KEY), VALUE: pa.array(staged, pa.binary())})


def check(row: Any, case: Case) -> None:
    """By item, by attribute, and as a whole."""
    assert plain(row) == case.value
    for name, value in case.value.items():
        assert plain(row[name]) == value
        if spelled := attribute(name):
            assert plain(getattr(row, spelled)) == value
    nested = row[case.parts[2][-1]]
    for name, number in FIELDS.items():
        assert nested[name] == number
        if spelled := attribute(name):
            assert getattr(nested, spelled) == number


async def check_selected(client: AsyncClient, case: Case) -> None:
    """Found by a predicate on any of its fields, by an index of it or without, and with one field alone."""
    name, parts, nested = (case.of.application, case.of.state), case.parts, case.parts[2][-1]
    looked_at = [field(of, of="key") == number for part in parts[:2] for number, of in enumerate(part)]
    if case.kind is StateKind.LIST and "position" in parts[0]:
        with pytest.raises(ValueMismatch, match=r"'position' is a column of the key .*, and what its elements' places"):
            await anext(aiter(client.scan_all(*name, where=looked_at[parts[0].index("position")])))
        with pytest.raises(ValueMismatch, match="has a column position in its key, which is what elements' places are"):
            await client.scan_all(*name).to_arrow()
        del looked_at[parts[0].index("position")]
    looked_at += [field(of, of="value") == case.value[of] for of in parts[2][:-1]]
    looked_at += [field(nested, of) == number for of, number in FIELDS.items()]
    # Of one kind each by itself: so many scans take a while.
    alone = looked_at if case.kind is StateKind.VALUE else []
    for where in (functools.reduce(operator.and_, looked_at), *alone):
        assert [plain(entry.value) async for entry in client.scan_all(*name, where=where)] == [case.value], where
    assert not [entry async for entry in client.scan_all(*name, where=~functools.reduce(operator.and_, looked_at))]
    for fields in (parts[2][::-1], *([of] for of in parts[2][: len(alone)])):
        found = [plain(entry.value) async for entry in client.scan_all(*name, fields=fields)]
        assert found == [{of: case.value[of] for of in fields}]
    watch = client.watch(*name, where=field(nested, "type") == FIELDS["type"])
    async with watch:
        assert plain((await anext(aiter(watch))).value) == case.value
    async with client.mirror("/".join(name)) as mirror:
        assert [plain(entry.value) for entry in mirror] == [case.value]


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("kind", KINDS)
async def test_a_state_of_any_names_is_described_read_and_scanned_over_grpc_and_http(
    kind: StateKind, turn: int
) -> None:
    case = Case(kind, turn)
    of = case.of
    key, map_key = (tuple(range(len(part))) for part in case.parts[:2])
    async with (
        state_server("server-a") as server,
        proxy_of(server.address, http="127.0.0.1:0") as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
        aiohttp.ClientSession() as http,
    ):
        await server.own(of)
        await server.commit_encoded(case.rows())
        name = of.application, of.state
        await eventually(lambda: name in proxy._directory.tables)
        described = await client.describe_state(*name)
        assert described.key == of.key
        assert described.map_key == of.map_key
        assert described.value == of.value
        # --- over gRPC
        if kind is not StateKind.LIST:
            answer = await client.get(*name, (*key, *map_key))
            check(answer.value, case)
        if of.entry_key:
            entries = await client.scan(*name, () if kind is StateKind.BROADCAST else key)
            (entry,) = entries
            check(entry.value, case)
            if kind is not StateKind.LIST:
                assert entry.map_key == (key if kind is StateKind.BROADCAST else map_key)
        await check_selected(client, case)
        with pytest.raises(KeyMismatch) as refused:
            await client.get(*name, "x")
        assert of.key[0].name in refused.value.message
        # --- over HTTP
        path = f"http://{proxy.http_address}/v1/{of.application}/{of.state}"

        async def ask(path: str, **query: object) -> Mapping[str, Any]:
            parameters = "&".join(f"{parameter}={quote(json.dumps(given))}" for parameter, given in query.items())
            async with http.get(URL(f"{path}?{parameters}", encoded=True)) as response:
                body: Mapping[str, Any] = json.loads(await response.read())
                assert response.status == body.get("status", 200)
                return body

        body = await ask(path)
        assert [of["name"] for of in body["value"]["fields"]] == case.parts[2]
        assert [column["name"] for column in body["key"]] == case.parts[0]
        spelled, wrong = (quote(json.dumps(of), safe="") for of in (key, ["x"] * len(key)))
        if kind is StateKind.BROADCAST:
            (one,) = (await ask(f"{path}:scan"))["entries"]
            assert (one["map_key"], one["value"]) == (list(key), case.value)
        if kind in (StateKind.MAP, StateKind.LIST):
            (one,) = (await ask(f"{path}/{spelled}"))["entries"]
            assert one["value"] == case.value
        one_entry = {"map_key": map_key} if kind is StateKind.MAP else {}
        if kind is not StateKind.LIST:
            assert (await ask(f"{path}/{spelled}", **one_entry))["value"] == case.value
        assert of.key[0].name in (await ask(f"{path}/{wrong}", **one_entry))["detail"]


async def test_an_assignment_that_is_refused_says_why_and_the_next_one_succeeds() -> None:
    unusable = readings("counts")
    unusable = msgspec.structs.replace(unusable, value=ValueSchema(1, (*unusable.value.fields, NAMELESS)))
    async with state_server("server-a") as server, AsyncClient(server.address, timeout=LONG_SECONDS) as client:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await server.own(unusable)
            refused = status.from_rpc_error(caught.value)
            assert isinstance(refused, ValueMismatch)
            assert "state weather/counts can't be used: field 's'" in refused.message
        await server.own(readings("counts"))
        await server.commit(readings_rows(3))
        assert (await client.get("weather", "counts", "sensor-2")).value.celsius == 2.0


async def test_a_state_that_can_not_be_used_is_told_by_name_and_others_are_read() -> None:
    """A server of an earlier version may tell of it."""
    broken = readings("broken", topic_id="topic-2")
    async with (
        fake_servers("server-1") as (server,),
        proxy_of(server.address, http="127.0.0.1:0") as proxy,
        aiohttp.ClientSession() as http,
    ):
        server.host(broken, readings_rows(3)).descriptor = msgspec.structs.replace(
            broken, value=ValueSchema(1, (*broken.value.fields, NAMELESS))
        )
        server.host(readings(), readings_rows(3))
        await eventually(lambda: len(proxy._directory.tables) == 2)
        for target in (proxy.address, server.address):
            async with AsyncClient(target, timeout=LONG_SECONDS) as client:
                with pytest.raises(ValueMismatch, match="state weather/broken can't be used: field 's'"):
                    await client.get("weather", "broken", "sensor-1")
                assert (await client.get("weather", "readings", "sensor-1")).value.celsius == 1.0
                assert {of.state for of in await client.list_states()} == {"broken", "readings"}
        async with http.get(f"http://{proxy.http_address}/v1/weather/broken/x") as response:
            problem = json.loads(await response.read())
        assert "state weather/broken can't be used: field 's'" in problem["detail"]

"""Reads over HTTP through a real proxy: what they say beside values, what is refused, and who takes too long."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from keyhole import AsyncClient
from keyhole.clock import SystemClock
from keyhole.config import ClientProxyConfig
from keyhole.discovery import StaticDiscovery
from keyhole.errors import InvalidConfiguration, KeyholeError, ServerLost, Unsupported
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy
from keyhole.model.read import Role
from keyhole.model.state import KeyColumn, KeyType, StateKind, ValueField, ValueSchema
from keyhole.rpc.http.port import HttpLimits, HttpPort
from keyhole.rpc.http.problems import http_status, problem
from keyhole.security import tokens
from keyhole.security.credentials import Credentials
from keyhole.security.guard import PortGuard
from keyhole.testing.fake_server import FakeServer
from services.client_proxy.app import ClientProxy
from services.client_proxy.http.http_reads import HttpReads
from tests.support.certificates import Authority
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.refusals import longer_and_longer, raised_at_deadline
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

PATH = f"/v1/{APPLICATION}/{STATE}"
RULES = msgspec.structs.replace(
    descriptor("rules", topic_id="topic-2"),
    kind=StateKind.BROADCAST,
    key_groups=1,
    value=ValueSchema(1, (ValueField("n", "int"),)),
)
HOURS = msgspec.structs.replace(
    descriptor("hours", topic_id="topic-3"), kind=StateKind.MAP, map_key=(KeyColumn("hour", KeyType.INT),)
)


@dataclass
class Served:
    server: FakeServer
    proxy: ClientProxy
    http: aiohttp.ClientSession

    async def ask(self, path: str, method: str = "GET", **more: Any) -> tuple[int, Any]:
        """Status, and body."""
        url = f"http://{self.proxy.http_address}{path}"
        async with self.http.request(method, url, **more) as response:
            body = await response.read()
            assert response.content_type == ("application/json" if response.ok else "application/problem+json")
            return response.status, json.loads(body)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with (
        fake_servers("server-1") as (server,),
        proxy_of(server.address, http="127.0.0.1:0") as proxy,
        aiohttp.ClientSession() as http,
    ):
        server.host(descriptor(), rows(10))
        rules = server.host(RULES)
        for name in ("a", "b", "c"):
            rules.put(name, msgspec.msgpack.encode([1, ord(name)]))
        hours = server.host(HOURS)
        for hour in range(5):
            hours.put(("sensor-1", hour), row(float(hour)))
        server.changed()
        await eventually(lambda: len(proxy._directory.tables) == 3)
        yield Served(server, proxy, http)


async def test_an_answer_says_who_answered_and_as_of_when(served: Served) -> None:
    state = served.server.states[APPLICATION, STATE]
    state.epoch, state.confirmed, state.role = 7, False, Role.OWNER
    state.as_of_ms = 1_700_000_000_123
    status, answer = await served.ask(f"{PATH}/sensor-3")
    assert status == 200
    assert (answer["found"], answer["value"]) == (True, {"celsius": 3.0, "count": 1})
    staleness = answer["source"].pop("staleness_seconds")
    assert staleness > 1_000
    assert answer["source"] == {
        "server": "server-1",
        "role": "owner",
        "epoch": 7,
        "commit_time": "1970-01-01T00:00:07+00:00",
        "watermark": None,
        "as_of": "2023-11-14T22:13:20.123000+00:00",
        "lag_epochs": 0,
        "staged_epoch": None,
        "unconfirmed": True,
        "generation": 1,
        "assignment_version": 1,
    }


async def test_a_proxy_that_is_a_process_of_its_own_serves_them(tmp_path: Path) -> None:
    """Its event loop is another one than that of the tests."""
    port, http_port = free_ports(2)
    async with fake_servers("server-1") as (server,), aiohttp.ClientSession() as http:
        server.host(descriptor(), rows(10))
        environ = dict(os.environ) | {"KEYHOLE_CLIENT_PROXY_HTTP": f"127.0.0.1:{http_port}"}
        proxy = await asyncio.to_thread(
            start_client_proxy, "proxy", port, servers=[server.address], directory=tmp_path, environ=environ
        )
        try:

            async def answer_now() -> dict[str, Any]:
                async with http.get(f"http://127.0.0.1:{http_port}{PATH}/sensor-3") as response:
                    said: dict[str, Any] = await response.json(content_type=None)
                    return said

            while not (answer := await answer_now()).get("found"):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.05)
            assert answer["value"] == {"celsius": 3.0, "count": 1}
        finally:
            await asyncio.to_thread(proxy.terminate)


async def test_an_absent_key_is_an_answer(served: Served) -> None:
    status, answer = await served.ask(f"{PATH}/nobody")
    assert (status, answer["found"], answer["value"], answer["source"]["epoch"]) == (200, False, None, 1)


async def test_whole_numbers_come_as_text_where_that_is_wanted(served: Served) -> None:
    served.server.states[APPLICATION, STATE].put("big", row(1.0, 2**63 - 1))
    _, answer = await served.ask(f"{PATH}/big")
    assert answer["value"] == {"celsius": 1.0, "count": 9223372036854775807}
    _, answer = await served.ask(f"{PATH}/big?integers=text")
    assert answer["value"] == {"celsius": 1.0, "count": "9223372036854775807"}


async def test_several_keys_are_answered_in_their_order(served: Served) -> None:
    status, body = await served.ask(f"{PATH}:batchGet", "POST", json={"keys": ["sensor-2", ["nobody"], "sensor-1"]})
    assert status == 200
    assert [answer["value"] and answer["value"]["celsius"] for answer in body["answers"]] == [2.0, None, 1.0]


async def test_the_entries_of_a_key_are_scanned_by_ranges_and_pages(served: Served) -> None:
    path = f"/v1/{APPLICATION}/hours/sensor-1"

    async def hours(query: str) -> tuple[list[int], str | None]:
        status, body = await served.ask(path + query)
        assert status == 200, body
        return [entry["map_key"] for entry in body["entries"]], body["next"]

    assert await hours("") == ([0, 1, 2, 3, 4], None)
    assert await hours("?from=1&to=4") == ([1, 2, 3], None)
    assert await hours("?limit=2") == ([0, 1], "2")
    assert await hours("?limit=2&from=2") == ([2, 3], "4")
    assert await hours("?limit=2&descending=true") == ([4, 3], "3")
    assert await hours("?limit=3&descending=true&to=3") == ([2, 1, 0], None)
    _, one = await served.ask(f"{path}?map_key=3")
    assert one["value"]["celsius"] == 3.0
    given = {"keys": [{"key": "sensor-1", "map_key": 2}, ["sensor-1", 4]]}
    _, body = await served.ask(f"/v1/{APPLICATION}/hours:batchGet", "POST", json=given)
    assert [answer["value"]["celsius"] for answer in body["answers"]] == [2.0, 4.0]


async def test_a_broadcast_state_is_scanned_whole_and_looked_up_by_key(served: Served) -> None:
    status, body = await served.ask(f"/v1/{APPLICATION}/rules:scan?from=b")
    assert (status, [entry["map_key"] for entry in body["entries"]]) == (200, ["b", "c"])
    _, answer = await served.ask(f"/v1/{APPLICATION}/rules/b")
    assert answer["value"] == {"n": 98}


async def test_all_keys_of_a_state_come_page_by_page(served: Served) -> None:
    async def pages(state: str, limit: int) -> list[dict[str, Any]]:
        found, query = [], f"?limit={limit}"
        while True:
            status, body = await served.ask(f"/v1/{APPLICATION}/{state}:scan{query}")
            assert status == 200, body
            assert len(body["entries"]) <= limit
            assert all(body["sources"][entry["source"]]["epoch"] for entry in body["entries"])
            found += body["entries"]
            if body["next"] is None:
                return found
            query = f"?limit={limit}&after={body['next']}"

    for limit in (1, 2, 1000):
        hours = await pages("hours", limit)
        assert {(entry["key"], entry["map_key"], entry["value"]["celsius"]) for entry in hours} >= {
            ("sensor-1", hour, float(hour)) for hour in range(5)
        }
        assert len(hours) == len({(entry["key"], entry["map_key"]) for entry in hours})
    readings = await pages(STATE, 2)
    assert len(readings) == len({entry["key"] for entry in readings}) >= 3
    assert all("map_key" not in entry for entry in readings)
    _, one = await served.ask(f"{PATH}/{readings[0]['key']}")
    assert one["value"] == readings[0]["value"]
    _, body = await served.ask(f"{PATH}:scan?integers=text&limit=1")
    assert isinstance(body["entries"][0]["value"]["count"], str)


async def test_such_entries_and_fields_come_as_are_asked_for(served: Served) -> None:
    async def values(path: str) -> list[Any]:
        status, body = await served.ask(f"/v1/{APPLICATION}/{path}")
        assert status == 200, body
        return [entry["value"] for entry in body["entries"]]

    warm = "where=celsius%20%3E%201&where=celsius%20%3C%204"
    assert await values(f"hours:scan?{warm}&fields=celsius") == [{"celsius": 2.0}, {"celsius": 3.0}]
    assert await values(f"hours/sensor-1?{warm}&fields=count,celsius&descending=true&limit=1") == [
        {"count": 1, "celsius": 3.0}
    ]
    assert await values("hours:scan?where=hour%20in%200,1&keys_only=true") == [None, None]
    assert await values("rules:scan?where=n=98&fields=n&integers=text") == [{"n": "98"}]
    names = [f"sensor-{number}" for number in range(10)]

    async def keys(query: str) -> list[str]:
        status, body = await served.ask(f"{PATH}:scan?keys_only=true&{query}")
        assert status == 200, body
        found = [entry["key"] for entry in body["entries"]]
        if "limit" in query and body["next"]:
            found += await keys(f"{query.partition('&after')[0]}&after={body['next']}")
        return found

    assert await keys("ordered=true") == await keys("ordered=true&limit=3") == names
    assert await keys("descending=true&limit=4") == names[::-1]
    assert await keys("ordered=true&from=sensor-3&to=sensor-6") == ["sensor-3", "sensor-4", "sensor-5"]
    assert sorted(await keys("from=sensor-8&limit=1")) == ["sensor-8", "sensor-9"]
    assert await keys("prefix=sensor-7") == ["sensor-7"]
    for more in ("", "&ordered=true"):
        status, body = await served.ask(f"/v1/{APPLICATION}/hours:scan?map_from=2&map_to=4{more}")
        assert status == 200, body
        assert {entry["map_key"] for entry in body["entries"]} == {2, 3}
        assert len(body["entries"]) == 2
    status, body = await served.ask(f"{PATH}:scan?map_from=2")
    assert (status, body["reason"]) == (501, "UNSUPPORTED")
    assert "has no map keys under its keys" in body["detail"]
    served.server.selects = False
    for path in (
        f"{PATH}:scan?prefix=sensor-7",
        f"/v1/{APPLICATION}/hours:scan?keys_only=true",
        f"/v1/{APPLICATION}/hours/sensor-1?{warm}",
        f"/v1/{APPLICATION}/hours/sensor-1?fields=celsius",
        f"/v1/{APPLICATION}/rules:scan?keys_only=true",
        f"/v1/{APPLICATION}/hours:aggregate?of=count",
    ):
        status, body = await served.ask(path)
        assert (status, body["reason"]) == (501, "UNSUPPORTED"), path
        assert "server server-1 is of an earlier version" in body["detail"]
    for path in ("readings:scan", "readings:scan?ordered=true", "hours/sensor-1?descending=true", "rules:scan"):
        assert await values(path), path
    served.server.selects = True
    status, body = await served.ask(
        f"/v1/{APPLICATION}/hours:aggregate?of=count&of=sum(count)&of=top(2,celsius)&where=hour%20%3C%204"
    )
    assert status == 200, body
    top = body["values"].pop("top(2,celsius)")
    assert body["values"] == {"count": 4, "sum(count)": 4}
    assert [(entry["map_key"], entry["value"]["celsius"]) for entry in top] == [(3, 3.0), (2, 2.0)]
    assert all(body["sources"][entry["source"]]["epoch"] == 1 for entry in top)
    for path, count in (
        ("hours:aggregate?of=count&map_from=1&map_to=3&prefix=sensor-1", 2),
        ("hours:aggregate?of=count&from=sensor-2", 0),
        ("hours:aggregate?of=count&to=sensor-2&where=hour%20%3C%203", 3),
        ("rules:aggregate?of=count&from=b", None),
    ):
        status, body = await served.ask(f"/v1/{APPLICATION}/{path}")
        assert status == 200, body
        assert count is None or body["values"] == {"count": count}, path
    for path, said in (
        ("hours:aggregate?of=count&prefix=a&from=b", "leave start and stop out"),
        ("hours:aggregate?of=count&map_from=noon", "hour"),
        ("hours:scan?prefix=a&from=b", "leave start and stop out"),
        ("hours:scan?ordered=true&after=x", "no token"),
        ("rules:scan?prefix=a", "go on by from"),
        ("rules:scan?map_to=a", "go on by from"),
        ("hours:scan?map_from=noon", "hour"),
        ("hours/sensor-1?map_from=2", "not known"),
        ("hours:aggregate", "of says what is computed"),
        ("hours:aggregate?of=median(celsius)", "an aggregate is count"),
        ("hours:aggregate?of=sum(sensor)", "no sum"),
        ("hours:aggregate?of=count&limit=3", "not known"),
        ("hours:scan?where=kelvin%20%3E%201", "no field of state"),
        ("hours:scan?fields=kelvin", "no field 'kelvin'"),
        ("hours:scan?keys_only=yes", "keys_only is neither true nor false"),
        ("hours/sensor-1?where=celsius", "write FIELD OP VALUE"),
        ("hours/sensor-1?map_key=1&where=celsius%20%3E%201", "map_key names one entry"),
    ):
        status, body = await served.ask(f"/v1/{APPLICATION}/{path}")
        assert status == 400
        assert said in body["detail"]
    status, body = await served.ask(f"{PATH}/sensor-3?where=celsius%20%3E%201")
    assert (status, body["reason"]) == (501, "UNSUPPORTED")


async def test_aggregates_ask_some_key_groups_at_a_time_and_end_all_of_them_where_one_fails(served: Served) -> None:
    path = f"/v1/{APPLICATION}/hours:aggregate?of=count&of=sum(count)"
    _, wanted = await served.ask(path)
    served.server.hold.clear()
    asked = asyncio.ensure_future(served.ask(path))
    await eventually(lambda: served.server.scans == 8)
    served.server.hold.set()
    status, body = await asked
    assert (status, body["values"]) == (200, wanted["values"])
    assert len(body["sources"]) == len(wanted["sources"])
    served.server.hold.clear()
    for seconds in longer_and_longer(0.3):
        asked = asyncio.ensure_future(served.ask(f"{path}&timeout={seconds}"))
        await eventually(lambda asked=asked: served.server.scans == 8 or asked.done())  # type: ignore[misc]
        at_once = served.server.scans
        status, body = await asked
        assert (status, body["reason"]) == (504, "DEADLINE_EXCEEDED")
        await eventually(lambda: served.server.scans == 0)
        if at_once == 8:
            break
    assert at_once == 8


async def test_what_can_be_read_is_listed_and_described(served: Served) -> None:
    _, listed = await served.ask("/v1")
    assert [state["state"] for state in listed["states"]] == ["hours", STATE, "rules"]
    assert (await served.ask(f"/v1/{APPLICATION}"))[1] == listed
    assert (await served.ask("/v1/other"))[1] == {"states": []}
    _, described = await served.ask(PATH)
    assert (described["kind"], described["key"]) == ("value", [{"name": "sensor", "type": "string"}])


async def test_what_is_described_has_the_version_of_the_class_that_makes_what_is_stored(served: Served) -> None:
    served.server.host(msgspec.structs.replace(descriptor("encoded", topic_id="topic-9"), class_version=3))
    async with asyncio.timeout(PATIENCE_SECONDS):
        # Until the proxy has heard of the new state.
        while "class_version" not in (described := (await served.ask(f"/v1/{APPLICATION}/encoded"))[1]):
            assert described["reason"] == "UNKNOWN_STATE"
    assert described["class_version"] == 3


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"{PATH}/%FF", "no UTF-8: an ü is spelled %C3%BC"),
        (f"{PATH}/m%FCnchen", "no UTF-8"),
        (f"{PATH}/%C3", "no UTF-8"),
        (f"{PATH}/%ED%A0%80", "no UTF-8"),
        (f"{PATH}/100%", "is spelled %25"),
        (f"{PATH}/%zz", "is spelled %25"),
        (f"{PATH}/%u00fc", "is spelled %25"),
        (f"{PATH}:scan?prefix=%FC", "no UTF-8"),
        (f"{PATH}:watch?key=100%", "is spelled %25"),
    ],
)
async def test_a_percent_sign_that_spells_no_text_is_refused_and_is_no_key_that_is_not_there(
    served: Served, path: str, says: str
) -> None:
    url = URL(f"http://{served.proxy.http_address}{path}", encoded=True)
    async with served.http.get(url) as response:
        body = json.loads(await response.read())
    assert (response.status, body["reason"]) == (400, "MALFORMED_REQUEST")
    assert says in body["detail"]


@pytest.mark.parametrize(
    ("path", "reason", "says"),
    [
        ("/v1/nowhere/x/k", "UNKNOWN_APPLICATION", "no application 'nowhere'"),
        (f"/v1/{APPLICATION}/x/k", "UNKNOWN_STATE", "it has: hours, readings, rules"),
        (f"{PATH}/k?stale=perhaps", "MALFORMED_REQUEST", "stale is 'perhaps'"),
        (f"{PATH}/k?timeout=0", "MALFORMED_REQUEST", "the query parameter timeout"),
        (f"{PATH}/k?timeout=nan", "MALFORMED_REQUEST", "the query parameter timeout"),
        (f"{PATH}/k?timeout=1_0", "MALFORMED_REQUEST", "the query parameter timeout"),
        (f"{PATH}/k?timeout=%205", "MALFORMED_REQUEST", "the query parameter timeout"),
        (f"{PATH}/k?max_staleness=%D9%A5", "MALFORMED_REQUEST", "the query parameter max_staleness"),
        (f"{PATH}/k?min_epoch=07", "MALFORMED_REQUEST", "the query parameter min_epoch"),
        (f"{PATH}/k?as_of=1_0", "MALFORMED_REQUEST", "the query parameter as_of"),
        (f"{PATH}:scan?limit=%D9%A5", "MALFORMED_REQUEST", "the query parameter limit"),
        (f"{PATH}:scan?where=count%3D%3D1_0", "VALUE_MISMATCH", "give a number like 42"),
        (f"{PATH}:aggregate?of=top(%D9%A5,celsius)", "MALFORMED_REQUEST", "an aggregate is count"),
        (f"{PATH}:watch?where=celsius%3E1_0", "VALUE_MISMATCH", "give a number like 1.5"),
        (f"{PATH}/k?min_epoch=-1", "MALFORMED_REQUEST", "the query parameter min_epoch"),
        (f"{PATH}/k?max_staleness=x", "MALFORMED_REQUEST", "the query parameter max_staleness"),
        (f"{PATH}/k?integers=roman", "MALFORMED_REQUEST", "integers is neither"),
        (f"{PATH}/k?stale=never&stale=always", "MALFORMED_REQUEST", "stale is given twice"),
        (f"{PATH}/k?secret-key", "MALFORMED_REQUEST", "a query parameter is not known"),
        (f"{PATH}/k?limit=1", "UNSUPPORTED", "no entries to scan"),
        (f"{PATH}/k?map_key=1", "UNSUPPORTED", "no entries to scan"),
        (f"{PATH}:scan?limit=0", "MALFORMED_REQUEST", "from 1 to 10,000"),
        (f"{PATH}:scan?after=x", "MALFORMED_REQUEST", "no token of an earlier one"),
        (f"{PATH}/k?after=x", "MALFORMED_REQUEST", "a query parameter is not known"),
        (f"/v1/{APPLICATION}/rules:scan?after=x", "MALFORMED_REQUEST", "not by after"),
        (f"/v1/{APPLICATION}/rules/a?limit=1", "UNSUPPORTED", "it is scanned whole"),
        (f"/v1/{APPLICATION}/rules/a?map_key=1", "UNSUPPORTED", "leave map_key out"),
        (f"/v1/{APPLICATION}/hours/k?map_key=x", "KEY_MISMATCH", "hour is a int"),
        (f"/v1/{APPLICATION}/hours/k?map_key=99999999999", "KEY_MISMATCH", "hour is a int"),
        (f"/v1/{APPLICATION}/hours/k?map_key=1&limit=1", "MALFORMED_REQUEST", "map_key names one entry"),
        (f"/v1/{APPLICATION}/hours/k?limit=10001", "MALFORMED_REQUEST", "from 1 to 10,000"),
        (f"/v1/{APPLICATION}/hours/k?descending=yes", "MALFORMED_REQUEST", "descending is neither"),
        (f"{PATH}/k/l", "MALFORMED_REQUEST", "spells that %2F"),
        ("/elsewhere", "MALFORMED_REQUEST", "there is no such path"),
    ],
)
async def test_what_is_wrong_with_a_request_is_a_problem_with_its_reason(
    served: Served, path: str, reason: str, says: str
) -> None:
    status, body = await served.ask(path)
    assert 400 <= status <= 501
    assert (body["status"], body["reason"], body["retryable"]) == (status, reason, False)
    assert says in body["detail"]
    assert "secret" not in body["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"keys":7}',
        b'{"keys":[],"more":1}',
        b'{"keys":["\xff"]}',
        b'{"keys":[{}]}',
        b'{"keys":' + b"[" * 100_000,
    ],
)
async def test_a_body_that_is_none_is_refused_and_not_repeated(served: Served, body: bytes) -> None:
    status, refusal = await served.ask(f"{PATH}:batchGet", "POST", data=body)
    assert (status, refusal["reason"]) == (400, "MALFORMED_REQUEST")


@pytest.mark.parametrize("key", [None, 1.5, [["a"]], [None], ["a", "b"], []])
async def test_a_key_that_does_not_fit_the_state_is_refused(served: Served, key: object) -> None:
    status, body = await served.ask(f"{PATH}:batchGet", "POST", json={"keys": [key]})
    assert (status, body["retryable"]) == (400, False)
    assert body["reason"] in ("KEY_MISMATCH", "NULL_KEY")


async def test_an_error_over_http_is_that_over_grpc(served: Served) -> None:
    """The same reason, message, facts and whether to try again."""
    state = served.server.states[APPLICATION, STATE]
    state.as_of_ms = 1_000
    async with AsyncClient(served.proxy.address, timeout=LONG_SECONDS) as client:
        for query, options in (
            ("min_epoch=9", {"min_epoch": 9}),
            ("stale=never&min_epoch=9", {"stale": "never", "min_epoch": 9}),
        ):

            async def read(seconds: float, options: dict[str, Any] = options) -> None:
                await client.get(APPLICATION, STATE, "sensor-1", timeout=seconds, **options)

            error = await raised_at_deadline(read, 1.0, KeyholeError, "at epoch 1")
            for seconds in longer_and_longer(1.0):
                status, body = await served.ask(f"{PATH}/sensor-1?timeout={seconds}&{query}")
                if body["reason"] != "DEADLINE_EXCEEDED":
                    break
            expected = problem(error)
            assert (status, body["reason"], body["retryable"]) == (
                http_status(error),
                expected["reason"],
                expected["retryable"],
            )
            assert body["facts"].keys() == expected["facts"].keys()


async def test_an_answer_in_time_is_asked_of_the_servers_too(served: Served) -> None:
    served.server.hold.clear()
    status, body = await served.ask(f"{PATH}/sensor-1?timeout=0.2")
    served.server.hold.set()
    assert (status, body["reason"]) == (504, "DEADLINE_EXCEEDED")


async def test_a_proxy_is_ready_once_it_has_reached_a_server_and_healthy_before() -> None:
    with unused_address() as nowhere:
        async with proxy_of(nowhere, http="127.0.0.1:0") as proxy, aiohttp.ClientSession() as http:
            for path, expected in (("/healthz", 200), ("/readyz", 503)):
                async with http.get(f"http://{proxy.http_address}{path}") as response:
                    assert response.status == expected


async def test_a_proxy_that_has_reached_a_server_is_ready(served: Served) -> None:
    async with served.http.get(f"http://{served.proxy.http_address}/readyz") as response:
        assert response.status == 200


@asynccontextmanager
async def port_of(served: Served, limits: HttpLimits, guard: PortGuard | None = None) -> AsyncIterator[HttpPort]:
    """A port of its own, with other limits."""
    reads = HttpReads(served.proxy._directory, served.proxy._servicer, 5.0, limits, guard)
    port = HttpPort("the HTTP reads", "127.0.0.1:0", reads.app, limits, guard)
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


async def read_to_end(port: HttpPort, data: bytes) -> bytes:
    """What comes back on a connection of its own, until the other side closes it."""
    reader, writer = await asyncio.open_connection(*port.address.rsplit(":", 1))
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("data", [b"", b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n", b"\x00\x01"])
async def test_who_sends_no_headers_in_time_is_let_go(served: Served, data: bytes) -> None:
    async with port_of(served, HttpLimits(header_seconds=0.2)) as port:
        answer = await read_to_end(port, data)
        assert b"200 OK" not in answer


async def test_who_sends_no_body_in_time_is_told_so_and_let_go(served: Served) -> None:
    async with port_of(served, HttpLimits(body_seconds=0.2)) as port:
        head = f"POST {PATH}:batchGet HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{{".encode()
        assert b"408" in await read_to_end(port, head)


async def test_a_body_or_headers_that_are_too_large_are_refused(served: Served) -> None:
    async with (
        port_of(served, HttpLimits(body_bytes=100, line_bytes=1_000, header_bytes=1_000)) as port,
        aiohttp.ClientSession() as http,
    ):
        async with http.post(f"http://{port.address}{PATH}:batchGet", data=b"x" * 101) as response:
            assert (response.status, response.content_type) == (413, "application/problem+json")
        async with http.get(f"http://{port.address}{PATH}/{'k' * 2_000}") as response:
            assert response.status == 400
        async with http.get(f"http://{port.address}/v1", headers={"X-Long": "v" * 2_000}) as response:
            assert response.status == 400


async def test_connections_beyond_the_limit_are_closed_at_once(served: Served) -> None:
    async with port_of(served, HttpLimits(connections=1)) as port:
        host, number = port.address.rsplit(":", 1)
        _, first = await asyncio.open_connection(host, number)
        await eventually(lambda: len(port._connections) == 1)
        assert await read_to_end(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
        first.close()
        await eventually(lambda: not port._connections)
        answer = await read_to_end(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in answer


async def test_who_does_not_read_the_answer_is_let_go(served: Served) -> None:
    limits = HttpLimits(answer_seconds=0.3, header_seconds=60)
    async with port_of(served, limits) as port:
        reader, writer = await asyncio.open_connection(*port.address.rsplit(":", 1), limit=1)
        body = json.dumps({"keys": ["sensor-1"] * 16_000}).encode()
        head = f"POST {PATH}:batchGet HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for _ in range(4):  # each is answered by 5 MB, more than the sockets of both sides hold
            writer.write(head + body)
        await eventually(lambda: len(port._connections) == 1, LONG_SECONDS)
        await eventually(lambda: not port._connections, LONG_SECONDS)
        assert reader is not None
        writer.close()


async def test_who_does_not_read_a_watch_is_let_go_and_others_are_served(served: Served) -> None:
    texts = msgspec.structs.replace(
        descriptor("texts", topic_id="topic-9"), value=ValueSchema(1, (ValueField("text", "string"),))
    )
    stored = msgspec.msgpack.encode([1, "x" * 100_000])
    served.server.host(texts, {f"sensor-{number}": stored for number in range(200)})
    served.server.changed()
    await eventually(lambda: (APPLICATION, "texts") in served.proxy._directory.tables)
    async with port_of(served, HttpLimits(answer_seconds=0.3)) as port:
        reader, writer = await asyncio.open_connection(*port.address.rsplit(":", 1), limit=1)
        writer.write(f"GET /v1/{APPLICATION}/texts:watch HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await eventually(lambda: served.proxy._servicer._watching == 1, LONG_SECONDS)
        await eventually(lambda: not port._connections, LONG_SECONDS)
        await eventually(lambda: served.proxy._servicer._watching == 0, LONG_SECONDS)
        assert reader is not None
        writer.close()


POLICY = """
[[allow]]
who = ["token:reader"]
verbs = ["read"]
states = ["weather/readings"]

[[allow]]
who = ["token:scanner"]
verbs = ["scan"]
states = ["weather/*"]
"""


async def test_over_tls_each_caller_reads_what_the_policy_allows_and_is_told_of_nothing_else(
    served: Served, tmp_path: Path
) -> None:
    made = {name: tokens.new(name, None) for name in ("reader", "scanner")}
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "tokens.toml").write_text("\n".join(entry for _, entry in made.values()))
    authority = Authority(tmp_path)
    files = authority.issue("proxy", "127.0.0.1")
    config = ClientProxyConfig(
        ("a:1",),
        tls="on",
        tls_certificate=files.certificate,
        tls_key=files.key,
        policy=str(tmp_path / "policy.toml"),
        tokens=str(tmp_path / "tokens.toml"),
    )
    trusting = ssl.create_default_context(cafile=str(authority.path))
    guard = PortGuard("client-proxy", "127.0.0.1", config)
    async with port_of(served, HttpLimits(), guard=guard) as port, aiohttp.ClientSession() as http:

        async def ask(who: str, path: str, method: str = "GET", **more: Any) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {made[who][0]}"} if who else {}
            url = f"https://{port.address}{path}"
            async with http.request(method, url, headers=headers, ssl=trusting, **more) as response:
                assert (response.status == 401) == ("WWW-Authenticate" in response.headers)
                return response.status, await response.json(content_type=None)

        paths = ("/v1", PATH, f"{PATH}/k", f"/v1/{APPLICATION}/rules:scan", "/v1/nowhere/x")
        for path in paths:
            assert (await ask("", path))[0] == 401
        assert (await ask("", f"{PATH}:batchGet", "POST", data=b"{"))[0] == 401
        assert (await ask("reader", f"{PATH}/sensor-1"))[0] == 200
        kept = {"Authorization": f"Bearer {made['reader'][0]}", "If-None-Match": "*"}
        async with http.get(f"https://{port.address}{PATH}/sensor-1", headers=kept, ssl=trusting) as response:
            # No cache gives it to somebody else; who may not read it is not told that it is as it was.
            assert (response.status, response.headers["Vary"]) == (304, "Authorization")
            assert response.headers["Cache-Control"].startswith("private, ")
        kept["Authorization"] = f"Bearer {made['scanner'][0]}"
        async with http.get(f"https://{port.address}{PATH}/sensor-1", headers=kept, ssl=trusting) as response:
            assert (response.status, response.headers["Cache-Control"]) == (403, "no-store")
        assert (await ask("reader", f"{PATH}:batchGet", "POST", json={"keys": ["sensor-1"]}))[0] == 200
        assert [state["state"] for state in (await ask("reader", "/v1"))[1]["states"]] == [STATE]
        assert (await ask("reader", f"/v1/{APPLICATION}/rules:scan"))[0] == 403
        assert (await ask("reader", "/v1/nowhere/x/k"))[0] == 403
        assert (await ask("scanner", f"/v1/{APPLICATION}/hours/sensor-1"))[0] == 200
        assert (await ask("scanner", f"/v1/{APPLICATION}/hours/sensor-1?map_key=1"))[0] == 403
        assert (await ask("scanner", f"{PATH}/sensor-1"))[0] == 403
        assert (await ask("scanner", f"{PATH}:scan"))[0] == 200
        assert (await ask("reader", f"{PATH}:scan"))[0] == 403
        assert (await ask("scanner", f"{PATH}:batchGet", "POST", data=b"{"))[0] == 403
        status, body = await ask("scanner", f"/v1/{APPLICATION}/nothing/k")
        assert (status, body["reason"]) == (404, "UNKNOWN_STATE")
        assert STATE not in body["detail"] + json.dumps(body["facts"])
        async with http.get(f"https://{port.address}/healthz", ssl=trusting) as response:
            assert response.status == 200
        assert b"200" not in await read_to_end(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def test_a_certificate_says_who_calls_over_http_too(served: Served, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY.replace("token:reader", "certificate:dashboard"))
    authority = Authority(tmp_path)
    files = authority.issue("proxy", "127.0.0.1")
    config = ClientProxyConfig(
        ("a:1",),
        tls="on",
        tls_certificate=files.certificate,
        tls_key=files.key,
        tls_ca=files.authority,
        policy=str(tmp_path / "policy.toml"),
    )
    guard = PortGuard("client-proxy", "127.0.0.1", config)
    async with port_of(served, HttpLimits(), guard=guard) as port, aiohttp.ClientSession() as http:
        for who, expected in (("dashboard", 200), ("somebody", 403)):
            own = authority.issue(who)
            shown = ssl.create_default_context(cafile=str(authority.path))
            shown.load_cert_chain(own.certificate, own.key)
            async with http.get(f"https://{port.address}{PATH}/sensor-1", ssl=shown) as response:
                assert response.status == expected


async def test_plaintext_where_others_reach_the_port_must_be_chosen() -> None:
    config = ClientProxyConfig(("a:1",), port=0, http="0.0.0.0:0")
    with pytest.raises(InvalidConfiguration, match=r"the HTTP reads would listen on 0\.0\.0\.0 without TLS"):
        ClientProxy(config, StaticDiscovery(["a:1"]), SystemClock())


async def test_an_unexpected_failure_says_nothing_of_its_cause(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("sensor-1 is secret")

    monkeypatch.setattr(served.proxy._servicer, "read_many", fail)
    status, body = await served.ask(f"{PATH}/sensor-1")
    assert (status, body["reason"]) == (500, "INTERNAL")
    assert "secret" not in json.dumps(body)


async def test_a_refusal_of_a_server_comes_through(served: Served) -> None:
    served.server.refuse = Unsupported("not here")
    status, body = await served.ask(f"{PATH}/sensor-1")
    assert (status, body["reason"], body["detail"]) == (501, "UNSUPPORTED", "not here")


async def test_a_client_at_this_port_is_told_that_it_speaks_http(served: Served) -> None:
    async with AsyncClient(served.proxy.http_address, timeout=LONG_SECONDS) as client:
        with pytest.raises(ServerLost, match=r"speaks HTTP and not gRPC.*connect to the proxy's gRPC port"):
            await client.list_states()


async def test_a_client_with_tls_at_this_port_is_told_that_it_is_another_one_than_grpcs(
    served: Served, tmp_path: Path
) -> None:
    files = Authority(tmp_path).issue("proxy", "127.0.0.1")
    config = ClientProxyConfig(("a:1",), tls="on", tls_certificate=files.certificate, tls_key=files.key)
    trusting = Credentials(tls=True, tls_ca=files.authority)
    async with (
        port_of(served, HttpLimits(), guard=PortGuard("client-proxy", "127.0.0.1", config)) as port,
        AsyncClient(port.address, timeout=LONG_SECONDS, credentials=trusting) as client,
    ):
        with pytest.raises(ServerLost, match=r"speaks TLS and not gRPC.*reads over HTTP.*gRPC port, 7400") as caught:
            await client.list_states()
    assert caught.value.facts["attempts"] == "1"

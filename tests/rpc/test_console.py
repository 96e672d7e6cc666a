"""The console through a real proxy: its pages, what they ask for, who may see what, and what it costs the servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from keyhole.clock import SystemClock
from keyhole.config import ClientProxyConfig, load
from keyhole.discovery import StaticDiscovery
from keyhole.errors import InvalidConfiguration
from keyhole.security import tokens
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import state_pb2, stats_pb2
from services.client_proxy.app import ClientProxy
from services.client_proxy.console.built_pages import STATIC
from services.client_proxy.server_connection import ServerConnection
from tests.support.proxies import fake_servers, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, eventually

OVERVIEW = "/console/api/overview"
DETAIL = "/console/api/states"
HOSTILE = 'x"><img src=x onerror=alert(1)>'

POLICY = """
[[allow]]
who = ["token:reader"]
verbs = ["read"]
states = ["weather/readings", "weather/to-come"]

[[allow]]
who = ["token:operator"]
verbs = ["admin"]
states = ["*/*"]

[[allow]]
who = ["token:nobody"]
verbs = ["scan"]
states = ["elsewhere/*"]
"""


@dataclass
class Shown:
    proxy: ClientProxy
    http: aiohttp.ClientSession

    async def get(self, path: str, **headers: str) -> tuple[int, Any, aiohttp.ClientResponse]:
        url = f"http://{self.proxy.http_address}{path}"
        async with self.http.get(url, headers=headers, allow_redirects=False) as response:
            return response.status, await response.read(), response

    async def json(self, path: str, **headers: str) -> tuple[int, Any]:
        status, body, _ = await self.get(path, **headers)
        return status, json.loads(body)


@asynccontextmanager
async def shown(*addresses: str, **settings: Any) -> AsyncIterator[Shown]:
    config = ClientProxyConfig(
        servers=addresses, port=0, hop_timeout_seconds=LONG_SECONDS, http="127.0.0.1:0", **settings
    )
    proxy = ClientProxy(config, StaticDiscovery(addresses), SystemClock())
    await proxy.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Shown(proxy, http)
    finally:
        await proxy.stop(0)


@pytest.fixture
async def two() -> AsyncIterator[list[FakeServer]]:
    """Two servers: one owns all, the other one follows half of it."""
    async with fake_servers("server-1", "server-2") as servers:
        first, second = servers
        first.host(descriptor(), rows(10))
        second.follow(descriptor(), rows(10), key_groups=range(descriptor().key_groups // 2))
        first.host(descriptor(HOSTILE, topic_id="topic-9"))
        yield servers


async def test_the_pages_are_served_with_what_keeps_others_out_of_them(two: list[FakeServer]) -> None:
    async with shown(two[0].address) as console:
        for path in ("/", "/console"):
            status, _, response = await console.get(path)
            assert (status, response.headers["Location"]) == (302, "/console/")
        expected = {
            "": "text/html",
            "index.html": "text/html",
            "console.js": "javascript",
            "console.css": "text/css",
            "icon.svg": "image/svg+xml",
            "licenses.txt": "text/plain",
        }
        for name, kind in expected.items():
            status, body, response = await console.get(f"/console/{name}")
            assert (status, body) == (200, (STATIC / (name or "index.html")).read_bytes())
            assert kind in response.content_type
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Cache-Control"] == "no-cache"
            tag = response.headers["ETag"]
            for asked in (tag, f'W/{tag}, "other"', "*"):
                status, body, response = await console.get(f"/console/{name}", **{"If-None-Match": asked})
                assert (status, body, response.headers["ETag"]) == (304, b"", tag)
            assert (await console.get(f"/console/{name}", **{"If-None-Match": '"other"'}))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "../console_routes.py",
        "..%2fconsole_routes.py",
        "%2e%2e/%2e%2e/__init__.py",
        "....//console_routes.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "..\\console_routes.py",
        "console.js/",
        "console.js%00.css",
        "api",
        "api/nothing",
        "built-from.json/x",
    ],
)
async def test_nothing_else_is_served(path: str) -> None:
    with unused_address() as nowhere:
        async with shown(nowhere) as console:
            reader, writer = await asyncio.open_connection(*console.proxy.http_address.rsplit(":", 1))
            # As it is: a client library would take the steps itself.
            writer.write(f"GET /console/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
            assert b"Content-Security-Policy" not in answer


async def test_it_can_be_switched_off(two: list[FakeServer]) -> None:
    async with shown(two[0].address, console="off") as console:
        for path in ("/", "/console", "/console/", "/console/console.js", OVERVIEW, f"{DETAIL}/{APPLICATION}/{STATE}"):
            assert (await console.json(path))[0] == 404
        assert (await console.json("/v1"))[0] == 200
    environ = {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1", "KEYHOLE_CLIENT_PROXY_CONSOLE": "maybe"}
    with pytest.raises(InvalidConfiguration, match="KEYHOLE_CLIENT_PROXY_CONSOLE"):
        load(ClientProxyConfig, environ)


async def test_what_there_is_is_shown_and_what_is_wrong_with_it(two: list[FakeServer]) -> None:
    first, second = two
    async with shown(first.address, second.address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        status, body = await console.json(OVERVIEW)
        assert (status, body["administers"], body["troubles"]) == (200, True, [])
        assert body["at_ms"] <= body["now_ms"]
        assert {of["standing"]["state"]: of["standing"]["groups"] for of in body["states"]} == {
            HOSTILE: {"owned": descriptor().key_groups},
            STATE: {"owned": descriptor().key_groups},
        }
        assert [(of["server"], of["address"]) for of in body["servers"]] == sorted(
            [("server-1", first.address), ("server-2", second.address)], key=lambda pair: pair[1]
        )
        assert {event["kind"] for event in body["events"]} >= {"server_found", "state_added"}

        async with console.http.get(f"http://{console.proxy.http_address}/v1/{APPLICATION}/{STATE}/sensor-1") as read:
            assert read.status == 200
        status, detail = await console.json(f"{DETAIL}/{APPLICATION}/{STATE}")
        assert (status, detail["may_read"], detail["standing"]["reads"]["keys"]) == (200, True, 1)
        assert detail["descriptor"]["key"] == detail["scan_key"] == [{"name": "sensor", "type": "string"}]
        assert detail["hottest"] == {"reads": 1, "keys": []}  # one sample may have been chance
        half = descriptor().key_groups // 2
        assert [(run["first"], run["last"], run["owner"], run["copies"]) for run in detail["runs"]] == [
            (0, half - 1, "server-1", ["server-2"]),
            (half, descriptor().key_groups - 1, "server-1", []),
        ]
        assert [(copy["server"], copy["role"]) for copy in detail["copies"]] == [
            ("server-1", "owner"),
            ("server-2", "standby"),
        ]
        _, groups = await console.json("/console/api/key-groups")
        assert all(of["runs"] for of in groups["states"])
        assert len(groups["states"]) == 2
        (readings,) = [of for of in groups["states"] if of["state"] == STATE]
        assert (readings["runs"], readings["copies"]) == (detail["runs"], detail["copies"])
        assert {run["lag"] for run in readings["runs"]} == {"current"}

        # Its owner is gone: half of it is answered by a standby, and half by nobody.
        await first.stop()
        await eventually(lambda: any(event.kind == "server_lost" for event in console.proxy._directory.events))
        async with asyncio.timeout(LONG_SECONDS):
            while True:  # what was told a moment ago is told again for a second
                detail = (await console.json(f"{DETAIL}/{APPLICATION}/{STATE}"))[1]
                if "followed" in detail["standing"]["standing"]["groups"]:
                    break
        assert detail["standing"]["standing"]["groups"] == {"followed": half, "nobody": descriptor().key_groups - half}
        assert [trouble["severity"] for trouble in detail["troubles"]] == ["bad", "warning"]
        _, body = await console.json(OVERVIEW)
        (away,) = [of for of in body["servers"] if of["unreachable"]]
        assert away["address"] == first.address


async def test_a_states_schema_says_what_is_indexed() -> None:
    async with fake_servers("server-1") as (server,):
        server.host(msgspec.structs.replace(descriptor(), index=("celsius",)))
        async with shown(server.address) as console:
            await eventually(lambda: console.proxy._directory.settled.is_set())
            _, detail = await console.json(f"{DETAIL}/{APPLICATION}/{STATE}")
            assert detail["descriptor"]["index"] == ["celsius"]


async def test_a_state_that_there_is_not_is_a_problem_as_elsewhere(two: list[FakeServer]) -> None:
    async with shown(two[0].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        for path, reason in (("nowhere/x", "UNKNOWN_APPLICATION"), (f"{APPLICATION}/x", "UNKNOWN_STATE")):
            status, body = await console.json(f"{DETAIL}/{path}")
            assert (status, body["reason"]) == (404, reason)


async def test_without_any_server_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with unused_address() as nowhere:
        async with shown(nowhere) as console:
            status, body = await console.json(OVERVIEW)
            assert (status, body["states"]) == (200, [])
            assert [of["unreachable"] != "" for of in body["servers"]] == [True]
            assert body["troubles"][0]["about"] == nowhere


async def test_what_servers_have_counted_is_summed_up(two: list[FakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {two[0].address: (7, 70, 1), two[1].address: (5, 50, 0)}

    async def figures(link: ServerConnection, timeout_seconds: float) -> stats_pb2.ReadStatsResponse:
        rows, size, replays = counted[link.address]

        def family(name: str, other: str, label: str, value: int) -> stats_pb2.MetricFamily:
            samples = [stats_pb2.MetricSample(labels=[link.address, APPLICATION, label], value=value)]
            return stats_pb2.MetricFamily(name=name, labels=["server", "application", other], samples=samples)

        update = stats_pb2.MetricFamily(
            name="keyhole_state_server_update_seconds",
            labels=["server", "application", "state"],
            bounds=[0.002, 0.01],
            samples=[stats_pb2.MetricSample(labels=[link.address, APPLICATION, STATE], value=0.5, counts=[rows, 1, 2])],
        )
        return stats_pb2.ReadStatsResponse(
            families=[
                update,
                family("keyhole_state_server_committed_rows_total", "state", STATE, rows),
                family("keyhole_state_server_committed_bytes_total", "state", STATE, size),
                family("keyhole_state_server_replayed_epochs_total", "query", descriptor().query, replays),
            ]
        )

    monkeypatch.setattr(ServerConnection, "figures", figures)
    async with shown(two[0].address, two[1].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        _, body = await console.json(OVERVIEW)
        found = {of["standing"]["state"]: (of["writes"], of["replayed_epochs"]) for of in body["states"]}
        assert found[STATE] == ({"rows": 12, "bytes": 120}, 1)
        assert found[HOSTILE][0] is None
        latencies = {of["standing"]["state"]: of["latency"] for of in body["states"]}
        assert latencies == {STATE: {"bounds": [0.002, 0.01], "counts": [12, 2, 4], "seconds": 1.0}, HOSTILE: None}


async def test_key_groups_that_a_server_was_given_and_does_not_answer_for_are_being_restored(
    two: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, half = {"application": APPLICATION, "state": STATE}, descriptor().key_groups // 2
    first, second = range(half), range(half, descriptor().key_groups)

    async def figures(link: ServerConnection, timeout_seconds: float) -> stats_pb2.ReadStatsResponse:
        stats = stats_pb2.ReadStatsResponse(name="server-2" if link.address == two[1].address else "server-1")
        if link.address == two[1].address:
            copy = {"role": state_pb2.ROLE_STANDBY, "key_groups": first, "assigned_key_groups": [*first, *second]}
            stats.copies.add(**name, **copy)
        return stats

    monkeypatch.setattr(ServerConnection, "figures", figures)
    async with shown(two[0].address, two[1].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        _, groups = await console.json("/console/api/key-groups")
        (readings,) = [of for of in groups["states"] if of["state"] == STATE]
        assert [(run["copies"], run["catching_up"], run["lag"]) for run in readings["runs"]] == [
            (["server-2"], [], "current"),
            ([], ["server-2"], "far"),
        ]


async def test_refused_reads_are_counted_by_state_and_reason(two: list[FakeServer]) -> None:
    async with shown(two[0].address, two[1].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        _, body = await console.json(OVERVIEW)
        assert (body["refusals"], body["turned_away"]) == ([], {})
        for _ in range(2):
            _, refused = await console.json(f"/v1/{APPLICATION}/{STATE}/sensor-1?min_epoch=999")
            assert refused["reason"] == "EPOCH_NOT_REACHED"
        _, body = await console.json(OVERVIEW)
        (of,) = body["refusals"]
        assert (of["application"], of["state"], of["reason"], of["count"]) == (
            APPLICATION,
            STATE,
            "EPOCH_NOT_REACHED",
            2,
        )
        assert 0 < of["last_ms"] <= body["now_ms"]


async def test_the_last_epochs_of_a_query_are_put_together_of_what_its_servers_were_told(
    two: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(epoch: int, generation: int = 1, **others: Any) -> state_pb2.EpochTimes:
        return state_pb2.EpochTimes(epoch=epoch, generation=generation, batch=epoch - 1, micros=90_000, **others)

    query, asked = descriptor().query, []
    known: dict[str, list[state_pb2.EpochTimes] | None] = {
        two[0].address: [times(7, batch_micros=250_000), times(8)],
        two[1].address: [times(7), times(8, stage_micros=60_400), times(8, 2, replayed=True, rounds=2)],
    }

    async def epochs(link: ServerConnection, *name: Any) -> list[state_pb2.EpochTimes] | None:
        asked.append((link.address, *name[:2]))
        return known[link.address]

    monkeypatch.setattr(ServerConnection, "epochs", epochs)
    async with shown(two[0].address, two[1].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        path = f"/console/api/epochs/{APPLICATION}/{query}"
        (status, body), *others = await asyncio.gather(*(console.json(path) for _ in range(5)))
        assert sorted(asked) == sorted((of.address, APPLICATION, query) for of in two)
        assert [of[1]["epochs"] for of in others] == [body["epochs"]] * 4
        assert (status, body["application"], body["query"], body["answered"]) == (200, APPLICATION, query, True)
        assert [(of["generation"], of["epoch"], of["batch"], of["replayed"]) for of in body["epochs"]] == [
            (1, 7, 6, False),
            (1, 8, 7, False),
            (2, 8, 7, True),
        ]
        assert [of["batch_ms"] for of in body["epochs"]] == [250.0, None, None]
        assert (body["epochs"][0]["ms"], body["epochs"][2]["rounds"]) == (90.0, 2)
        status, refused = await console.json(f"/console/api/epochs/{APPLICATION}/nothing")
        assert (status, refused["reason"]) == (404, "UNKNOWN_STATE")
    known = dict.fromkeys(known)
    async with shown(two[0].address, two[1].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        _, body = await console.json(path)
        assert (body["answered"], body["epochs"]) == (False, [])


async def test_many_open_consoles_ask_the_servers_as_often_as_one(
    two: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    describe = ServerConnection.describe

    async def counted(link: ServerConnection, timeout_seconds: float) -> Any:
        asked.append(link.address)
        return await describe(link, timeout_seconds)

    monkeypatch.setattr(ServerConnection, "describe", counted)
    async with shown(two[0].address, two[1].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        assert asked == []
        paths = [OVERVIEW, "/console/api/key-groups", f"{DETAIL}/{APPLICATION}/{STATE}"] * 10
        answers = await asyncio.gather(*(console.json(path) for path in paths))
        assert {status for status, _ in answers} == {200}
        # A second may end while thirty requests are answered on a busy machine.
        assert len(asked) <= 4
        assert len({body["at_ms"] for _, body in answers}) == len(asked) // 2


async def test_who_goes_away_does_not_end_the_round_of_others(
    two: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    describe = ServerConnection.describe

    async def held(link: ServerConnection, timeout_seconds: float) -> Any:
        begun.set()
        await go_on.wait()
        return await describe(link, timeout_seconds)

    monkeypatch.setattr(ServerConnection, "describe", held)
    async with shown(two[0].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        impatient = asyncio.ensure_future(console.json(OVERVIEW))
        await begun.wait()
        other = asyncio.ensure_future(console.json(OVERVIEW))
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        go_on.set()
        assert (await other)[0] == 200


async def test_each_caller_is_shown_what_the_policy_lets_it_see(two: list[FakeServer], tmp_path: Path) -> None:
    made = {name: tokens.new(name, None) for name in ("reader", "operator", "nobody")}
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "tokens.toml").write_text("\n".join(entry for _, entry in made.values()))
    files = {name: str(tmp_path / f"{name}.toml") for name in ("policy", "tokens")}
    async with shown(*(server.address for server in two), **files) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())

        async def asked_by(who: str, path: str) -> tuple[int, Any]:
            return await console.json(path, Authorization=f"Bearer {made[who][0]}")

        # The pages hold nothing, and a browser shows no token for them.
        assert (await console.get("/console/"))[0] == 200
        for path in (OVERVIEW, "/console/api/key-groups", f"{DETAIL}/{APPLICATION}/{STATE}"):
            status, _, response = await console.get(path)
            assert (status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert (await console.json(path, Authorization="Bearer wrong"))[0] == 401

        _, seen = await asked_by("operator", OVERVIEW)
        assert (seen["administers"], len(seen["states"])) == (True, 2)
        assert (await asked_by("operator", f"{DETAIL}/{APPLICATION}/{STATE}"))[1]["may_read"] is False
        assert len(seen["servers"]) == 2
        assert seen["servers"][0]["address"]

        _, seen = await asked_by("reader", OVERVIEW)
        assert [of["standing"]["state"] for of in seen["states"]] == [STATE]
        assert seen["administers"] is False
        assert all(not of["address"] and not of["copies"] and of["started"] is None for of in seen["servers"])
        assert {event.get("state") for event in seen["events"]} == {STATE}
        _, groups = await asked_by("reader", "/console/api/key-groups")
        assert [of["state"] for of in groups["states"]] == [STATE]
        status, detail = await asked_by("reader", f"{DETAIL}/{APPLICATION}/{STATE}")
        assert (status, detail["may_read"], detail["may_scan"], detail["missing"]) == (200, True, False, "")
        for path in (f"{DETAIL}/{APPLICATION}/other", f"{DETAIL}/nowhere/x"):
            assert (await asked_by("reader", path))[0] == 403

        status, refused = await asked_by("reader", f"{DETAIL}/{APPLICATION}/to-come")
        assert (status, refused["reason"]) == (404, "UNKNOWN_STATE")
        _, whole = await asked_by("operator", OVERVIEW)
        (hidden,) = {of["standing"]["state"] for of in whole["states"]} - {STATE}
        assert hidden not in str(refused)

        epochs = f"/console/api/epochs/{APPLICATION}/{descriptor().query}"
        assert [(await asked_by(who, epochs))[0] for who in ("operator", "reader", "nobody")] == [200, 200, 404]

        _, seen = await asked_by("nobody", OVERVIEW)
        assert (seen["states"], seen["servers"], seen["events"], seen["troubles"]) == ([], [], [], [])


async def test_names_are_text_in_json_whatever_they_hold(two: list[FakeServer]) -> None:
    async with shown(two[0].address) as console:
        await eventually(lambda: console.proxy._directory.settled.is_set())
        _, _, response = await console.get(OVERVIEW)
        assert response.content_type == "application/json"
        assert (response.headers["X-Content-Type-Options"], response.headers["Cache-Control"]) == (
            "nosniff",
            "no-store",
        )

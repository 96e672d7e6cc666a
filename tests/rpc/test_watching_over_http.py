"""Watches over HTTP: server-sent events, and what happens to those who come back, or may not watch."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from keyhole.errors import KeyholeError
from services.client_proxy.app import ClientProxy
from tests.support.entries import hourly, hours
from tests.support.figures import read_stats, value
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.state_servers import RunningServer, state_server
from tests.support.tokens import make_tokens
from tests.support.waiting import PATIENCE_SECONDS, eventually

PATH = f"/v1/{APPLICATION}/{STATE}:watch"

POLICY = f"""
[[allow]]
who = ["token:denied", "token:forgotten", "token:kept"]
verbs = ["watch"]
states = ["{APPLICATION}/{STATE}"]

[[allow]]
who = ["token:reader"]
verbs = ["read"]
states = ["{APPLICATION}/*"]
"""


class Watched:
    """A server at epoch 1, which has sensor-0 to sensor-9, and a proxy that answers over HTTP."""

    def __init__(self, server: RunningServer, proxy: ClientProxy, http: aiohttp.ClientSession) -> None:
        self.server, self.proxy, self.http = server, proxy, http

    def url(self, path: str = PATH) -> str:
        return f"http://{self.proxy.http_address}{path}"

    @asynccontextmanager
    async def events(self, parameters: str = "", path: str = PATH, **headers: str) -> AsyncIterator[Events]:
        async with self.http.get(self.url(path) + parameters, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            yield Events(response)


class Events:
    """The events of one stream, as a browser has them."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.last_id = ""

    async def next(self, *kinds: str) -> tuple[str, dict[str, Any]]:
        """The next one of these kinds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                fields: dict[str, str] = {}
                while (line := (await self._response.content.readline()).decode()) != "\n":
                    assert line.endswith("\n"), "the stream has ended"
                    name, _, value = line.rstrip("\n").partition(": ")
                    fields[name] = value
                self.last_id = fields.get("id", self.last_id)
                if fields.get("event") in kinds:
                    return fields["event"], json.loads(fields["data"])

    async def rows(self, count: int) -> dict[str, Any]:
        """So many rows, by key."""
        found: dict[str, Any] = {}
        while len(found) < count:
            _, body = await self.next("rows")
            found |= {change["key"]: change["value"] for change in body["changes"]}
        return found


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own(server.made_topic(descriptor()))
        await server.commit(rows(10))
        proxy = await stack.enter_async_context(
            proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=PATIENCE_SECONDS)
        )
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Watched(server, proxy, http)


async def test_rows_come_first_and_then_each_change_with_what_was_before(watched: Watched) -> None:
    async with watched.events("?before=true&integers=text") as events:
        found = await events.rows(10)
        assert found == {f"sensor-{number}": {"celsius": float(number), "count": "1"} for number in range(10)}
        assert events.last_id
        await watched.server.commit({"sensor-3": row(33.0, 2)})
        _, body = await events.next("changes")
        (change,) = body["changes"]
        assert (change["key"], change["value"], body["epoch"]) == ("sensor-3", {"celsius": 33.0, "count": "2"}, 2)
        assert change["before"] == {"celsius": 3.0, "count": "1"}
        assert body["commit_time"].startswith("1970-01-01T00:00:02")


async def test_whoever_comes_back_with_the_last_id_misses_nothing_and_gets_nothing_twice(watched: Watched) -> None:
    async with watched.events("?key=sensor-1&key=sensor-2") as events:
        assert set(await events.rows(2)) == {"sensor-1", "sensor-2"}
        await watched.server.commit({"sensor-1": row(10.0), "sensor-3": row(30.0)})
        _, body = await events.next("changes")
        assert [change["key"] for change in body["changes"]] == ["sensor-1"]
        last = events.last_id
    await watched.server.commit({"sensor-2": row(20.0)})
    for again in ({"Last-Event-ID": last}, {}):
        after = "" if again else f"&after={last}"
        async with watched.events(f"?key=sensor-1&key=sensor-2{after}", **again) as events:
            kind, body = await events.next("rows", "changes")
            assert kind == "changes"
            assert [(change["key"], change["value"]["celsius"]) for change in body["changes"]] == [("sensor-2", 20.0)]


async def test_each_event_has_an_id_also_those_that_have_come_to_the_proxy_together(watched: Watched) -> None:
    async with watched.events("?snapshot=false") as events:
        await events.next("progress")
        last = events.last_id
    for epoch in (2, 3, 4):
        await watched.server.commit({f"sensor-{number}": row(float(epoch)) for number in range(10)})
    came: list[tuple[int, list[str]]] = []
    while sum(len(keys) for _, keys in came) < 30:
        # Whoever leaves behind any of them goes on with the next one.
        async with watched.events("?snapshot=false", **{"Last-Event-ID": last}) as events:
            kind, body = await events.next("rows", "changes")
            assert kind == "changes"
            assert body["complete_epoch"] in (0, 1, 4)
            came.append((body["epoch"], sorted(change["key"] for change in body["changes"])))
            assert events.last_id != last
            last = events.last_id
    # What an epoch has changed in all key groups is one event.
    assert came == [(epoch, [f"sensor-{number}" for number in range(10)]) for epoch in (2, 3, 4)]


async def test_a_prefix_a_range_and_a_predicate_are_parameters(watched: Watched) -> None:
    where = "prefix=sensor-&where=celsius+%3E+7&where=sensor+%21%3D+sensor-9&fields=celsius&before=true"
    async with watched.events(f"?{where}") as events:
        assert await events.rows(1) == {"sensor-8": {"celsius": 8.0}}
        await watched.server.commit({"sensor-3": row(33.0), "sensor-8": row(1.0), "sensor-9": row(99.0)})
        found: dict[str, Any] = {}
        while len(found) < 2:
            _, body = await events.next("changes")
            found |= {change["key"]: (change["value"], change["before"]) for change in body["changes"]}
        assert found == {"sensor-3": ({"celsius": 33.0}, None), "sensor-8": (None, {"celsius": 8.0})}
        last = events.last_id
    await watched.server.commit({"sensor-3": row(34.0)})
    async with watched.events(f"?{where}", **{"Last-Event-ID": last}) as events:
        _, body = await events.next("rows", "changes")
        assert [(change["key"], change["value"]) for change in body["changes"]] == [("sensor-3", {"celsius": 34.0})]
    async with watched.events("?from=sensor-2&to=sensor-4") as events:
        assert set(await events.rows(2)) == {"sensor-2", "sensor-3"}


async def test_where_nothing_changes_an_event_says_that_the_stream_goes_on(watched: Watched) -> None:
    async with watched.events("?snapshot=false&latest_only=true") as events:
        _, body = await events.next("progress")
        assert set(body) == {"as_of", "complete_epoch", "snapshot_done"}


async def test_entries_of_a_map_state_have_their_map_key(watched: Watched) -> None:
    async with state_server("b") as server:
        await server.own(server.made_topic(hourly()))
        await server.commit(hours("sensor-7", range(3)) | hours("sensor-8", [0]))
        async with proxy_of(server.address, http="127.0.0.1:0", timeout_seconds=PATIENCE_SECONDS) as proxy:
            of = Watched(server, proxy, watched.http)
            path = f"/v1/{hourly().application}/{hourly().state}:watch"
            async with of.events("?key=sensor-7", path) as events:
                found: list[Any] = []
                while len(found) < 3:
                    found += (await events.next("rows"))[1]["changes"]
                assert sorted((change["key"], change["map_key"]) for change in found) == [
                    ("sensor-7", hour) for hour in range(3)
                ]
                await server.commit({("sensor-7", 1): None})  # type: ignore[dict-item]  # a deletion
                _, body = await events.next("changes")
                assert body["changes"] == [{"key": "sensor-7", "map_key": 1, "value": None}]


@pytest.mark.parametrize(
    ("parameters", "headers", "status", "title"),
    [
        ("?nothing=1", {}, 400, "Malformed request"),
        ("?before=perhaps", {}, 400, "Malformed request"),
        ("?before=true&before=true", {}, 400, "Malformed request"),
        ("?integers=words", {}, 400, "Malformed request"),
        ("?where=colour+%3D+red", {}, 400, "Value mismatch"),
        ("?fields=colour", {}, 400, "Value mismatch"),
        ("?prefix=a&from=b", {}, 400, "Malformed request"),
        ("?key=a&prefix=a", {}, 400, "Malformed request"),
        ("", {"Last-Event-ID": "no token"}, 400, "Malformed request"),
    ],
)
async def test_what_can_not_be_watched_is_refused_before_the_first_event(
    watched: Watched, parameters: str, headers: dict[str, str], status: int, title: str
) -> None:
    async with watched.http.get(watched.url() + parameters, headers=headers) as response:
        assert (response.status, (await response.json(content_type=None))["title"]) == (status, title)


async def test_a_state_that_there_is_not_and_head_are_refused(watched: Watched) -> None:
    async with watched.http.get(watched.url(f"/v1/{APPLICATION}/nothing:watch")) as response:
        assert (response.status, (await response.json(content_type=None))["title"]) == (404, "Unknown state")
    async with watched.http.head(watched.url()) as response:
        assert response.status == 405


async def test_a_watch_of_a_state_that_is_retired_ends_with_an_event_that_says_why(watched: Watched) -> None:
    async with watched.events() as events:
        await events.rows(10)
        await watched.server.retire()
        _, body = await events.next("error")
        assert body["title"] in ("Unknown state", "Unknown application")


def _headers(directory: Path) -> dict[str, dict[str, str]]:
    """By which who has a token shows it."""
    tokens = {of.stem: of.read_text().strip() for of in directory.glob("*.token")}
    return {who: {"Authorization": f"Bearer {token}"} for who, token in tokens.items()}


async def test_what_a_watcher_may_and_who_it_is_counts_for_open_streams_and_it_is_told_of_nothing_else(
    watched: Watched, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy, token_file = tmp_path / "policy.toml", tmp_path / "tokens.toml"
    policy.write_text(POLICY)
    kept = make_tokens(tmp_path, "reader", "denied", "kept")
    token_file.write_text(kept + "\n" + make_tokens(tmp_path, "forgotten"))
    shown = _headers(tmp_path)
    security = {"policy": str(policy), "tokens": str(token_file)}
    async with AsyncExitStack() as stack:
        (beside,) = await stack.enter_async_context(fake_servers("b"))
        beside.host(descriptor("hidden", query="other"), {})
        addresses = (watched.server.address, beside.address)
        proxy = await stack.enter_async_context(
            proxy_of(*addresses, http="127.0.0.1:0", timeout_seconds=PATIENCE_SECONDS, security=security)
        )
        await eventually(lambda: proxy._directory.settled.is_set())
        of = Watched(watched.server, proxy, watched.http)
        for headers, status in (({}, 401), (shown["reader"], 403)):
            async with of.http.get(of.url(), headers=headers) as response:
                assert response.status == status
        streams = {
            who: await stack.enter_async_context(of.events(**shown[who])) for who in ("denied", "forgotten", "kept")
        }
        for events in streams.values():
            await events.rows(10)
        caplog.set_level(logging.INFO, "keyhole.audit")
        caplog.clear()
        policy.write_text(POLICY.replace('"token:denied", ', ""))
        token_file.write_text(kept)
        ends = asyncio.gather(*(streams[who].next("error") for who in ("denied", "forgotten")))
        while not ends.done():  # changed files are read a moment later, and what a stream may is asked at each event
            await of.server.commit({"sensor-1": row(1.0)})
            await asyncio.wait([ends], timeout=0.05)
        assert [body["reason"] for _, body in await ends] == ["PERMISSION_DENIED", "UNAUTHENTICATED"]
        audited = [record.__dict__ for record in caplog.records if record.name == "keyhole.audit"]
        (denied,) = [record for record in audited if "verb" in record]
        assert (denied["who"], denied["verb"], denied["state"]) == ("token:denied", "watch", STATE)
        assert denied["method"].startswith("GET /v1/")
        await of.server.retire()
        _, body = await streams["kept"].next("error")
        assert body["reason"] == "UNKNOWN_STATE"
        assert "hidden" not in json.dumps(body)


async def test_a_reader_that_goes_away_leaves_no_watch_behind(watched: Watched) -> None:
    async with watched.events() as events:
        await events.rows(10)
    async with asyncio.timeout(PATIENCE_SECONDS):
        number = 0
        while value(await read_stats(watched.server.address), "keyhole_state_server_open_watches", server="a"):
            number += 1
            await watched.server.commit({"sensor-1": row(float(number))})  # by which the proxy writes to it
            await asyncio.sleep(0.01)


async def test_a_proxy_that_ends_tells_those_who_watch_to_come_back(watched: Watched) -> None:
    async with watched.events() as events:
        await events.rows(10)
        watched.proxy._servicer.drain()
        _, body = await events.next("error")
        assert (body["title"], body["retryable"]) == ("Draining", True)
    # Over a connection that was open before, one may still ask.
    async with watched.http.get(watched.url()) as response:
        problem = await response.json(content_type=None)
        assert (response.status, problem["title"], response.headers["Retry-After"]) == (503, "Draining", "1")


async def test_a_proxy_that_is_stopped_ends_its_watches(watched: Watched) -> None:
    async with watched.events() as events:
        await events.rows(10)
        stopping = asyncio.create_task(watched.proxy.stop(PATIENCE_SECONDS))
        try:
            _, body = await events.next("error")
            assert (body["title"], body["retryable"]) == ("Draining", True)
        except (aiohttp.ClientError, AssertionError, KeyholeError):
            pass  # or the stream ends, and EventSource comes back by itself
        await stopping

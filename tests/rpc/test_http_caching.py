"""What the answer to one key may be kept by over HTTP, how long, and by which names the port may be called."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateDescriptor
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.app import ClientProxy
from services.client_proxy.http import caching
from services.client_proxy.http.host_names import answering_to, checked_hosts
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.waiting import eventually

PATH = f"/v1/{APPLICATION}/{STATE}"
NOW_MS = 1_700_000_000_000


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Any, ClientProxy, aiohttp.ClientSession]]:
    async with (
        fake_servers("server-1") as (server,),
        proxy_of(server.address, http="127.0.0.1:0", **options) as proxy,
        aiohttp.ClientSession() as http,
    ):
        server.host(descriptor(), rows(3))
        await eventually(lambda: proxy._directory.tables)
        yield server, proxy, http


async def test_an_answer_that_is_known_is_not_sent_again_until_it_says_anything_new() -> None:
    async with served() as (server, proxy, http):
        state = server.states[APPLICATION, STATE]

        async def asked(path: str, known: str = "", method: str = "GET") -> tuple[int, Mapping[str, str], bytes]:
            headers = {"If-None-Match": known} if known else {}
            async with http.request(method, f"http://{proxy.http_address}{path}", headers=headers) as response:
                return response.status, response.headers, await response.read()

        status, headers, _ = await asked(f"{PATH}/sensor-1")
        tag = headers["ETag"]
        # One epoch was seen: nobody knows when the next one comes.
        assert (status, headers["Cache-Control"], tag[:3]) == (200, "no-cache", 'W/"')
        for known in (tag, tag.removeprefix("W/"), f'"another", {tag}', "*"):
            status, headers, body = await asked(f"{PATH}/sensor-1", known)
            assert (status, headers["ETag"], body) == (304, tag, b""), known
        assert (await asked(f"{PATH}/sensor-1", tag, "HEAD"))[0] == 304
        # Another key, another spelling, and an absent key are other answers.
        other = [f"{PATH}/sensor-2", f"{PATH}/sensor-1?integers=text", f"{PATH}/nobody"]
        assert [(await asked(path, tag))[0] for path in other] == [200, 200, 200]
        assert len({tag, *[(await asked(path))[1]["ETag"] for path in other]}) == 4

        # The fake's epochs are a second apart: epoch 7 is of the seventh second since 1970.
        seconds = []
        state.epoch = int(time.time()) + 3_600
        for query in ("", "?stale=never", "?max_staleness=0.5"):
            headers = (await asked(f"{PATH}/sensor-1{query}"))[1]
            seconds.append(headers["Cache-Control"])
        assert seconds == ["max-age=1", "no-cache", "no-cache"]

        def unconfirmed() -> None:
            state.confirmed = False

        def epoch() -> None:
            state.epoch += 1

        for change in (lambda: state.put("sensor-1", row(5.0)), epoch, unconfirmed):
            change()
            status, headers, _ = await asked(f"{PATH}/sensor-1", tag)
            assert status == 200
            assert headers["ETag"] != tag
            tag = headers["ETag"]

        for path in ("/v1", PATH, f"{PATH}:scan", f"{PATH}/k?secret", "/v1/nowhere/x/k", "/nowhere"):
            _, headers, _ = await asked(path, tag)
            assert headers["Cache-Control"] == "no-store", path
            assert "ETag" not in headers
        async with http.post(f"http://{proxy.http_address}{PATH}:batchGet", json={"keys": ["sensor-1"]}) as response:
            assert response.headers["Cache-Control"] == "no-store"


def _source(epoch: int = 7, commit_ms: int = NOW_MS, **more: Any) -> state_pb2.Source:
    fields = {"generation": 1, "role": state_pb2.ROLE_OWNER, "as_of_ms": NOW_MS, **more}
    return state_pb2.Source(epoch=epoch, commit_time_ms=commit_ms, **fields)


def _seconds(
    pace: float | None = 10.0,
    *,
    now_ms: int = NOW_MS + 2_500,
    of: StateDescriptor | None = None,
    source: Mapping[str, Any] | None = None,
    **options: Any,
) -> int:
    answered = _source(**(source or {}))
    return caching.fresh_seconds(of or descriptor(), pb.ReadOptions(**options), answered, pace, now_ms)


def test_an_answer_is_kept_until_the_next_epoch_is_due_and_no_longer_than_the_reader_allows() -> None:
    assert _seconds() == 7
    assert _seconds(max_staleness_ms=5_000) == 2
    assert _seconds(max_staleness_ms=60_000) == 7
    assert _seconds(max_staleness_ms=2_000) == 0
    assert _seconds(pace=3600.0) == caching.MOST_SECONDS
    # It is late already; nobody knows how far apart epochs are; the driver's clock is ahead.
    assert _seconds(now_ms=NOW_MS + 20_000) == 0
    assert _seconds(pace=None) == 0
    assert _seconds(now_ms=NOW_MS - 5_000) == 10
    # Not what another copy may know better, and not where something comes or goes at any time.
    assert _seconds(stale=pb.STALE_NEVER) == 0
    assert _seconds(consistency=pb.CONSISTENCY_LATEST) == 0
    assert _seconds(source={"unconfirmed": True}) == 0
    assert _seconds(source={"lag_epochs": 1}) == 0
    assert _seconds(source={"role": state_pb2.ROLE_STANDBY}) == 0
    assert _seconds(of=msgspec.structs.replace(descriptor(), updates_topic_id="u")) == 0
    assert _seconds(of=msgspec.structs.replace(descriptor(), ttl_ms=1)) == 0


def test_how_far_apart_epochs_are_is_taken_from_the_shortest_of_the_last_ones() -> None:
    pace, name = caching.EpochPace(), (APPLICATION, STATE)
    assert pace.seconds(name, 1) is None
    for epoch, seconds in ((0, 0), (1, 10), (1, 10), (3, 30), (2, 20), (4, 34)):
        pace.note(name, _source(epoch, seconds * 1000))
    assert pace.seconds(name, 1) == 4.0
    assert pace.seconds(name, 2) is None
    assert pace.seconds((APPLICATION, "other"), 1) is None
    for number in range(9):
        pace.note(name, _source(5 + number, (44 + 10 * number) * 1000))
    assert pace.seconds(name, 1) == 10.0


def test_where_callers_are_told_apart_only_their_own_caches_keep_what_they_were_answered() -> None:
    assert [caching.control(seconds, private=private) for seconds in (0, 7) for private in (False, True)] == [
        "no-cache",
        "private, no-cache",
        "max-age=7",
        "private, max-age=7",
    ]


async def test_a_page_that_calls_the_proxy_by_a_name_of_its_own_is_refused() -> None:
    """DNS rebinding: the name leads to the proxy's address, and what the port answers would be of the page's origin."""
    async with served(http_hosts=("reads.example.com",)) as (_, proxy, http):
        port = proxy.http_address.rpartition(":")[2]

        async def asked(host: str, path: str = f"{PATH}/sensor-1") -> tuple[int, dict[str, Any]]:
            async with http.get(f"http://{proxy.http_address}{path}", headers={"Host": host}) as response:
                return response.status, await response.json(content_type=None) if path.startswith("/v1") else {}

        ours = ("127.0.0.1", "localhost", "a.localhost", "[::1]", "10.1.2.3", "Reads.Example.com", "localhost.")
        for host in ours:
            for named in (host, f"{host}:{port}"):
                assert (await asked(named))[0] == 200, named
        for host in (
            "evil.example",
            "reads.example.com.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "a b",
        ):
            status, body = await asked(f"{host}:{port}")
            assert (status, body["status"], body["reason"]) == (421, 421, "MALFORMED_REQUEST"), host
            assert "KEYHOLE_CLIENT_PROXY_HTTP_HOSTS" in body["detail"]
        for path in ("/console/", "/console/api/overview", "/openapi.json", "/"):
            assert (await asked("evil.example", path))[0] == 421, path
        assert (await asked("evil.example", "/healthz"))[0] == 200


def test_names_are_spelled_without_all_that_is_no_name() -> None:
    assert checked_hosts(["Reads.Example.com.", "client-proxy", "my_proxy"]) == {
        "reads.example.com",
        "client-proxy",
        "my_proxy",
    }
    assert callable(answering_to(frozenset()))
    for wrong in ("*", "", "*.example.com", "http://x", "x:80", "x/y", "bücher.example", ".x", "x..y", "-x"):
        with pytest.raises(InvalidConfiguration, match="each must be one name"):
            checked_hosts([wrong])

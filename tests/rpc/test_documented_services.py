"""What docs/fastapi.md and docs/coming-from.md show runs, word for word but for deadlines that a slow machine misses:
against states in memory, and a real proxy.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import MagicMock

import httpx2
import msgspec
import pytest

import keyhole
from keyhole.testing.served_states import ServedStates
from services.client_proxy.http.openapi_shapes import TOTALS
from tests.support.proxies import fake_servers, proxy_of
from tests.support.snippets import blocks
from tests.support.waiting import PATIENCE_SECONDS

SERVICE, ITS_TEST = blocks("docs/fastapi.md")
ITS_DEADLINE = "timeout=0.5"
MAKING, READING, REDIS = blocks("docs/coming-from.md")


def service(monkeypatch: pytest.MonkeyPatch, timeout_seconds: float) -> types.ModuleType:
    """The page's service.py, as a module that the page's test can import."""
    module = types.ModuleType("service")
    monkeypatch.setitem(sys.modules, "service", module)
    assert SERVICE.count(ITS_DEADLINE) == 2
    code = SERVICE.replace(ITS_DEADLINE, f"timeout={timeout_seconds}")
    exec(compile(code, "docs/fastapi.md", "exec"), module.__dict__)
    return module


@asynccontextmanager
async def asking(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://service") as http,
    ):
        yield http


def test_its_own_test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    service(monkeypatch, PATIENCE_SECONDS)
    names: dict[str, Any] = {}
    exec(compile(ITS_TEST, "docs/fastapi.md", "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0](monkeypatch)


async def test_through_a_proxy_each_refusal_has_its_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_servers("server-1") as (server,), proxy_of(server.address) as proxy:
        monkeypatch.setenv("KEYHOLE_PROXY", proxy.address)
        async with asking(service(monkeypatch, PATIENCE_SECONDS).app) as http:
            # The job has not begun.
            response = await http.get("/customers/c1")
            assert (response.status_code, response.json()) == (500, {"reason": "UNKNOWN_APPLICATION"})
            assert "GET /customers/c1: no application 'shop'" in caplog.messages[-1]
            state = server.host(TOTALS, {"c1": msgspec.msgpack.encode([1, 2, 34.5])})
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (response := await http.get("/customers/c1")).status_code != 200:
                    assert response.json()["reason"] in ("UNKNOWN_APPLICATION", "NO_SERVER", "NOT_READY")
            assert response.json()["spent"] == 34.5
            assert (await http.get("/customers/c9")).status_code == 404
            response = await http.get(f"/customers/{'c' * 600}")
            assert (response.status_code, response.json()) == (422, {"reason": "KEY_TOO_LONG"})
            state.as_of_ms = 1_000  # of long ago, and no other copy is there
            assert (await http.get("/customers?ids=c1,c9")).json() == {"c1": 34.5, "c9": 0.0}
        # Which waits for a fresher one to its end.
        async with asking(service(monkeypatch, 0.5).app) as http:
            response = await http.get("/customers/c1")
            assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
            assert response.json()["reason"] in ("TOO_STALE", "DEADLINE_EXCEEDED")


def test_what_makes_the_states_of_other_systems_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"APPLICATION": "shop", "SERVERS": "a:1", "BOOTSTRAP_SERVERS": "a:2"}.items():
        monkeypatch.setenv(f"KEYHOLE_JOB_{name}", value)
    orders = MagicMock(name="orders")
    names: dict[str, Any] = {"orders": orders, "timedelta": dt.timedelta}
    exec(compile(MAKING, "docs/coming-from.md", "exec"), names)
    started = orders.writeStream.queryName.return_value.option.return_value.foreachBatch
    started.assert_called_once_with(names["totals"])
    assert [type(names[sink]).__name__ for sink in ("totals", "daily")] == ["Sink", "Sink"]
    redis = MagicMock(name="redis")
    there: dict[str, Any] = {"redis": redis}
    exec(compile(REDIS, "docs/coming-from.md", "exec"), there)
    batch = MagicMock(name="batch")
    batch.toLocalIterator.return_value = [types.SimpleNamespace(customer="c1", spent=4.5)]
    there["to_redis"](batch, 0)
    redis.hincrbyfloat.assert_called_once_with("customer:c1", "spent", 4.5)


def test_what_reads_the_states_of_other_systems_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServedStates() as served:
        served.write("shop/totals", [{"customer": "c1", "order_id": 2, "spent": 34.5}], key="customer")
        days = [{"customer": "c1", "day": dt.date(2026, 11, day), "count": day} for day in (1, 30)]
        served.write("shop/daily", [*days, {**days[0], "day": dt.date(2026, 12, 1)}], key="customer", map_key="day")
        names: dict[str, Any] = {"keyhole": keyhole, "date": dt.date}
        exec(compile(READING.replace("proxy:7400", served.address), "docs/coming-from.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("34.5 ")
    assert printed[1:] == ["2026-11-01 1", "2026-11-30 30"]
    assert [answer.found for answer in names["answers"]] == [True, False]

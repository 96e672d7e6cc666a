"""SQL of the console through a real proxy: a query in a process of its own, what is cut, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from keyhole.sql import one_query
from keyhole.testing.fake_server import FakeServer
from services.client_proxy.app import ClientProxy
from services.client_proxy.console import sql_queries
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS, eventually

POLICY = """
[[allow]]
who = ["token:reader"]
verbs = ["read", "scan"]
states = ["*/*"]
"""
NAME = f"'{APPLICATION}/{STATE}'"


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_servers("server-1") as (server,):
        server.host(descriptor(), rows(1000))
        yield server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query's process lets all others go first: on a busy machine it may have no turn for minutes."""
    monkeypatch.setattr(sql_queries, "_SECONDS", 5 * LONG_SECONDS)
    monkeypatch.setattr(sql_queries, "_BEGIN_SECONDS", 5 * LONG_SECONDS)


class Asked:
    """A client of a proxy's console."""

    def __init__(self, proxy: ClientProxy, http: aiohttp.ClientSession) -> None:
        assert proxy._console is not None
        self.console = proxy._console
        self._base = f"http://{proxy.http_address}/console/api"
        self._http = http

    async def offers(self) -> str:
        """Why it has no SQL; empty: it has."""
        async with self._http.get(f"{self._base}/overview") as response:
            return str((await response.json())["no_sql"])

    async def sql(self, query: object, **headers: str) -> tuple[int, dict[str, Any]]:
        return await self.post(json.dumps({"query": query}).encode(), **headers)

    async def found(self, query: str) -> dict[str, Any]:
        """Of one that is answered."""
        status, found = await self.sql(query)
        assert status == 200, found
        return found

    async def post(self, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
        sent = {"Content-Type": "application/json", **headers}
        async with self._http.post(f"{self._base}/sql", data=body, headers=sent) as response:
            return response.status, json.loads(await response.read())


@asynccontextmanager
async def console(server: FakeServer, **settings: Any) -> AsyncIterator[Asked]:
    async with (
        proxy_of(server.address, http="127.0.0.1:0", **settings) as proxy,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10 * LONG_SECONDS)) as http,
    ):
        await asyncio.wait_for(proxy._directory.reached.wait(), LONG_SECONDS)
        yield Asked(proxy, http)


async def test_a_query_has_its_rows_and_what_the_servers_were_asked(server: FakeServer) -> None:
    async with console(server) as asked:
        assert await asked.offers() == ""
        big = 2**53 + 1
        found = await asked.found(f"select count(*) n, {big} big, 'nan'::double nan from {NAME}")
        assert (found["columns"], found["rows"]) == (["n", "big", "nan"], [[1000, big, "NaN"]])
        assert (found["total"], found["seconds"] > 0) == (1, True)
        (scan,) = found["scans"]
        assert (scan["state"], scan["entries"], scan["epoch"]) == (f"{APPLICATION}/{STATE}", 1000, 1)


async def test_of_many_rows_the_first_are_given_and_all_are_counted(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console(server) as asked:
        found = await asked.found(f"select * from {NAME}")
        assert (len(found["rows"]), found["total"]) == (sql_queries.MOST_ROWS, 1000)
        monkeypatch.setattr(sql_queries, "_MOST_BYTES", 1000)
        found = await asked.found("select repeat('x', 400) from range(10)")
        assert (len(found["rows"]), found["total"]) == (2, 10)
        found = await asked.found("select repeat('x', 4000) from range(10)")
        assert len(found["rows"]) == 1, "one row is always shown"


async def test_no_query_makes_a_large_answer(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with console(server) as asked:
        found = await asked.found("select repeat('x', 60000000) a, list_value(repeat('y', 30000)) b")
        ((text, listed),) = found["rows"]
        assert text == "x" * 10_000 + " … (60,000,000 characters)"
        assert listed.startswith('["yyy')
        assert len(listed) < 10_100
        _, problem = await asked.sql("select error(repeat('z', 20000000))")
        assert (problem["reason"], len(problem["detail"]) < 3_000) == ("MALFORMED_REQUEST", True)
        _, problem = await asked.sql(f"select {', '.join(f'{number} c{number}' for number in range(1_200))}")
        assert (problem["reason"], "1,200 columns" in problem["detail"]) == ("TOO_LARGE", True)
        monkeypatch.setattr(sql_queries, "_MOST_ANSWER", 1_000)
        _, problem = await asked.sql("select repeat('x', 4000)")
        assert problem["reason"] == "TOO_LARGE"


async def test_nothing_else_is_printed_where_the_answer_is(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what a library says, nor the bar that DuckDB draws for a query of two seconds."""
    printing = "of.answer = lambda question, was=of.answer: (print(1), was(question), no_pandas())[1]"
    # Nor is pandas loaded, which takes a while and is not used.
    looking = "no_pandas = lambda: 1 // ('pandas' not in sys.modules)"
    run = f"import sys; from keyhole.sql import one_query as of; {looking}; {printing}; of.main()"
    monkeypatch.setattr(sql_queries, "_RUN", run)
    async with console(server) as asked:
        found = await asked.found("select current_setting('enable_progress_bar')")
        assert found["rows"] == [[False]]


async def test_values_are_those_of_json(server: FakeServer) -> None:
    query = "select ['nan'::double, 'inf'::double] l, {'a': 1, 'b': ['nan'::double]} s, map {'k': 1.5::double} m"
    async with console(server) as asked:
        found = await asked.found(query)
        assert found["rows"] == [[["NaN", "Infinity"], {"a": 1, "b": ["NaN"]}, [["k", 1.5]]]]


@pytest.mark.parametrize(
    ("query", "reason", "words"),
    [
        ("selec", "MALFORMED_REQUEST", "syntax error"),
        ("drop table x", "MALFORMED_REQUEST", "one SELECT"),
        (f"copy (select * from {NAME}) to '/tmp/x'", "MALFORMED_REQUEST", "one SELECT"),
        ("select * from read_csv('/etc/passwd')", "MALFORMED_REQUEST", "DuckDB refuses"),
        ("select * from 'nothing/there'", "UNKNOWN_APPLICATION", "nothing"),
        ("", "MALFORMED_REQUEST", "one SELECT"),
        ("x" * 20_001, "MALFORMED_REQUEST", "20,000 characters"),
        (7, "MALFORMED_REQUEST", "the body is not as"),
    ],
)
async def test_what_is_wrong_with_a_query_is_said(server: FakeServer, query: object, reason: str, words: str) -> None:
    async with console(server) as asked:
        status, problem = await asked.sql(query)
        assert (400 <= status < 500, problem["reason"]) == (True, reason)
        assert words in problem["detail"]


async def test_a_body_that_is_no_text_is_refused(server: FakeServer) -> None:
    async with console(server) as asked:
        for body in (b'{"query":"\xff"}', b"[" * 100_000, b""):
            status, problem = await asked.post(body)
            assert (status, problem["reason"]) == (400, "MALFORMED_REQUEST")


async def test_no_form_of_another_page_runs_a_query(server: FakeServer) -> None:
    async with console(server) as asked:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            status, problem = await asked.sql("select 1", **{"Content-Type": kind})
            assert (status, "Content-Type" in problem["detail"]) == (400, True)


async def test_one_runs_at_a_time_and_ends_with_the_proxy(server: FakeServer) -> None:
    forever = "select sum(a.range * b.range) from range(1000000) a, range(1000000) b"
    async with console(server) as asked:
        running = asyncio.create_task(asked.sql(forever))
        queries = asked.console._sql
        await eventually(lambda: queries._running is not None)
        process = queries._running
        status, refused = await asked.sql("select 1")
        assert (status, refused["reason"], refused["retryable"]) == (429, "OVERLOADED", True)
        assert process is not None
        assert process.returncode is None
    await process.wait()
    with pytest.raises(aiohttp.ClientError):
        await running


async def test_a_process_that_takes_too_long_or_dies_is_told(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console(server) as asked:
        with monkeypatch.context() as patch:
            patch.setattr(sql_queries, "_BEGIN_SECONDS", 0.01)
            patch.setattr(sql_queries, "_SECONDS", 0.01)
            assert (await asked.sql("select 1"))[1]["reason"] == "DEADLINE_EXCEEDED"
        monkeypatch.setattr(sql_queries, "_MEMORY", 7)
        status, problem = await asked.sql("select 1")
        assert (status, "ended with 1" in problem["detail"]) == (500, True)


async def test_there_is_none_where_callers_have_rights_or_duckdb_is_not_installed(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens.toml").write_text(make_tokens(tmp_path, "reader"))
    (tmp_path / "policy.toml").write_text(POLICY)
    token = (tmp_path / "reader.token").read_text().strip()
    settings = {name: str(tmp_path / f"{name}.toml") for name in ("policy", "tokens")}
    async with console(server, security=settings) as asked:
        assert (await asked.sql("select 1"))[0] == 401
        status, problem = await asked.sql("select 1", Authorization=f"Bearer {token}")
        assert (status, "with your own token" in problem["detail"]) == (501, True)
    monkeypatch.setattr(f"{sql_queries.__name__}.find_spec", lambda name: None)
    async with console(server) as asked:
        assert "no duckdb and no pyarrow" in await asked.offers()
        assert (await asked.sql("select 1"))[1]["reason"] == "UNSUPPORTED"


def test_the_process_refuses_as_the_client_does() -> None:
    question = one_query.SqlQuestion("select * from 'a/b'", "http://nonsense", 1.0, "1MB", 1, 1, 1 << 30)
    refused = one_query.answer(question)
    assert isinstance(refused, one_query.SqlRefused)
    assert refused.reason == "INVALID_CONFIGURATION"

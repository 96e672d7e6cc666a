"""From a stream through Spark, a state server and a proxy to a client: what users are promised, read as they read."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as f

import keyhole
from keyhole.errors import KeyMismatch, NullKey, UnknownApplication, UnknownState
from keyhole.spark import queryable
from keyhole.types import Role
from tests.support.streams import RunQuery, Service, Stream

SCHEMA = "k string, v bigint"


def test_every_key_of_a_running_count_is_answered_through_the_proxy(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """F01: 256 keys. F03: the latest value of every key. F08: value columns by default."""
    batches = [[{"k": f"key-{n}", "v": n + batch} for n in range(256)] for batch in range(3)]
    counted = stream(SCHEMA, batches).groupBy("k").agg(f.count("*").alias("n"), f.max("v").alias("highest"))
    run_query(counted, "update", queryable.value("counts", key="k", config=service.config(application)))
    with keyhole.Client(service.proxy) as client:
        answers = client.get_many(application, "counts", [f"key-{n}" for n in range(256)])
    assert [(a.found, a.value.n, a.value.highest) for a in answers] == [(True, 3, n + 2) for n in range(256)]


def test_an_answer_tells_epoch_commit_time_server_and_role(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = stream(SCHEMA, [[{"k": "a", "v": 1}], [{"k": "a", "v": 2}]])
    began = datetime.now(UTC) - timedelta(seconds=1)
    run_query(rows, "append", queryable.value("last", key="k", config=service.config(application)))
    with keyhole.Client(service.proxy) as client:
        answer = client.get(application, "last", "a")
    assert (answer.epoch, answer.server, answer.role) == (2, "server-0", Role.OWNER)
    assert answer.commit_time is not None
    assert began < answer.commit_time <= datetime.now(UTC)
    assert answer.value.v == 2


def test_a_state_that_does_not_exist_yet_is_found_once_its_job_runs(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """F06: no poisoned cache."""
    with keyhole.Client(service.proxy) as client:
        with pytest.raises(UnknownApplication, match=application):
            client.get(application, "last", "a")
        run_query(
            stream(SCHEMA, [[{"k": "a", "v": 1}]]),
            "append",
            queryable.value("last", key="k", config=service.config(application)),
        )
        assert client.get(application, "last", "a").found


def test_a_wrong_application_and_a_wrong_state_have_errors_of_their_own(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """F05."""
    rows = stream(SCHEMA, [[{"k": "a", "v": 1}]])
    run_query(rows, "append", queryable.value("last", key="k", config=service.config(application)))
    with keyhole.Client(service.proxy) as client:
        with pytest.raises(UnknownState, match="last"):
            client.get(application, "first", "a")
        with pytest.raises(UnknownApplication, match=application):
            client.get("no-such-application", "last", "a")


def test_an_absent_key_is_not_found_and_never_a_default(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """F07."""
    rows = stream(SCHEMA, [[{"k": "a", "v": 0}]])
    run_query(rows, "append", queryable.value("last", key="k", config=service.config(application)))
    with keyhole.Client(service.proxy) as client:
        answer = client.get(application, "last", "b")
    assert (answer.found, answer.value) == (False, None)
    assert answer.epoch == 1


def test_a_key_of_another_type_or_arity_is_refused(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = stream("a string, b int, v bigint", [[{"a": "x", "b": 1, "v": 1}]])
    run_query(rows, "append", queryable.value("pairs", key=["a", "b"], config=service.config(application)))
    with keyhole.Client(service.proxy) as client:
        assert client.get(application, "pairs", ("x", 1)).value.v == 1
        with pytest.raises(KeyMismatch, match="2"):
            client.get(application, "pairs", "x")
        with pytest.raises(KeyMismatch, match="b"):
            client.get(application, "pairs", ("x", "1"))
        with pytest.raises(NullKey, match="b"):
            client.get(application, "pairs", ("x", None))  # type: ignore[arg-type]  # what a careless caller does


async def test_gathered_gets_of_a_service_are_each_answered_for_themselves(
    service: Service, application: str, stream: Stream, run_query: RunQuery
) -> None:
    rows = stream(SCHEMA, [[{"k": f"key-{n}", "v": n} for n in range(500)]])
    sink = queryable.value("last", key="k", config=service.config(application))
    await asyncio.to_thread(run_query, rows, "append", sink)
    async with keyhole.AsyncClient(service.proxy) as client:
        answers = await asyncio.gather(*(client.get(application, "last", f"key-{n}") for n in range(600)))
    assert [a.value.v if a.found else None for a in answers] == [*range(500), *[None] * 100]


def test_what_was_committed_is_read_after_the_job_has_ended(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = stream(SCHEMA, [[{"k": "a", "v": 1}]])
    run_query(rows, "append", queryable.value("last", key="k", config=service.config(application)))
    with keyhole.Client(service.proxy) as client:
        answer = client.get(application, "last", "a")
        assert answer.found
        states = [state for state in client.list_states() if state.application == application]
        assert [(s.state, s.key_groups) for s in states] == [("last", 64)]
        until = time.monotonic() + 60  # longer than any lease
        while not answer.source.unconfirmed:
            assert time.monotonic() < until
            time.sleep(0.2)
            answer = client.get(application, "last", "a")
        assert (answer.found, answer.value.v) == (True, 1)

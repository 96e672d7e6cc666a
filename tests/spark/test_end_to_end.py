"""From a stream through Spark, a state server and a proxy to a client: what users are promised, read as they read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import keyhole
from keyhole.errors import KeyMismatch, NullKey, UnknownApplication, UnknownState
from keyhole.model.read import Role
from keyhole.spark import queryable
from tests.support.scenario import Scenario, Scenarios
from tests.support.waiting import LONG_SECONDS

SCHEMA = "k string, v bigint"
COUNTED = 256
KEYS = [f"key-{n}" for n in range(500)]
# The first keys come in each batch, the others in the first one.
BATCHES = [
    [{"k": key, "v": n + batch} for n, key in enumerate(KEYS[: COUNTED if batch else None])] for batch in range(3)
]


def highest(rows: DataFrame) -> DataFrame:
    return rows.where("k IN ('key-0', 'key-1')").selectExpr("k", "highest AS v")


def pairs(rows: DataFrame) -> DataFrame:
    return rows.where("k = 'key-1'").selectExpr("'x' AS a", "1 AS b", "highest AS v")


@dataclass(frozen=True)
class Ran:
    """A running count, over three epochs.

    Attributes:
        before: What a reader was told before the job ran.
        began: A moment before it did.
    """

    scenario: Scenario
    before: UnknownApplication
    began: datetime


@pytest.fixture(scope="module")
def ran(scenarios: Scenarios) -> Ran:
    scenario, began = scenarios(), datetime.now(UTC) - timedelta(seconds=1)
    with pytest.raises(UnknownApplication) as unknown:
        scenario.get("last", "key-0")
    counted = scenario.stream(SCHEMA, BATCHES).groupBy("k").agg(f.count("*").alias("n"), f.max("v").alias("highest"))
    sink = queryable.together(
        queryable.value("counts", key="k", key_groups=8, config=scenario.config),
        queryable.value("last", key="k", config=scenario.config).of(highest),
        queryable.value("pairs", key=["a", "b"], key_groups=4, config=scenario.config).of(pairs),
    )
    scenario.run(counted, "update", sink)
    return Ran(scenario, unknown.value, began)


def test_every_key_of_a_running_count_is_answered_through_the_proxy(ran: Ran) -> None:
    """F01: 256 keys. F03: the latest value of every key. F08: value columns by default."""
    answers = ran.scenario.get_many("counts", KEYS[:COUNTED])
    assert [(a.found, a.value.asdict()) for a in answers] == [
        (True, {"n": 3, "highest": n + 2}) for n in range(COUNTED)
    ]


def test_an_answer_tells_epoch_commit_time_server_and_role(ran: Ran) -> None:
    answer = ran.scenario.get("last", "key-0")
    assert (answer.epoch, answer.server, answer.role) == (len(BATCHES), "server-0", Role.OWNER)
    assert answer.commit_time is not None
    assert ran.began < answer.commit_time <= datetime.now(UTC)
    assert answer.value.v == 2


def test_a_state_that_does_not_exist_yet_is_found_once_its_job_runs(ran: Ran) -> None:
    """F06: no poisoned cache."""
    assert ran.scenario.application in ran.before.message
    assert ran.scenario.get("last", "key-0").found


def test_a_wrong_application_and_a_wrong_state_have_errors_of_their_own(ran: Ran) -> None:
    """F05."""
    with pytest.raises(UnknownState, match="last"):
        ran.scenario.get("first", "key-0")
    with pytest.raises(UnknownApplication, match=ran.scenario.application):
        ran.scenario.client.get("no-such-application", "last", "key-0")


def test_an_absent_key_is_not_found_and_never_a_default(ran: Ran) -> None:
    """F07."""
    answer = ran.scenario.get("last", "key-499")
    assert (answer.found, answer.value) == (False, None)
    assert answer.epoch == len(BATCHES)


def test_a_key_of_another_type_or_arity_is_refused(ran: Ran) -> None:
    assert ran.scenario.get("pairs", ("x", 1)).value.v == 3
    with pytest.raises(KeyMismatch, match="2"):
        ran.scenario.get("pairs", "x")
    with pytest.raises(KeyMismatch, match="b"):
        ran.scenario.get("pairs", ("x", "1"))
    with pytest.raises(NullKey, match="b"):
        ran.scenario.get("pairs", ("x", None))  # type: ignore[arg-type]  # what a careless caller does


async def test_gathered_gets_of_a_service_are_each_answered_for_themselves(ran: Ran) -> None:
    async with keyhole.AsyncClient(ran.scenario.service.proxy, timeout=LONG_SECONDS) as client:
        answers = await asyncio.gather(
            *(client.get(ran.scenario.application, "counts", f"key-{n}") for n in range(600))
        )
    last = [n + 2 if n < COUNTED else n for n in range(len(KEYS))]
    assert [a.value.highest if a.found else None for a in answers] == [*last, *[None] * 100]


def test_a_state_has_64_key_groups_where_nothing_else_is_said(ran: Ran) -> None:
    states = [state for state in ran.scenario.client.list_states() if state.application == ran.scenario.application]
    assert {state.state: state.key_groups for state in states} == {"counts": 8, "last": 64, "pairs": 4}


def test_what_was_committed_is_read_after_the_job_has_ended(ran: Ran) -> None:
    answer = ran.scenario.get("last", "key-0")
    assert answer.found
    until = time.monotonic() + LONG_SECONDS  # longer than any lease
    while not answer.source.unconfirmed:
        assert time.monotonic() < until
        time.sleep(0.2)
        answer = ran.scenario.get("last", "key-0")
    assert (answer.found, answer.value.v) == (True, 2)

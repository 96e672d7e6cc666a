"""States with a ttl, fed by Spark: what is found when, from owners and standbys, and what begins anew."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame

from keyhole import Client
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.config import JobConfig, StateServerConfig
from keyhole.errors import EpochNotReached, NotOwner, NotReady
from keyhole.model.read import Role
from keyhole.model.state import TtlClock
from keyhole.protocol.failpoints import NoObserver
from keyhole.spark import queryable
from keyhole.stores.memory import MemoryEngine
from services.state_server.app import StateServer
from tests.support.counting_job import Summary
from tests.support.scenario import Scenario, Scenarios
from tests.support.state_servers import AheadClock
from tests.support.streams import RunQuery, Stream
from tests.support.waiting import LONG_SECONDS, until

SCHEMA = "k string, at timestamp"
TTL = timedelta(hours=2)


def at(key: str, hours: float) -> dict[str, Any]:
    return {"k": key, "at": (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hours)).isoformat()}


class Total:
    """How many rows a subtask has had."""

    def process(self, subtask: queryable.Subtask, elements: list[int], rows: Iterator[Any]) -> list[int]:
        return [sum(elements) + sum(1 for _ in rows)]

    def result(self, elements: Sequence[int]) -> Mapping[str, Any]:
        return {"rows": sum(elements)}


@dataclass(frozen=True)
class Aging:
    """A query whose states live for TTL by event time.

    Attributes:
        counted: After each epoch, how many rows the keys a, b and c have had; None where they aren't found.
        totals: How many rows the subtasks have had together; None where none is found.
    """

    scenario: Scenario
    counted: Sequence[Sequence[int | None]]
    totals: Sequence[int | None]


@pytest.fixture(scope="module")
def aging(scenarios: Scenarios) -> Aging:
    scenario = scenarios()
    # The watermark is 10 minutes behind, and counts from the next batch on.
    batches = [
        [at("a", 0), at("b", 0), at("k0", 0)],
        [at("b", 1), at("k1", 1), at("k2", 1)],
        [at("c", 5), at("k1", 5)],
        [at("a", 5), at("c", 5), at("c", 5), at("k3", 1)],
        [at("b", 5), at("b", 5)],
    ]
    fed_to_operator = {0, 3}
    options: dict[str, Any] = {"ttl": TTL, "ttl_clock": "event_time", "config": scenario.config}
    of_keys: dict[str, Any] = {"key": "k", "key_groups": 4, **options}
    result = "rows bigint, highest bigint, total bigint"
    seen = queryable.value("seen", order_by="at", value=["at"], **of_keys)
    counted = queryable.aggregating("counted", aggregator=Summary(), result=result, value=["v"], **of_keys)
    total = queryable.operator("total", operator=Total(), result="rows bigint", subtasks=2, **options)
    now = 0

    def some(rows: DataFrame) -> DataFrame:
        return rows.where("k IN ('a', 'b', 'c')" if now in fed_to_operator else "false")

    sink = queryable.together(seen, counted, total.of(some))
    found: list[list[int | None]] = []
    totals: list[int | None] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        nonlocal now
        now = batch_id
        sink(batch, batch_id)
        of_keys = scenario.get_many("counted", ["a", "b", "c"])
        of_subtasks = [of for of in scenario.get_many("total", [0, 1]) if of.found]
        found.append([of.value.rows if of.found else None for of in of_keys])
        totals.append(sum(of.value.rows for of in of_subtasks) if of_subtasks else None)

    data = scenario.stream(SCHEMA, batches).withWatermark("at", "10 minutes").selectExpr("*", "1L AS v")
    scenario.run(data, "append", feed, name="aging")
    return Aging(scenario, found, totals)


def test_an_aggregate_begins_anew_where_what_it_held_has_expired(aging: Aging) -> None:
    assert aging.counted == [
        [1, 1, None],
        [1, 2, None],
        [1, 2, 1],
        # In the very epoch in which they have expired: they are not removed yet.
        [1, None, 3],
        [1, 2, 3],
    ]


def test_an_operator_begins_anew_where_what_it_held_has_expired(aging: Aging) -> None:
    assert aging.totals == [2, 2, 2, 3, 3]


def test_an_expired_entry_is_not_returned(aging: Aging) -> None:
    assert [answer.found for answer in aging.scenario.get_many("seen", ["k0", "k1", "k2", "k3"])] == [
        False,
        True,
        False,
        True,
    ]


@contextmanager
def servers_ahead(bootstrap_servers: str) -> Iterator[tuple[list[str], AheadClock]]:
    """Two state servers in this process, and the clock of both, which a test may set forward."""
    clock = AheadClock()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start(name: str) -> StateServer:
        config = StateServerConfig(bootstrap_servers=bootstrap_servers, id=name, port=0)
        made = StateServer(
            config, MemoryEngine(), lambda app: KafkaChangelog(bootstrap_servers, app), clock, NoObserver()
        )
        await made.start()
        return made

    servers = [asyncio.run_coroutine_threadsafe(start(name), loop).result(60) for name in ("server-0", "server-1")]
    try:
        yield [server.address for server in servers], clock
    finally:
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


OLD, NEW = ([f"{age}-{number}" for number in range(8)] for age in ("old", "new"))
EPOCHS = 3


@dataclass(frozen=True)
class Readers:
    """Ask each of the servers, whatever it is to the key."""

    addresses: Sequence[str]
    application: str

    def found(self, state: str) -> set[tuple[str, Role]]:
        """The keys that have entries, and the roles of those who have found them, as of the last epoch."""
        answers = set()
        for address in self.addresses:
            with Client(address, timeout=LONG_SECONDS) as client:
                for key in (*OLD, *NEW):
                    if state == "by_watermark":
                        of = client.scan(self.application, state, key, stale="always", min_epoch=EPOCHS)
                        answers |= {(key, of.source.role)} if len(of) else set()
                    else:
                        answer = client.get(self.application, state, key, stale="always", min_epoch=EPOCHS)
                        answers |= {(key, answer.role)} if answer.found else set()
        return answers

    def follow(self, states: Sequence[str]) -> bool:
        """Whether all copies have the last epoch."""
        try:
            for state in states:
                self.found(state)
        except (EpochNotReached, NotOwner, NotReady):
            return False
        return True


def everywhere(*keys: str) -> set[tuple[str, Role]]:
    return {(key, role) for key in keys for role in (Role.OWNER, Role.STANDBY)}


def test_each_state_of_a_query_has_its_own_ttl_by_its_own_clock_in_owners_and_standbys(
    stream: Stream, run_query: RunQuery, kafka: str, application: str
) -> None:
    batches = [[at(key, 0) for key in OLD], [at(key, 5) for key in NEW], [at("last", 5)]]
    data = stream(SCHEMA, batches).withWatermark("at", "10 minutes").selectExpr("*", "1L AS v")
    with servers_ahead(kafka) as (addresses, clock):
        config = JobConfig(application, tuple(addresses), kafka, epoch_deadline_seconds=120)
        options: dict[str, Any] = {"key": "k", "key_groups": 4, "standbys": 1, "config": config}
        sink = queryable.together(
            queryable.value("by_clock", ttl=TTL, **options),
            queryable.map("by_watermark", map_key="at", ttl=2 * TTL, ttl_clock="event_time", **options),
            queryable.value("for_ever", **options),
        )
        run_query(data, "append", sink, name="aging")
        readers, states = Readers(addresses, application), ("by_clock", "by_watermark", "for_ever")
        until(lambda: readers.follow(states), LONG_SECONDS, pause=0.1)

        clock.ahead_seconds = 3600
        assert readers.found("by_clock") == readers.found("for_ever") == everywhere(*OLD, *NEW)
        assert readers.found("by_watermark") == everywhere(*NEW)
        clock.ahead_seconds = 7200
        assert readers.found("by_clock") == set()
        assert readers.found("by_watermark") == everywhere(*NEW)
        assert readers.found("for_ever") == everywhere(*OLD, *NEW)
        with Client(addresses[0], timeout=LONG_SECONDS) as client:
            declared = [client.describe_state(application, state) for state in states]
    assert [(of.ttl_ms // 3_600_000, of.ttl_clock) for of in declared] == [
        (2, TtlClock.PROCESSING_TIME),
        (4, TtlClock.EVENT_TIME),
        (0, TtlClock.PROCESSING_TIME),
    ]

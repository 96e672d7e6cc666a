"""Which streaming queries a state is not fed by, and what their authors are told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateKind, TtlClock
from keyhole.spark import queryable
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.driver.feeding import check_feed
from keyhole.spark.driver.micro_batch import OutputMode
from keyhole.spark.driver.query_plan import QueryPlan, has_watermark

AGGREGATION = ("StateStoreRestoreExec", "StateStoreSaveExec")
HOUR = 3_600_000
DAILY = StructType().add("v", "long")


class Node:
    """A node of a plan of Spark's, and the execution whose plan it is: what of them is asked for."""

    def __init__(self, name: str, *children: Node) -> None:
        self._name = name
        self._children = children

    def analyzed(self) -> Node:
        return self

    def getClass(self) -> Node:  # noqa: N802  # as Java names it
        return self

    def getSimpleName(self) -> str:  # noqa: N802  # as Java names it
        return self._name

    def children(self) -> Node:
        return self

    def size(self) -> int:
        return len(self._children)

    def apply(self, index: int) -> Node:
        return self._children[index]


PLAIN = Node("Project", Node("StreamingRelation"))
WATERMARKED = Node("Project", Node("EventTimeWatermark", Node("StreamingRelation")))


class Highest:
    """An aggregator of which a row takes the place of an earlier one of the same thing."""

    takes_running_results = True


class Sum:
    """Another one, which says nothing of the kind."""


def plan(*operators: str, execution: Any = PLAIN) -> QueryPlan:
    return QueryPlan(frozenset(operators), has_watermark(execution))


def declared(kind: StateKind = StateKind.VALUE, **more: Any) -> Declaration:
    return Declaration("seen", ("k",), 8, None, None, kind=kind, **more)


def refused(match: str) -> contextlib.AbstractContextManager[object]:
    return pytest.raises(InvalidConfiguration, match=match)


@pytest.mark.parametrize("clock", TtlClock)
def test_a_ttl_is_refused_in_complete_mode_which_says_itself_what_there_is(clock: TtlClock) -> None:
    lives = declared(ttl_ms=HOUR, ttl_clock=clock)
    with refused("'seen' has a ttl and is fed in complete mode.*: leave the ttl out, or use update mode"):
        check_feed(lives, OutputMode.COMPLETE, plan(*AGGREGATION, execution=WATERMARKED))
    check_feed(lives, OutputMode.COMPLETE, plan(*AGGREGATION, execution=WATERMARKED), increments=True)
    check_feed(lives, OutputMode.UPDATE, plan(*AGGREGATION, execution=WATERMARKED))
    check_feed(declared(), OutputMode.COMPLETE, plan(*AGGREGATION))


@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
def test_a_ttl_by_event_time_is_refused_without_a_watermark_anywhere_in_the_plan(mode: OutputMode) -> None:
    by_event_time = declared(ttl_ms=HOUR, ttl_clock=TtlClock.EVENT_TIME)
    with refused('has no watermark: call withWatermark on the stream, or use ttl_clock="processing_time"'):
        check_feed(by_event_time, mode, plan())
    check_feed(by_event_time, mode, plan(execution=WATERMARKED))
    check_feed(declared(ttl_ms=HOUR), mode, plan())


class Daily(StatefulProcessor):
    """Has a state that lives as long as the job says."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        handle.getValueState("daily", DAILY)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return iter(())


def test_a_ttl_by_event_time_of_an_exposed_state_needs_a_watermark() -> None:
    daily = queryable.ExposedValue(DAILY, ttl=timedelta(days=1), ttl_clock="event_time")
    exposing = queryable.QueryableProcessor(Daily(), key="k", expose={"daily": daily})
    config = JobConfig("app", ("127.0.0.1:7410",), "127.0.0.1:9092")
    (part,) = queryable.exposed(exposing, config=config).parts_alone()
    with refused("the ttl of state 'daily' goes by event time, and the query has no watermark"):
        check_feed(part.declaration, OutputMode.UPDATE, plan("TransformWithStateInPySparkExec"))
    check_feed(part.declaration, OutputMode.UPDATE, plan("TransformWithStateInPySparkExec", execution=WATERMARKED))


@pytest.mark.parametrize("aggregator", [Sum(), None])
def test_running_results_are_refused_by_an_aggregate_that_counts_each_row(aggregator: Any) -> None:
    with refused("aggregating state 'seen' can't be fed by a streaming aggregation in update mode"):
        check_feed(declared(StateKind.AGGREGATING), OutputMode.UPDATE, plan(*AGGREGATION), aggregator)
    check_feed(declared(StateKind.AGGREGATING), OutputMode.UPDATE, plan(), aggregator)
    check_feed(declared(StateKind.AGGREGATING), OutputMode.APPEND, plan(*AGGREGATION), aggregator)


def test_an_aggregate_that_takes_running_results_gets_those_of_update_mode_and_not_the_whole_of_complete_mode() -> None:
    check_feed(declared(StateKind.AGGREGATING), OutputMode.UPDATE, plan(*AGGREGATION), Highest())
    with refused("aggregating state 'seen' can't be fed in complete mode"):
        check_feed(declared(StateKind.AGGREGATING), OutputMode.COMPLETE, plan(*AGGREGATION), Highest())


@pytest.mark.parametrize("kind", [StateKind.REDUCING, StateKind.AGGREGATING])
@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_what_is_made_new_of_each_batch_is_taken_in_any_mode(kind: StateKind, mode: OutputMode) -> None:
    with refused("can't be fed"):
        check_feed(declared(kind), mode, plan(*AGGREGATION))
    check_feed(declared(kind), mode, plan(*AGGREGATION), increments=True)

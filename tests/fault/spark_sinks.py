"""The sinks of the workload's states, for a driver with Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole.spark import queryable
from keyhole.spark.processor import QueryableProcessor
from keyhole.spark.sink import Sink
from tests.fault.chain import RESULT, Chain, Ledger, Roster
from tests.fault.recount import SHAPES
from tests.fault.states import FIELDS, INDEXED, REDUCERS
from tests.fault.workload import (
    ALERTS,
    BY_CLOCK,
    CHAINS,
    EXPOSED,
    KEY_GROUPS,
    LEASES,
    LEDGERS,
    MAX_LENGTH,
    NOTICES,
    OPERATORS,
    ROSTERS,
    SPANS,
    STREAKS,
    SUMS,
    TALLIES,
    TRAILS,
)

Selects = Mapping[str, Callable[[DataFrame], DataFrame]]
"""What makes the rows of ALERTS, and of OPERATORS, of a batch's."""


def sinks_of(
    states: Sequence[str], copies: int, processor: QueryableProcessor | None, selects: Selects, subtasks: int
) -> list[Sink]:
    """Of one query's states, of which the processor may expose some. `subtasks`: how many operators are to have."""
    sinks = [sink(state, copies, selects, subtasks) for state in states if state not in EXPOSED]
    if processor is not None and len(sinks) < len(states):
        sinks.append(queryable.exposed(processor, key_groups=KEY_GROUPS, standbys=copies))
    return sinks


def sink(state: str, copies: int, selects: Selects, subtasks: int) -> Sink:
    """Of one state, which takes its own rows of a batch. An `n` orders them where it matters."""
    made = _made(state, {"standbys": copies, "key_groups": KEY_GROUPS} | _lifetime(state), subtasks)
    if state == ALERTS or state in OPERATORS:
        return made.of(selects[state])
    fields = [f.col("fields")[number].alias(name) for number, name in enumerate(FIELDS[state])]
    mapped, ordered = state in (TALLIES, SPANS, LEASES), state in (TRAILS, CHAINS)
    columns = ["k", "op", *(["m"] if mapped else []), *(["n"] if ordered else [])]
    return made.of(lambda rows: rows.where(f.col("state") == state).select(*columns, *fields))


def _made(state: str, options: dict[str, Any], subtasks: int) -> Sink:
    result = ", ".join(f"{name} bigint" for name in RESULT)
    ordered = {"value": FIELDS[state], "order_by": "n"}
    if state == LEDGERS:
        return queryable.operator(state, operator=Ledger(), result=result, subtasks=subtasks, **options)
    if state == ROSTERS:
        return queryable.operator(state, operator=Roster(), result=result, mode="union", subtasks=subtasks, **options)
    if state == NOTICES:
        return queryable.broadcast(state, key="k", op="op")
    options |= {"key": "k", "op": "op"} | ({"index": INDEXED[state]} if state in INDEXED else {})
    if state in (SUMS, TALLIES, LEASES, STREAKS):
        map_key = () if state in (SUMS, STREAKS) else ("m",)
        return queryable.reducing(state, map_key=map_key, reducers=REDUCERS, **options)
    if state == SPANS:
        return queryable.map(state, map_key="m", **options)
    if state == TRAILS:
        return queryable.list(state, max_length=MAX_LENGTH, **ordered, **options)
    if state == CHAINS:
        return queryable.aggregating(state, aggregator=Chain(), result=result, **ordered, **options)
    return queryable.value(state, **options)


def _lifetime(state: str) -> dict[str, Any]:
    if not SHAPES[state].ttl_ms:
        return {}
    clock = "processing_time" if state in BY_CLOCK else "event_time"
    return {"ttl": timedelta(milliseconds=SHAPES[state].ttl_ms), "ttl_clock": clock}

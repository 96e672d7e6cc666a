"""What a streaming query must be like to feed a state: by its output mode and its plan. Pure."""

from __future__ import annotations

from collections.abc import Collection

from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateKind, TtlClock
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.driver.micro_batch import OutputMode
from keyhole.spark.driver.query_plan import QueryPlan
from keyhole.spark.worker.aggregating import Aggregator

_INCREMENTAL = (StateKind.REDUCING, StateKind.AGGREGATING)
_AGGREGATIONS = frozenset({"StateStoreSaveExec", "SessionWindowStateStoreSaveExec"})
"""Spark's operators that hold the running results of groupBy(...).agg(...), session windows included."""


def check_feed(
    declaration: Declaration,
    mode: OutputMode,
    plan: QueryPlan,
    aggregator: Aggregator | None = None,
    *,
    increments: bool = False,
) -> None:
    """Refuses a query whose batches are not what the state takes.

    Args:
        mode: The query's.
        aggregator: The state's, if it has one.
        increments: The state's rows are made of the batch, and new with each, whatever the query's mode.

    Raises:
        InvalidConfiguration: It says what to do.
    """
    state = declaration.state
    takes_running_results = bool(getattr(aggregator, "takes_running_results", False))
    complete = mode is OutputMode.COMPLETE and not increments
    takes_all = increments or (takes_running_results and mode is OutputMode.UPDATE)
    if declaration.kind in _INCREMENTAL and not takes_all:
        check_increments(state, mode, plan.operators, declaration.kind)
    if not declaration.ttl_ms:
        return
    if complete:
        raise InvalidConfiguration(
            f"state {state!r} has a ttl and is fed in complete mode, where every batch says of each key whether it "
            "still exists: leave the ttl out, or use update mode",
            state=state,
        )
    if declaration.ttl_clock is TtlClock.EVENT_TIME and not plan.watermarked:
        raise InvalidConfiguration(
            f"the ttl of state {state!r} goes by event time, and the query has no watermark: call withWatermark on the "
            'stream, or use ttl_clock="processing_time"',
            state=state,
        )


def check_increments(
    state: str, mode: OutputMode, operators: Collection[str], kind: StateKind = StateKind.REDUCING
) -> None:
    """Refuses what would be merged into itself.

    Args:
        operators: QueryPlan.operators.

    Raises:
        InvalidConfiguration: The batches are not rows that are new each time.
    """
    if mode is OutputMode.COMPLETE:
        raise InvalidConfiguration(
            f"{kind} state {state!r} can't be fed in complete mode: every batch holds the whole result, which would "
            "be added to what it was added to before. Use queryable.value, or append mode",
            state=state,
        )
    if mode is OutputMode.UPDATE and _AGGREGATIONS.intersection(operators):
        raise InvalidConfiguration(
            f"{kind} state {state!r} can't be fed by a streaming aggregation in update mode: a batch holds running "
            "results, which contain those of the batches before and would be counted again. Give it the rows "
            "themselves (without groupBy), or use queryable.value for the results",
            state=state,
        )

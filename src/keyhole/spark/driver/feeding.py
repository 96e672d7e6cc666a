"""What a streaming query must be like to feed a state: found out from its plan, at a run's first batch."""

from __future__ import annotations

from collections.abc import Collection

from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateKind, TtlClock
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.driver.micro_batch import MicroBatch, OutputMode, has_watermark
from keyhole.spark.driver.reducing import check_increments
from keyhole.spark.worker.aggregating import Aggregator

_INCREMENTAL = (StateKind.REDUCING, StateKind.AGGREGATING)


def check_feed(
    declaration: Declaration,
    batch: MicroBatch,
    operators: Collection[str],
    aggregator: Aggregator | None = None,
    *,
    increments: bool = False,
) -> None:
    """Refuses a query whose batches are not what the state takes.

    Args:
        operators: The plan's stateful operators (batch.state_operators).
        aggregator: The state's, if it has one.
        increments: The state's rows are made of the batch, and new with each, whatever the query's mode.

    Raises:
        InvalidConfiguration: It says what to do.
    """
    state = declaration.state
    takes_running_results = bool(getattr(aggregator, "takes_running_results", False))
    complete = batch.output_mode is OutputMode.COMPLETE and not increments
    takes_all = increments or (takes_running_results and batch.output_mode is OutputMode.UPDATE)
    if declaration.kind in _INCREMENTAL and not takes_all:
        check_increments(state, batch.output_mode, operators, declaration.kind)
    if not declaration.ttl_ms:
        return
    if complete:
        raise InvalidConfiguration(
            f"state {state!r} has a ttl and is fed in complete mode, where every batch says of each key whether it "
            "still exists: leave the ttl out, or use update mode",
            state=state,
        )
    if declaration.ttl_clock is TtlClock.EVENT_TIME and not has_watermark(batch.execution):
        raise InvalidConfiguration(
            f"the ttl of state {state!r} goes by event time, and the query has no watermark: call withWatermark on the "
            'stream, or use ttl_clock="processing_time"',
            state=state,
        )

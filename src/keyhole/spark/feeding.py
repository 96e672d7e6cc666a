"""What a streaming query must be like to feed a state: found out from its plan, at a run's first batch."""

from __future__ import annotations

from collections.abc import Collection

from keyhole.errors import InvalidConfiguration
from keyhole.spark.aggregating import Aggregator
from keyhole.spark.batch import MicroBatch, OutputMode, has_watermark
from keyhole.spark.reducing import check_increments
from keyhole.spark.schema import Declaration
from keyhole.types import StateKind, TtlClock

_INCREMENTAL = (StateKind.REDUCING, StateKind.AGGREGATING)


def check_feed(
    declaration: Declaration, batch: MicroBatch, operators: Collection[str], aggregator: Aggregator | None = None
) -> None:
    """Refuses a query whose batches are not what the state takes.

    Args:
        operators: The plan's stateful operators (batch.state_operators).
        aggregator: The state's, if it has one.

    Raises:
        InvalidConfiguration: It says what to do.
    """
    state = declaration.state
    takes_running_results = bool(getattr(aggregator, "takes_running_results", False))
    if declaration.kind in _INCREMENTAL and not (takes_running_results and batch.output_mode is OutputMode.UPDATE):
        check_increments(state, batch.output_mode, operators, declaration.kind)
    if not declaration.ttl_ms:
        return
    if batch.output_mode is OutputMode.COMPLETE:
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

"""The rows of a plain data frame as the epoch with which states begin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.errors import InvalidConfiguration
from keyhole.model.state import TtlClock
from keyhole.protocol.epochs import EpochBatch
from keyhole.spark.write_path.sink_states import SinkState
from keyhole.spark.write_path.stage_plan import StagedState, staging_of

BOOTSTRAP = "bootstrap"
"""The name of one that was not given another."""


def checked_bootstrap(
    parts: Sequence[SinkState], rows: ClassicDataFrame, query: str | None, watermark: datetime | None
) -> str:
    """The query's stable name.

    Raises:
        InvalidConfiguration: The states can't begin with these rows.
    """
    states = ", ".join(repr(part.declaration.state) for part in parts)
    if query is None:
        raise InvalidConfiguration(
            f"the states {states} can't be bootstrapped without the stable name of the query that goes on with them: "
            "give their sink query="
        )
    if rows.isStreaming:
        raise InvalidConfiguration(
            f"the states {states} can't be bootstrapped with a stream: read the history with spark.read, and give the "
            "stream to writeStream.foreachBatch"
        )
    if any(part.subtasks is not None for part in parts):
        raise InvalidConfiguration(
            f"the states {states} can't be bootstrapped: an operator state has no keys that rows could be of"
        )
    if watermark is not None and watermark.tzinfo is None:
        raise InvalidConfiguration(f"watermark is {watermark!r}, which has no time zone; give it one")
    ages = [part.declaration.state for part in parts if part.declaration.ttl_clock is TtlClock.EVENT_TIME]
    if ages and watermark is None:
        raise InvalidConfiguration(
            f"the ttl of state {ages[0]!r} goes by event time: say up to when the history goes with watermark=, from "
            "which on its entries live",
            state=ages[0],
        )
    return query


def bootstrap_batch(name: str, staged: Sequence[StagedState], watermark: datetime | None) -> EpochBatch:
    """As the batch of no stream."""
    return EpochBatch(
        spark_query_id="",
        batch_id=0,
        offsets_hash=0,
        watermark_ms=0 if watermark is None else int(watermark.timestamp() * 1000),
        **staging_of(staged),
        bootstrap=name,
    )

"""What a reducing state needs of a streaming query: rows that only add, each column as its reducer takes it."""

from __future__ import annotations

from collections.abc import Collection

from keyhole.encoding.reducers import ReducerCall, parse
from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.spark.driver.micro_batch import OutputMode
from keyhole.spark.driver.partitioning import quoted

_AGGREGATIONS = frozenset({"StateStoreSaveExec", "SessionWindowStateStoreSaveExec"})
"""Spark's operators that hold the running results of groupBy(...).agg(...), session windows included."""


def check_increments(
    state: str, mode: OutputMode, operators: Collection[str], kind: StateKind = StateKind.REDUCING
) -> None:
    """Refuses what would be merged into itself.

    Args:
        operators: The plan's stateful operators (batch.state_operators).

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


def reduced_columns(descriptor: StateDescriptor) -> list[str]:
    """The value columns as they are staged, in SQL: widened to the field's type, or whether there is a value."""
    return [
        f"{_reduced(quoted(field.name), field.type, parse(reducer))} AS {quoted(field.name)}"
        for field, reducer in zip(descriptor.value.fields, descriptor.reducers, strict=True)
    ]


def _reduced(of: str, kind: str, call: ReducerCall) -> str:
    if call.reducer.of_presence:
        return f"CAST(CASE WHEN {of} IS NOT NULL THEN 1 ELSE 0 END AS bigint)"
    if call.by:
        # A row without what it goes by brings nothing, not even where no other row has come.
        return f"CAST(CASE WHEN {quoted(call.by)} IS NOT NULL THEN {of} END AS {kind})"
    return f"CAST({of} AS {kind})"

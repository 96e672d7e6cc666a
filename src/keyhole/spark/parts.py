"""The states of a sink: what each is, and how its rows of a batch come to be staged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.coordinator.coordinator import StatePlan
from keyhole.spark.aggregating import Aggregator
from keyhole.spark.batch import classic
from keyhole.spark.operators import KEY_SCHEMA, Subtasks, operator_state
from keyhole.spark.partitioning import HashLayout, layout_of
from keyhole.spark.schema import Declaration, describe
from keyhole.spark.staging import StagedState, staged_state
from keyhole.spark.value_codec import ValueCodec


@dataclass(frozen=True)
class Part:
    """One state of a sink.

    Attributes:
        aggregator: Of an aggregating state.
        subtasks: Of an operator state.
        codec: What makes the value, where the job does that itself.
        select: From the batch to the state's rows; None: they are the batch's.
        in_order: Rows of one partition count in the order in which they come: of those that write one entry the last
            one stays, and one that clears a key clears what came before it.
        increments: The rows are what is new, whatever the query's output mode.
    """

    declaration: Declaration
    aggregator: Aggregator | None = None
    subtasks: Subtasks | None = None
    codec: ValueCodec | None = None
    select: Callable[[DataFrame], DataFrame] | None = None
    in_order: bool = False
    increments: bool = False


@dataclass(frozen=True)
class PartStaging:
    """What the states of one epoch have in common.

    Attributes:
        query: The query's stable name.
        replaces: The batch is the whole of each state.
        execution: The IncrementalExecution of the micro-batch; None: the rows come from no stream.
    """

    application: str
    query: str
    replaces: bool = False
    execution: JavaObject | None = None

    def of(self, part: Part, rows: ClassicDataFrame, layout: HashLayout | None = None) -> StagedState:
        """Args: rows: The batch's. layout: How they are partitioned; None: in no way that is known."""
        if part.select is not None:
            rows = classic(part.select(rows))
            layout = None if self.execution is None else layout_of(rows, self.execution)
        schema = rows.schema if part.subtasks is None else KEY_SCHEMA
        descriptor = describe(part.declaration, self.application, self.query, schema)
        plan = StatePlan(descriptor, self.replaces and not part.increments, part.declaration.standbys)
        if part.subtasks is not None:
            return operator_state(part.subtasks, plan, rows)
        return staged_state(part, plan, rows, layout)

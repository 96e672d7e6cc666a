"""The states of one epoch: of each pass over the batch its rows, its descriptors, and how they are staged."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.errors import InvalidConfiguration
from keyhole.protocol.epochs import StatePlan
from keyhole.spark.changes import changes_schema
from keyhole.spark.declaration.batch_columns import case_sensitive, check_all_columns
from keyhole.spark.declaration.schema import describe
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.layout import HashLayout, RunLayouts
from keyhole.spark.driver.micro_batch import MicroBatch
from keyhole.spark.worker.subtasks import KEY_SCHEMA
from keyhole.spark.write_path.change_rows import staged_changes
from keyhole.spark.write_path.operator_rows import staged_operator
from keyhole.spark.write_path.sink_states import SinkState, passes_of, write_of
from keyhole.spark.write_path.stage_plan import StagedState
from keyhole.spark.write_path.state_rows import staged_state


@dataclass(frozen=True)
class EpochStates:
    """What all states of one epoch have in common.

    Attributes:
        query: The query's stable name.
        replaces: The batch is the whole of each state.
        batch: The micro-batch; None: the rows come from no stream.
        layouts: Of its run.
    """

    application: str
    query: str
    replaces: bool = False
    batch: MicroBatch | None = None
    layouts: RunLayouts = field(default_factory=RunLayouts)

    def staged(
        self, parts: Sequence[SinkState], rows: ClassicDataFrame, layout: HashLayout | None = None
    ) -> list[StagedState]:
        """How the states are staged, one for each pass over the batch. Runs nothing.

        Args:
            rows: The batch's.
            layout: How they are partitioned; None: in no way that is known.

        Raises:
            KeyMismatch, ValueMismatch: A column does not fit.
            InvalidConfiguration: A function that was given to `of` returns no data frame.
        """
        return [self._one_pass(of_pass, rows, layout) for of_pass in passes_of(parts)]

    def _one_pass(self, parts: tuple[SinkState, ...], rows: ClassicDataFrame, layout: HashLayout | None) -> StagedState:
        part = parts[0]
        if part.select is not None:
            selected = part.select(rows)
            if not isinstance(selected, DataFrame):
                state = part.declaration.state
                raise InvalidConfiguration(
                    f"state {state!r}: the function that was given to of() returned a {type(selected).__name__}; it "
                    "must return a data frame, made of the batch",
                    state=state,
                )
            rows = classic(selected)
            layout = None
            if self.batch is not None:
                layout = self.layouts.of_rows(part.declaration.state, rows, self.batch.execution)
        if part.changes:
            schema = rows.schema
            plans = [self._plan(one, changes_schema(one.declaration.state, schema), rows) for one in parts]
            return staged_changes(plans, rows, layout, write_of(parts))
        if part.subtasks is not None:
            assert self.batch is not None, "an operator state can't be bootstrapped"
            check_all_columns(f"state {part.declaration.state!r}", rows)
            return staged_operator(part.subtasks, self._plan(part, KEY_SCHEMA, rows), rows, self.batch)
        return staged_state(part, self._plan(part, rows.schema, rows), rows, layout)

    def _plan(self, part: SinkState, schema: spark.StructType, rows: DataFrame) -> StatePlan:
        by_case = functools.partial(case_sensitive, rows)
        descriptor = describe(part.declaration, self.application, self.query, schema, by_case)
        return StatePlan(descriptor, self.replaces and not part.increments, part.declaration.standbys)

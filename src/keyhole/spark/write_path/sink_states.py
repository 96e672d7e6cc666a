"""The states of a sink: what each is, and how its rows of a batch come to be staged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.errors import InvalidConfiguration
from keyhole.protocol.epochs import StatePlan
from keyhole.spark.changes import changes_schema
from keyhole.spark.declaration.batch_columns import case_sensitive, check_all_columns
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe
from keyhole.spark.declaration.value_codec import ValueCodec
from keyhole.spark.driver.micro_batch import MicroBatch, classic
from keyhole.spark.driver.partitioning import HashLayout, layout_of
from keyhole.spark.operators import Subtasks
from keyhole.spark.worker.aggregating import Aggregator
from keyhole.spark.worker.stage import WriteRows
from keyhole.spark.worker.subtasks import KEY_SCHEMA
from keyhole.spark.write_path.operator_rows import operator_state
from keyhole.spark.write_path.stage_plan import StagedState, staged_changes, staged_in_place, staged_state


@dataclass(frozen=True)
class SinkState:
    """One state of a sink.

    Attributes:
        aggregator: Of an aggregating state.
        subtasks: Of an operator state.
        codec: What makes the value, where the job does that itself.
        select: From the batch to the state's rows; None: they are the batch's.
        increments: The rows are what is new, whatever the query's output mode.
        changes: The rows are what a queryable processor gives out. The state's are its change rows among them, in the
            order in which they come. Of those that write one entry the last one stays, and one that clears a key clears
            what came before it.
        write: What else is done with the own rows of that processor, in the tasks.
    """

    declaration: Declaration
    aggregator: Aggregator | None = None
    subtasks: Subtasks | None = None
    codec: ValueCodec | None = None
    select: Callable[[DataFrame], DataFrame] | None = None
    increments: bool = False
    changes: bool = False
    write: WriteRows | None = None


def _passes(parts: Sequence[SinkState]) -> list[tuple[SinkState, ...]]:
    """The states by the pass of the batch that stages them: those of one processor stand in the same rows."""
    passes: dict[Hashable, list[SinkState]] = {}
    for part in parts:
        declaration = part.declaration
        alone = part.select is not None or not part.changes
        place = declaration.state if alone else (declaration.key, declaration.key_groups)
        passes.setdefault(place, []).append(part)
    return list(map(tuple, passes.values()))


def runs(parts: Sequence[SinkState], layout: HashLayout | None) -> int:
    """How often staging these states once would run the plan of a batch that is so partitioned."""
    passes = _passes(parts)
    apart = [
        of
        for of in passes
        if _write(of) is not None
        and not (of[0].select is None and staged_in_place(layout, of[0].declaration.key, of[0].declaration.key_groups))
    ]
    return len(passes) + len(apart)


def _write(parts: Sequence[SinkState]) -> WriteRows | None:
    return next((part.write for part in parts if part.write is not None), None)


@dataclass(frozen=True)
class PartStaging:
    """What the states of one epoch have in common.

    Attributes:
        query: The query's stable name.
        replaces: The batch is the whole of each state.
        batch: The micro-batch; None: the rows come from no stream.
    """

    application: str
    query: str
    replaces: bool = False
    batch: MicroBatch | None = None

    def staged(
        self, parts: Sequence[SinkState], rows: ClassicDataFrame, layout: HashLayout | None = None
    ) -> list[StagedState]:
        """Args: rows: The batch's. layout: How they are partitioned; None: in no way that is known.

        Raises:
            KeyMismatch, ValueMismatch: A column does not fit.
            InvalidConfiguration: A function that was given to `of` returns no data frame.
        """
        return [self._one_pass(of_pass, rows, layout) for of_pass in _passes(parts)]

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
            layout = None if self.batch is None else layout_of(rows, self.batch.execution)
        if part.changes:
            schema = rows.schema
            plans = [self._plan(one, changes_schema(one.declaration.state, schema), rows) for one in parts]
            return staged_changes(plans, rows, layout, _write(parts))
        if part.subtasks is not None:
            assert self.batch is not None, "an operator state can't be bootstrapped"
            check_all_columns(f"state {part.declaration.state!r}", rows)
            return operator_state(part.subtasks, self._plan(part, KEY_SCHEMA, rows), rows, self.batch)
        return staged_state(part, self._plan(part, rows.schema, rows), rows, layout)

    def _plan(self, part: SinkState, schema: spark.StructType, rows: DataFrame) -> StatePlan:
        by_case = functools.partial(case_sensitive, rows)
        descriptor = describe(part.declaration, self.application, self.query, schema, by_case)
        return StatePlan(descriptor, self.replaces and not part.increments, part.declaration.standbys)

"""How a state's rows of a batch are staged: which columns of them, in which partitions, by which task."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.encoding.columnar import OP, Op
from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.protocol.epochs import StatePlan
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.spark.changes import changes_layout, changes_of, own_rows
from keyhole.spark.declaration.batch_columns import value_names
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.value_codec import Encoding
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.micro_batch import classic
from keyhole.spark.driver.partitioning import HashLayout, by_key_group, can_reuse, quoted, shuffle_partitions
from keyhole.spark.driver.reducing import reduced_columns
from keyhole.spark.worker.aggregating import Aggregation
from keyhole.spark.worker.assembly import TaskState
from keyhole.spark.worker.pack import ORDER, PARTITION, REPACKED_SCHEMA, repacked
from keyhole.spark.worker.stage import (
    RECEIPT_SCHEMA,
    WriteRows,
    stage_changes,
    stage_task,
    write_and_stage_changes,
    written,
)

if TYPE_CHECKING:
    from keyhole.spark.write_path.sink_states import SinkState

_ORDERED_KINDS = (StateKind.LIST, StateKind.AGGREGATING)


@dataclass(frozen=True)
class StagedState:
    """A state of an epoch, or several that one pass of the batch stages; any number of times.

    Attributes:
        receipts: Makes the plans of one round, whose rows are the receipts of `partitions` partitions of each state.
        numbered: Its tasks go by the numbers of their partitions, so it must have a job of Spark's for itself.
    """

    plans: Sequence[StatePlan]
    partitions: int
    receipts: Callable[[StageOrder], Sequence[DataFrame]]
    numbered: bool = False


class Staging(TypedDict):
    """What an EpochBatch says of its states."""

    states: tuple[StatePlan, ...]
    partitions: Mapping[str, int]
    stage: Callable[[StageOrder], Sequence[PartitionReceipt]]


def staging_of(staged: Sequence[StagedState]) -> Staging:
    """All states of an epoch."""
    return Staging(
        states=tuple(plan for one in staged for plan in one.plans),
        partitions={plan.descriptor.state: one.partitions for one in staged for plan in one.plans},
        stage=functools.partial(stage_all, staged),
    )


def stage_all(staged: Sequence[StagedState], order: StageOrder) -> list[PartitionReceipt]:
    """One round: runs the plans of all passes and collects their receipts, nothing else.

    As one job of Spark's, because each costs processor time beyond its tasks: measured in docs/benchmarks.md.
    """
    alone = [plan for one in staged if one.numbered for plan in one.receipts(order)]
    together = [plan for one in staged if not one.numbered for plan in one.receipts(order)]
    if len(together) > 1 and not alone and not together[0].sparkSession.sparkContext._jsc.sc().isLocal():
        # The batch is kept by whoever computes it first. Of one job's tasks several would, on as many executors.
        alone.append(together.pop(0))
    jobs = alone + ([functools.reduce(DataFrame.union, together)] if together else [])
    receipts = [PartitionReceipt.from_row(bytes(row[0])) for job in jobs for row in job.collect()]
    told = {receipt.state for receipt in receipts}
    # Of others Spark has found out, before or while running, that they have no rows, and made no partitions at all.
    # Some that are missing while others are there would be an error, which the coordinator finds.
    return receipts + [
        PartitionReceipt(plan.descriptor.state, partition, attempt_id=0)
        for one in staged
        for plan in one.plans
        if plan.descriptor.state not in told
        for partition in range(one.partitions)
    ]


def staged_state(part: SinkState, plan: StatePlan, rows: ClassicDataFrame, layout: HashLayout | None) -> StagedState:
    """A state's rows, each key group's in one partition.

    Args:
        layout: How the rows are partitioned; None: in no way that is known.
    """
    declaration = part.declaration
    descriptor = plan.descriptor
    placed, partitions = by_key_group(rows, layout, [column.name for column in descriptor.key], descriptor.key_groups)
    aggregation = None
    inputs: tuple[str, ...] = ()
    encoding = None
    if part.aggregator is not None:
        inputs = value_names(_inputs_only(declaration), rows.schema)
        aggregation = Aggregation(part.aggregator, inputs)
    if part.codec is not None:
        inputs = value_names(declaration, rows.schema)
        encoding = Encoding(part.codec, inputs)
    acts = declaration.op is not None or declaration.delete_when is not None
    # Where deletions have an order, the servers compare it.
    sorts = acts and not descriptor.keep_deleted_ms
    ordered = declaration.order_by is not None and (sorts or descriptor.kind in _ORDERED_KINDS)
    if ordered:
        assert declaration.order_by is not None
        placed = placed.sortWithinPartitions(quoted(declaration.order_by))
    # In a list nothing but clearing has to do with the rows before, and that comes first.
    folds = ordered and sorts and descriptor.kind is not StateKind.LIST
    task = TaskState(descriptor.state, in_order=folds, aggregation=aggregation, encoding=encoding)
    staged = _staged_rows(placed, declaration, descriptor, inputs)
    return StagedState(
        [plan],
        partitions,
        lambda order: [map_in_arrow(staged, functools.partial(stage_task, order, task), RECEIPT_SCHEMA)],
    )


def staged_in_place(layout: HashLayout | None, key: Sequence[str], key_groups: int) -> bool:
    """Whether the changes of a processor's states are where they belong, in a batch that is so partitioned."""
    return can_reuse(changes_layout(layout), key, key_groups)


def staged_changes(
    plans: Sequence[StatePlan], batch: ClassicDataFrame, layout: HashLayout | None, write: WriteRows | None = None
) -> StagedState:
    """The exposed states of a queryable processor, whose change rows stand in the same rows, as they take effect.

    Args:
        plans: Of states with the same key and number of key groups.
        layout: How the batch is partitioned; None: in no way that is known.
        write: Gets the processor's own rows, in the same job.
    """
    states = [plan.descriptor.state for plan in plans]
    descriptor = plans[0].descriptor
    key = [column.name for column in descriptor.key]
    tasks = [TaskState(state, in_order=True) for state in states]
    rows = changes_of(states, batch)
    in_place = staged_in_place(layout, key, descriptor.key_groups)
    if in_place:
        assert layout is not None
        partitions = layout.partitions
    else:
        partitions = shuffle_partitions(batch, descriptor.key_groups)
        place = functools.partial(repacked, descriptor.key, partitions)
        rows = map_in_arrow(rows.withColumn(ORDER, F.monotonically_increasing_id()), place, REPACKED_SCHEMA)
        # A shuffle loses the order of the rows.
        rows = classic(rows).repartitionById(partitions, F.col(PARTITION)).sortWithinPartitions(ORDER)

    def receipts(order: StageOrder) -> list[DataFrame]:
        if write is not None and in_place:
            task = functools.partial(write_and_stage_changes, order, tasks, write)
            return [map_in_arrow(batch, task, RECEIPT_SCHEMA)]
        staged = map_in_arrow(rows, functools.partial(stage_changes, order, tasks), RECEIPT_SCHEMA)
        if write is None:
            return [staged]
        return [staged, map_in_arrow(own_rows(batch), functools.partial(written, write), RECEIPT_SCHEMA)]

    return StagedState(plans, partitions, receipts)


def _inputs_only(declaration: Declaration) -> Declaration:
    """Of an aggregating state, as if its rows were its value."""
    return dataclasses.replace(declaration, result=None)


def _staged_rows(
    rows: DataFrame, declaration: Declaration, descriptor: StateDescriptor, inputs: Sequence[str]
) -> DataFrame:
    """The key's and the value's columns, as columnar.encode takes them; or the aggregator's or codec's.

    In SQL: a Column is a dozen calls to Spark's JVM, for each batch again.

    Raises:
        InvalidConfiguration: `delete_when` is no condition on these rows.
    """
    columns = [quoted(part.name) for part in (*descriptor.key, *descriptor.map_key)]
    if descriptor.kind is StateKind.REDUCING:
        columns += reduced_columns(descriptor)
    else:
        columns += map(quoted, inputs or [field.name for field in descriptor.value.fields])
    default = Op.REPLACE if declaration.replaces else Op.PUT
    condition = declaration.delete_when
    if declaration.op is not None:
        op = quoted(declaration.op)
        # What is null is taken for a put; only a list may declare something else.
        columns.append(f"coalesce({op}, '{default}') AS {OP}" if declaration.replaces else f"{op} AS {OP}")
    elif condition is not None:
        try:
            deletes = F.expr(condition) if isinstance(condition, str) else condition
            # What is neither true nor false deletes nothing.
            rows = rows.withColumn(OP, F.when(deletes, F.lit(Op.DELETE.value)).otherwise(F.lit(default.value)))
        except AnalysisException as error:
            raise InvalidConfiguration(
                f"state {declaration.state!r}: delete_when is no condition on the batch's columns "
                f"({', '.join(rows.columns)}): {error}",
                state=declaration.state,
            ) from error
        columns.append(OP)
    elif declaration.replaces:
        columns.append(f"'{Op.REPLACE}' AS {OP}")
    return rows.selectExpr(*columns)

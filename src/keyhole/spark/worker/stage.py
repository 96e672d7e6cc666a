"""What runs in Spark's tasks: one call per partition, empty ones included, and one receipt row from each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from keyhole.coordinator.task_stream import stage_partition
from keyhole.protocol.receipts import StageOrder
from keyhole.spark.exposed import CHANGES_COLUMN, PREFIX, STATE_COLUMN
from keyhole.spark.worker.assembly import TaskState, staged_rows
from keyhole.spark.worker.connections import connecting
from keyhole.spark.worker.pack import unpacked
from keyhole.spark.worker.worker_setup import hasten_rows, spare_imports

RECEIPT_COLUMN = "receipt"
RECEIPT_SCHEMA = StructType([StructField(RECEIPT_COLUMN, BinaryType())])


def stage_task(order: StageOrder, state: TaskState, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of `mapInArrow`, once its first two arguments are bound.

    Spark calls it once per partition of a plan that has any, also where the partition has no rows (then `batches` is
    empty). It raises only for bugs, and for what a user's aggregator raises. What is wrong with the data, or with a
    server, is in the receipt. A task that raises is tried again by Spark, and then ends the query with an error that
    has lost its class.

    Args:
        batches: The key columns and the value columns of the state, in any order.

    Yields:
        One batch of one row: PartitionReceipt.to_row().
    """
    hasten_rows()
    yield _staged(order, state, batches)


def stage_changes(
    order: StageOrder, states: Sequence[TaskState], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same of several states whose change rows stand in the same rows: yields a receipt of each.

    Args:
        batches: As keyhole.spark.changes.changes_of has them. Of several states all of the task's are held in memory.
    """
    hasten_rows()
    if len(states) == 1:
        rows_of_one = (rows for batch in batches for rows in unpacked(batch.column(CHANGES_COLUMN)))
        yield _staged(order, states[0], rows_of_one)
        return
    rows: dict[str, list[pa.RecordBatch]] = {state.state: [] for state in states}
    for batch in batches:
        changes = zip(batch.column(STATE_COLUMN).to_pylist(), unpacked(batch.column(CHANGES_COLUMN)), strict=True)
        for state, of_state in changes:
            rows[state].append(of_state)
    for state in states:
        yield _staged(order, state, rows.pop(state.state))


WriteRows = Callable[[Iterator[pa.RecordBatch]], None]
"""What a job does with a processor's own rows in its tasks: is called in each, once, with all that it has."""


def write_and_stage_changes(
    order: StageOrder, states: Sequence[TaskState], write: WriteRows, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """As `stage_changes`, after `write` has had the processor's own rows, which stand between the changes.

    Args:
        batches: As QueryableProcessor.transform gives them out. All changes of the task's are held in memory.
    """
    changes: list[pa.RecordBatch] = []
    names = pa.array([state.state for state in states], pa.string())

    def own() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            of = batch.column(STATE_COLUMN)
            changes.append(batch.filter(pc.is_in(of, value_set=names)).select([STATE_COLUMN, CHANGES_COLUMN]))
            rows = batch.filter(pc.is_null(of))
            if rows.num_rows:
                yield rows.select([name for name in rows.schema.names if not name.startswith(PREFIX)])

    yield from written(write, own())
    yield from stage_changes(order, states, changes)


def written(write: WriteRows, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: a task's own rows, written. Yields nothing."""
    hasten_rows()
    rows = iter(batches)
    write(rows)
    for _ in rows:  # what it left is read too: changes stand behind it
        pass
    yield from ()


def _staged(order: StageOrder, state: TaskState, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """The receipt of one task attempt, as a batch of one row."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    spare_imports()
    rows = staged_rows(order, state, batches)
    # Spark's attempt ids are unique over the rounds of an epoch; its attempt numbers begin at 0 in each.
    receipt = stage_partition(
        order, state.state, context.partitionId(), context.taskAttemptId(), rows, connecting(order)
    )
    return pa.record_batch({RECEIPT_COLUMN: pa.array([receipt.to_row()], pa.binary())})

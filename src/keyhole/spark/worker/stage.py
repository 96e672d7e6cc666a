"""What runs in Spark's tasks: one call per partition, empty ones included, and one receipt row from each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from keyhole.coordinator.task_stream import Connect, NotTaken, stage_partition
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import SEQUENCE, STORAGE_KEY, VALUE, encode
from keyhole.model.state import StateKind
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.rpc.channels import sync_channel
from keyhole.security.credentials import Credentials
from keyhole.spark.declaration.value_codec import Encoding
from keyhole.spark.exposed import CHANGES_COLUMN, PREFIX, STATE_COLUMN
from keyhole.spark.worker.aggregating import Aggregation, aggregated
from keyhole.spark.worker.fold import folded
from keyhole.spark.worker.pack import unpacked
from keyhole.spark.worker.settings import hasten_rows, spare_imports

SUBTASK = "subtask"
"""The key of every operator state: int, from 0."""

LOST = "lost"
"""Beside it, in the rows of an operator: a receipt of the server that did not tell what the subtask held; else null."""

RECEIPT_COLUMN = "receipt"
RECEIPT_SCHEMA = f"{RECEIPT_COLUMN} binary"


@dataclass(frozen=True)
class TaskState:
    """What a task must know of the state that it stages. Picklable.

    Attributes:
        in_order: Of rows that write one entry the last one counts, and clearing a key clears what came before it.
        aggregation: Of an aggregating state.
        encoding: Of a state whose value the job encodes itself.
        ready: Of an operator state: the rows have been aggregated already.
    """

    state: str
    in_order: bool = False
    aggregation: Aggregation | None = None
    encoding: Encoding | None = None
    ready: bool = False

    def encoded(self, order: StageOrder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows as state servers take them."""
        descriptor = order.descriptors[self.state]
        if self.ready:
            codec = StateCodec(descriptor)
            return (_ready(batch, codec) for batch in batches)
        if self.aggregation is not None:
            return aggregated(order, descriptor, self.aggregation, batches, connecting(order))
        if self.encoding is not None:
            batches = self.encoding.encoded(batches, descriptor)
        if descriptor.kind is StateKind.LIST:
            batches = _numbered(batches)
        rows = (encode(batch, descriptor) for batch in batches)
        return folded(rows, descriptor) if self.in_order else rows


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
    rows = state.encoded(order, batches)
    # Spark's attempt ids are unique over the rounds of an epoch; its attempt numbers begin at 0 in each.
    receipt = stage_partition(
        order, state.state, context.partitionId(), context.taskAttemptId(), rows, connecting(order)
    )
    return pa.record_batch({RECEIPT_COLUMN: pa.array([receipt.to_row()], pa.binary())})


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """With the position of each row among those of the task."""
    before = 0
    for batch in batches:
        positions = np.arange(before, before + batch.num_rows, dtype=np.int64)
        before += batch.num_rows
        yield batch.append_column(SEQUENCE, pa.array(positions))


def _ready(batch: pa.RecordBatch, codec: StateCodec) -> pa.RecordBatch:
    """What operators.py has made, as state servers take it. Raises NotTaken."""
    lost = batch.column(LOST).drop_null()
    if len(lost):
        raise NotTaken(PartitionReceipt.from_row(lost[0].as_py()).servers[0])
    keys = [codec.storage_key(index) for index in batch.column(SUBTASK).to_pylist()]
    return pa.record_batch({STORAGE_KEY: pa.array(keys, pa.binary()), VALUE: batch.column(VALUE)})


def connecting(order: StageOrder) -> Connect:
    """How a task of the order connects to its servers."""
    return functools.partial(connect, credentials=order.credentials)


@functools.lru_cache(maxsize=64)
def connect(address: str, credentials: Credentials) -> grpc.Channel:
    """One channel per server for the life of the Python worker process, which Spark keeps for many tasks.

    Spark forks its workers from a daemon that has never opened a channel, so none is ever shared by two processes.
    """
    return sync_channel(address, credentials)

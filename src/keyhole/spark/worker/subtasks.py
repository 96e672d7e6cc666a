"""The subtasks of an operator state: each is a task that gets its rows, and what the subtask held before the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as spark

from keyhole.coordinator.task_stream import NotTaken
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import STORAGE_KEY, VALUE
from keyhole.encoding.envelope import Base
from keyhole.hints import ready
from keyhole.model.state import StateDescriptor
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.spark.declaration.class_version import check_class, upgrade_from, version_of
from keyhole.spark.declaration.user_rows import rows_of
from keyhole.spark.operators import Mode, Operator, Subtask, Subtasks
from keyhole.spark.worker.aggregating import result_row, staged_aggregate
from keyhole.spark.worker.base_reader import BaseReader
from keyhole.spark.worker.connections import connecting
from keyhole.spark.worker.plain import check_plain
from keyhole.spark.worker.worker_setup import hasten_rows

SUBTASK = "subtask"
"""The key of every operator state: int, from 0."""

_LOST = "lost"
# Beside it: a receipt of the server that did not answer what the subtask held; else null.

KEY_SCHEMA = spark.StructType([spark.StructField(SUBTASK, spark.IntegerType(), nullable=False)])
HELD_SCHEMA = spark.StructType(
    [*KEY_SCHEMA.fields, *(spark.StructField(of, spark.BinaryType()) for of in (VALUE, _LOST))]
)
"""What `run_subtask` yields, and `held_rows` takes once it has been moved to its key groups."""


@ready
class SubtaskNumber(msgspec.Struct, frozen=True):
    """Of one batch.

    Attributes:
        subtasks: How many there are.
        most: How many there have been at the most, in any batch up to this one.
        partitions: In which the batch's rows came.
    """

    subtasks: int
    most: int
    partitions: int


@ready
class _StoredSubtask(msgspec.Struct, array_like=True):
    """What is stored of a subtask. `count`: how many subtasks there were."""

    count: int
    elements: list[Any]


def run_subtask(
    order: StageOrder,
    state: str,
    subtasks: Subtasks,
    number: SubtaskNumber,
    columns: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """One subtask: what it held, and its rows, become what it holds."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    hasten_rows()
    descriptor = order.descriptors[state]
    operator = subtasks.operator
    check_class(descriptor, operator)
    index, count = context.partitionId(), number.subtasks
    try:
        reader = BaseReader(order, state, connecting(order))
        before = _Before(reader, StateCodec(descriptor), index, number, operator)
        subtask = Subtask(index, count, restored=before.count not in (0, count))
        elements = before.elements(subtask, subtasks.mode)
    except NotTaken as error:
        # For the task that stages it: one that raises here would end the query.
        receipt = PartitionReceipt(state, index, attempt_id=0, servers=(error.receipt,))
        yield _held_rows([index], [None], [receipt.to_row()])
        return
    after = list(operator.process(subtask, elements, _rows(columns, batches)))
    check_plain(state, "an element", after[:1], "let process() give plain data")
    # Those that are no subtasks any more keep an empty list: what they held before the epoch must stay known, should
    # the epoch be run again.
    held = {index: _StoredSubtask(count, after)}
    held |= {gone: _StoredSubtask(count, []) for gone in range(count, before.count) if gone % count == index}
    rows = [
        staged_aggregate(
            result_row(descriptor, operator.result(of.elements)), msgspec.msgpack.encode(of), version_of(operator)
        )
        for of in held.values()
    ]
    yield _held_rows(list(held), rows, [None] * len(held))


def _held_rows(indexes: list[int], values: Sequence[bytes | None], lost: Sequence[bytes | None]) -> pa.RecordBatch:
    columns = {VALUE: pa.array(values, pa.binary()), _LOST: pa.array(lost, pa.binary())}
    return pa.record_batch({SUBTASK: pa.array(indexes, pa.int32()), **columns})


def _rows(columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from rows_of(batch, columns)


class _Before:
    """What the subtasks held before the epoch; `count`: how many there were, 0: the state is new, or has expired.

    With a ttl some may have expired and others not: an epoch that two runs have committed, after a crash between two
    servers, has two commit times.

    Args:
        index: The subtask that asks.
        number: How many there are in this epoch, and have been.
        operator: Brings elements of an earlier version up.
    """

    def __init__(
        self, reader: BaseReader, codec: StateCodec, index: int, number: SubtaskNumber, operator: Operator
    ) -> None:
        self._reader = reader
        self._codec = codec
        self._operator = operator
        # Each says how many there were; that of the last epoch, where it is one of them. The first one always is.
        self._known = self._read({0, index})
        if 0 not in self._known:
            self._known |= self._read(set(range(number.subtasks)) - {0, index})
        if not self._known:
            self._known = self._read(range(number.subtasks, number.most))
        self.count = self._known[min(self._known)].count if self._known else 0

    def elements(self, subtask: Subtask, mode: Mode) -> list[Any]:
        """What a subtask has before the epoch's rows: its own elements, or its share where their number has changed."""
        if not subtask.restored:
            own = self._known.get(subtask.index)
            return own.elements if own else []
        self._known |= self._read(set(range(self.count)) - self._known.keys())
        held = [self._known[index] for index in range(self.count) if index in self._known]
        everything = [element for of in held for element in of.elements]
        return everything if mode == "union" else everything[subtask.index :: subtask.count]

    def _read(self, indexes: Iterable[int]) -> dict[int, _StoredSubtask]:
        keys = {self._codec.storage_key(index): index for index in indexes}
        bases = self._reader.bases(list(keys))
        return {keys[key]: self._held(base) for key, base in bases.items()}

    def _held(self, base: Base) -> _StoredSubtask:
        held = msgspec.msgpack.decode(base.accumulator, type=_StoredSubtask)
        if base.version == version_of(self._operator):
            return held
        descriptor = self._codec.descriptor
        elements = list(upgrade_from(descriptor, self._operator, base.version)(held.elements, base.version))
        check_plain(descriptor.state, "an element", elements[:1], "let upgrade() give plain data")
        return _StoredSubtask(held.count, elements)


def held_rows(batches: Iterable[pa.RecordBatch], descriptor: StateDescriptor) -> Iterator[pa.RecordBatch]:
    """What the subtasks hold, of HELD_SCHEMA, as state servers take it: STORAGE_KEY and VALUE.

    Raises:
        NotTaken: A server did not answer what a subtask held.
    """
    codec = StateCodec(descriptor)
    for batch in batches:
        lost = batch.column(_LOST).drop_null()
        if len(lost):
            raise NotTaken(PartitionReceipt.from_row(lost[0].as_py()).servers[0])
        keys = [codec.storage_key(index) for index in batch.column(SUBTASK).to_pylist()]
        yield pa.record_batch({STORAGE_KEY: pa.array(keys, pa.binary()), VALUE: batch.column(VALUE)})

"""Operator state: elements that belong to the subtasks of an operator, not to keys, and follow them when their number
changes (Flink's list and union-list state)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.coordinator.task_stream import NotTaken
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import VALUE
from keyhole.encoding.envelope import Base
from keyhole.hints import ready
from keyhole.protocol.epochs import StatePlan
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.spark.declaration.class_version import check_class, upgrade_from, version_of
from keyhole.spark.declaration.rows import rows_of
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.micro_batch import MicroBatch, classic
from keyhole.spark.driver.partitioning import by_key_group, shuffle_partitions
from keyhole.spark.driver.subtask_numbers import SubtaskNumber, subtask_number
from keyhole.spark.worker.aggregating import BaseReader, check_plain, result_row, staged_aggregate
from keyhole.spark.worker.settings import hasten_rows
from keyhole.spark.worker.stage import LOST, RECEIPT_SCHEMA, SUBTASK, TaskState, connecting, stage_task
from keyhole.spark.write_path.stage_plan import StagedState

KEY_SCHEMA = spark.StructType([spark.StructField(SUBTASK, spark.IntegerType(), nullable=False)])

Mode = Literal["list", "union"]

MOST_SUBTASKS = 10_000
"""More are a mistake; a batch keeps the number that it once had."""


@dataclass(frozen=True)
class Subtask:
    """Which part of the operator a call is for.

    Attributes:
        index: Its number, from 0 to `count` - 1.
        count: How many subtasks there are in this batch.
        restored: Their number has changed since the last batch: the elements were dealt out anew.
    """

    index: int
    count: int
    restored: bool


class Operator(Protocol):
    """What each subtask makes of its elements and of its rows of a batch.

        class Seen:
            def process(self, subtask, elements, rows):
                return sorted({*elements, *(row.word for row in rows)})

            def result(self, elements):
                return {"words": len(elements)}

    Runs in Spark's Python workers, so it must be picklable or importable there. A batch that is run again must give the
    same elements: nothing here may depend on time or chance. What a method raises ends the query. Elements are plain
    data, as MessagePack holds it (a tuple comes back as a list; a set, say, is refused).

    Where their shape or meaning has changed, an operator has a `version`, a whole number that grows (default: 1), and
    upgrade(elements, version): makes of all elements that an earlier version of a subtask held those of this one.
    """

    def process(self, subtask: Subtask, elements: list[Any], rows: Iterator[Any]) -> Sequence[Any]:
        """The subtask's elements after the batch. Need not be called where the batch has no rows for any subtask.

        Args:
            elements: Those before it. Where the number of subtasks has changed: of a list state the share of this one,
                of a union state all elements of all subtasks before.
            rows: The subtask's, whose columns are attributes, in any order. To be read once.
        """

    def result(self, elements: Sequence[Any]) -> Mapping[str, Any] | Sequence[Any]:
        """What readers get of a subtask: the fields of the declared result, by name or in their order."""


@dataclass(frozen=True)
class Subtasks:
    """An operator state's function, and over how many subtasks it runs; None: as many as the batch has partitions."""

    operator: Operator
    mode: Mode
    count: int | None


@ready
class _Held(msgspec.Struct, array_like=True):
    """What is stored of a subtask. `count`: how many subtasks there were."""

    count: int
    elements: list[Any]


def operator_state(subtasks: Subtasks, plan: StatePlan, rows: ClassicDataFrame, batch: MicroBatch) -> StagedState:
    """The state's part of an epoch: what the subtasks hold after the batch, moved to their key groups."""
    schema = spark.StructType(
        [*KEY_SCHEMA.fields, *(spark.StructField(of, spark.BinaryType()) for of in (VALUE, LOST))]
    )
    descriptor = plan.descriptor

    def receipts(order: StageOrder) -> list[DataFrame]:
        # Here the run has the query: one that may not have it settles nothing.
        partitions = _partitions(rows)
        number = subtask_number(rows, batch, descriptor.state, subtasks.count, partitions)
        dealt = rows if partitions == number.subtasks else classic(rows.repartition(number.subtasks))
        task = functools.partial(_process, order, descriptor.state, subtasks, number, tuple(rows.columns))
        processed = classic(map_in_arrow(dealt, task, schema))
        placed, _ = by_key_group(processed, None, [SUBTASK], descriptor.key_groups)
        encode = TaskState(descriptor.state, ready=True)
        return [map_in_arrow(placed, functools.partial(stage_task, order, encode), RECEIPT_SCHEMA)]

    return StagedState([plan], shuffle_partitions(rows, descriptor.key_groups), receipts, numbered=True)


def _partitions(rows: ClassicDataFrame) -> int:
    return int(rows._jdf.rdd().getNumPartitions())


def _process(
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
    held = {index: _Held(count, after)}
    held |= {gone: _Held(count, []) for gone in range(count, before.count) if gone % count == index}
    rows = [
        staged_aggregate(
            result_row(descriptor, operator.result(of.elements)), msgspec.msgpack.encode(of), version_of(operator)
        )
        for of in held.values()
    ]
    yield _held_rows(list(held), rows, [None] * len(held))


def _held_rows(indexes: list[int], values: Sequence[bytes | None], lost: Sequence[bytes | None]) -> pa.RecordBatch:
    columns = {VALUE: pa.array(values, pa.binary()), LOST: pa.array(lost, pa.binary())}
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

    def _read(self, indexes: Iterable[int]) -> dict[int, _Held]:
        keys = {self._codec.storage_key(index): index for index in indexes}
        bases = self._reader.bases(list(keys))
        return {keys[key]: self._held(base) for key, base in bases.items()}

    def _held(self, base: Base) -> _Held:
        held = msgspec.msgpack.decode(base.accumulator, type=_Held)
        if base.version == version_of(self._operator):
            return held
        descriptor = self._codec.descriptor
        elements = list(upgrade_from(descriptor, self._operator, base.version)(held.elements, base.version))
        check_plain(descriptor.state, "an element", elements[:1], "let upgrade() give plain data")
        return _Held(held.count, elements)

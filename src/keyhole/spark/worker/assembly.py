"""The assembly line of a task: a state's rows as Spark hands them over become the rows that state servers take.

    a codec's bytes -> the position in a list -> encoded, a batch at a time -> folded, where the order counts

An aggregating state's rows leave the line for its aggregator; an operator's come aggregated already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from keyhole.encoding.columnar import SEQUENCE, encode
from keyhole.model.state import StateKind
from keyhole.protocol.receipts import StageOrder
from keyhole.spark.declaration.value_codec import Encoding
from keyhole.spark.worker.aggregating import Aggregation, aggregated
from keyhole.spark.worker.connections import connecting
from keyhole.spark.worker.fold import folded
from keyhole.spark.worker.subtasks import held_rows


@dataclass(frozen=True)
class TaskState:
    """What a task must know of the state that it stages. Picklable.

    Attributes:
        in_order: Of rows that write one entry the last one counts, and clearing a key clears what came before it.
        aggregation: Of an aggregating state.
        encoding: Of a state whose value the job encodes itself.
        held: Of an operator state: the rows are what its subtasks hold, aggregated already.
    """

    state: str
    in_order: bool = False
    aggregation: Aggregation | None = None
    encoding: Encoding | None = None
    held: bool = False


def staged_rows(order: StageOrder, state: TaskState, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as state servers take them: STORAGE_KEY and VALUE.

    Args:
        batches: The columns of the state's key and value; or those that its aggregator, or codec, gets.

    Raises:
        NotTaken: A server that was asked for what it held did not answer.
        KeyholeError: A row does not fit, as `columnar.encode` and `aggregated` say.
    """
    descriptor = order.descriptors[state.state]
    if state.encoding is not None:
        batches = state.encoding.encoded(batches, descriptor)
    if descriptor.kind is StateKind.LIST:
        batches = _numbered(batches)
    if state.held:
        return held_rows(batches, descriptor)
    if state.aggregation is not None:
        return aggregated(order, descriptor, state.aggregation, batches, connecting(order))
    rows = (encode(batch, descriptor) for batch in batches)
    return folded(rows, descriptor) if state.in_order else rows


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """With the position of each row among those of the task."""
    before = 0
    for batch in batches:
        positions = np.arange(before, before + batch.num_rows, dtype=np.int64)
        before += batch.num_rows
        yield batch.append_column(SEQUENCE, pa.array(positions))

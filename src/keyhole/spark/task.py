"""What runs in Spark's tasks: one call per partition, empty ones included, and one receipt row from each."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import grpc
import pyarrow as pa
from pyspark import TaskContext

from keyhole.arrow import encode
from keyhole.coordinator.receipts import StageOrder
from keyhole.coordinator.staging import stage_partition
from keyhole.rpc.channels import sync_channel

RECEIPT_COLUMN = "receipt"
RECEIPT_SCHEMA = f"{RECEIPT_COLUMN} binary"


def stage_task(order: StageOrder, state: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of `mapInArrow`, once its first two arguments are bound.

    Spark calls it once per partition of a plan that has any, also where the partition has no rows (then `batches` is
    empty). It raises only for bugs: what is wrong with the data, or with a server, is told in the receipt, because a
    task that raises is tried again by Spark and then ends the query with an error that has lost its class.

    Args:
        batches: The key columns and the value columns of the state, in any order.

    Yields:
        One batch of one row: PartitionReceipt.to_row().
    """
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    descriptor = order.descriptors[state]
    rows = (encode(batch, descriptor) for batch in batches)
    # Spark's attempt ids are unique over the rounds of an epoch; its attempt numbers begin at 0 in each.
    receipt = stage_partition(order, state, context.partitionId(), context.taskAttemptId(), rows, _connect)
    yield pa.record_batch({RECEIPT_COLUMN: pa.array([receipt.to_row()], pa.binary())})


@functools.lru_cache(maxsize=64)
def _connect(address: str) -> grpc.Channel:
    """One channel per server for the life of the Python worker process, which Spark keeps for many tasks.

    Spark forks its workers from a daemon that has never opened a channel, so none is ever shared by two processes.
    """
    return sync_channel(address)

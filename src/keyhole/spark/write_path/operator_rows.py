"""An operator state's part of an epoch: its subtasks run, and what they hold goes to its key groups."""

from __future__ import annotations

import functools

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.protocol.epochs import StatePlan
from keyhole.protocol.receipts import StageOrder
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.micro_batch import MicroBatch
from keyhole.spark.driver.partitioning import by_key_group, shuffle_partitions
from keyhole.spark.driver.subtask_numbers import subtask_number
from keyhole.spark.operators import Subtasks
from keyhole.spark.worker.assembly import TaskState
from keyhole.spark.worker.stage import RECEIPT_SCHEMA, stage_task
from keyhole.spark.worker.subtasks import HELD_SCHEMA, SUBTASK, run_subtask
from keyhole.spark.write_path.stage_plan import StagedState


def staged_operator(subtasks: Subtasks, plan: StatePlan, rows: ClassicDataFrame, batch: MicroBatch) -> StagedState:
    """The state's part of an epoch: what the subtasks hold after the batch, moved to their key groups."""
    descriptor = plan.descriptor

    def receipts(order: StageOrder) -> list[DataFrame]:
        # Here the run has the query: one that may not have it settles nothing.
        partitions = _partitions(rows)
        number = subtask_number(batch, descriptor.state, subtasks.count, partitions)
        dealt = rows if partitions == number.subtasks else classic(rows.repartition(number.subtasks))
        task = functools.partial(run_subtask, order, descriptor.state, subtasks, number, tuple(rows.columns))
        processed = classic(map_in_arrow(dealt, task, HELD_SCHEMA))
        placed, _ = by_key_group(processed, None, [SUBTASK], descriptor.key_groups)
        encode = TaskState(descriptor.state, held=True)
        return [map_in_arrow(placed, functools.partial(stage_task, order, encode), RECEIPT_SCHEMA)]

    return StagedState([plan], shuffle_partitions(rows, descriptor.key_groups), receipts, numbered=True)


def _partitions(rows: ClassicDataFrame) -> int:
    return int(rows._jdf.rdd().getNumPartitions())

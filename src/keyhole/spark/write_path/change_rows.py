"""How the changes of a processor's states are staged: in the partitions where they are, or packed apart first."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.protocol.epochs import StatePlan
from keyhole.protocol.receipts import StageOrder
from keyhole.spark.changes import changes_of, own_rows
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.layout import HashLayout
from keyhole.spark.driver.partitioning import shuffle_partitions
from keyhole.spark.exposed import packed_key
from keyhole.spark.worker.assembly import TaskState
from keyhole.spark.worker.pack import ORDER, PARTITION, REPACKED_SCHEMA, repacked
from keyhole.spark.worker.stage import RECEIPT_SCHEMA, WriteRows, stage_changes, write_and_stage_changes, written
from keyhole.spark.write_path.stage_plan import StagedState


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
    in_place = layout is not None and layout.has_key_groups(packed_key(key), descriptor.key_groups)
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

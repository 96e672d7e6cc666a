"""Bugs that are planted into a driver with Spark, as tests.fault.planted does into state servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.protocol.epochs import StatePlan
from keyhole.spark.broadcasting import BroadcastReader
from keyhole.spark.driver import subtask_numbers
from keyhole.spark.driver.micro_batch import MicroBatch
from keyhole.spark.exposed import CHANGES_COLUMN, STATE_COLUMN
from keyhole.spark.operators import Subtasks
from keyhole.spark.worker.subtasks import SubtaskNumber
from keyhole.spark.write_path import change_rows, epoch_states, operator_rows
from keyhole.spark.write_path.stage_plan import StagedState
from tests.fault import dealing
from tests.fault.workload import LEDGERS, STOPS


def drop_changes() -> None:
    """Some of the changes of an exposed map don't get from Spark's operator to the tasks that stage them."""
    changes_of = change_rows.changes_of

    def without(states: Sequence[str], batch: DataFrame) -> DataFrame:
        lost = (f.col(STATE_COLUMN) == STOPS) & (f.crc32(CHANGES_COLUMN) % 2 == 0)
        return changes_of(states, batch).where(~lost)

    change_rows.changes_of = without  # type: ignore[assignment]


def miss_entries() -> None:
    """What a batch reads of a broadcast state lacks some of it."""
    read = BroadcastReader.read

    def missing(self: BroadcastReader, data: DataFrame) -> DataFrame:
        return read(self, data).where(f.crc32("k") % 2 == 0)

    BroadcastReader.read = missing  # type: ignore[method-assign]


def deal_out_unions() -> None:
    """When the number of subtasks changes, the elements of a union state are dealt out, too."""
    staged_operator = epoch_states.staged_operator

    def dealt_out(subtasks: Subtasks, plan: StatePlan, rows: ClassicDataFrame, batch: MicroBatch) -> StagedState:
        return staged_operator(dataclasses.replace(subtasks, mode="list"), plan, rows, batch)

    epoch_states.staged_operator = dealt_out


def forget_numbers() -> None:
    """A batch that is run again has as many subtasks of one operator as its driver wants."""
    subtask_number = subtask_numbers.subtask_number

    def forgotten(batch: MicroBatch, state: str, wanted: int | None, partitions: int) -> SubtaskNumber:
        number = subtask_number(batch, state, wanted, partitions)
        return SubtaskNumber(wanted or partitions, number.most, partitions) if state == LEDGERS else number

    operator_rows.subtask_number = dealing.subtask_number = forgotten


PLANTS: Mapping[str, Callable[[], None]] = {
    "dropped changes": drop_changes,
    "missed entries": miss_entries,
    "union dealt out": deal_out_unions,
    "forgotten number": forget_numbers,
}


def plant(names: str) -> None:
    """Changes the driver of this process, by one of PLANTS or several, with commas. Empty: nothing."""
    for name in names.split(",") if names else ():
        PLANTS[name]()

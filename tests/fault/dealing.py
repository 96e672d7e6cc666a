"""Rows of a batch by the subtask of an operator that takes them. For a driver with Spark."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole.spark.driver.micro_batch import current
from keyhole.spark.driver.subtask_numbers import subtask_number
from tests.fault.driver import Recorder
from tests.fault.history import Dealt
from tests.fault.states import AMOUNTS


def dealing(state: str, subtasks: int, recorder: Recorder) -> Callable[[DataFrame], DataFrame]:
    """Makes the rows of an operator of a batch's, each where the workload wants it: subtask s runs on partition s.

    Args:
        subtasks: How many there are to be. A batch that is run again has as many as it had before.
        recorder: Is told how many each batch has.
    """

    def placed(rows: DataFrame) -> DataFrame:
        batch = current(rows)
        number = subtask_number(batch, state, subtasks, subtasks).subtasks
        recorder.record(Dealt(time.monotonic(), state, batch.number, number))
        own = rows.where(f.col("state") == state).repartitionById(number, f.col("k").cast("int") % number)
        return own.select("n", *(f.col("fields")[at].alias(name) for at, name in enumerate(AMOUNTS)))

    return placed

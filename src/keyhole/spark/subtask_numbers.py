"""How many subtasks an operator state has in a batch: settled at its first run, as what that has committed stays."""

from __future__ import annotations

import msgspec
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.ready import ready
from keyhole.spark.batch import MicroBatch
from keyhole.spark.pins import BatchPins
from keyhole.types import StateDescriptor


@ready
class SubtaskNumber(msgspec.Struct, frozen=True):
    """Of one batch.

    Attributes:
        subtasks: How many there are.
        most: How many there have been at the most, in any batch up to this one.
    """

    subtasks: int
    most: int


def subtask_number(
    rows: ClassicDataFrame, batch: MicroBatch, descriptor: StateDescriptor, wanted: int
) -> SubtaskNumber:
    """The batch's number of subtasks: what is wanted, or what was when it was run first.

    Its servers may have committed their key groups of a run that was broken off. Those of the others must come from the
    same subtasks, or elements would be lost, or there twice.
    """
    # Not by the application, which may have another name once it is restored.
    pins = BatchPins(rows, batch, f"subtasks/{descriptor.state}")
    if (now := pins.now()) is not None:
        return _decoded(now)
    before = pins.before()
    most = wanted if before is None else max(wanted, _decoded(before).most)
    return _decoded(pins.pin(msgspec.json.encode(SubtaskNumber(wanted, most))))


def _decoded(content: bytes) -> SubtaskNumber:
    return msgspec.json.decode(content, type=SubtaskNumber)

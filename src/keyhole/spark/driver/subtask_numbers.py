"""How many subtasks an operator state has in a batch: settled at its first run, as what that has committed stays."""

from __future__ import annotations

import logging

import msgspec

from keyhole.protocol.batch_decisions import subtasks_folder
from keyhole.spark.driver.micro_batch import MicroBatch
from keyhole.spark.driver.pins import batch_pins
from keyhole.spark.worker.subtasks import SubtaskNumber

_log = logging.getLogger(__name__)


def subtask_number(batch: MicroBatch, state: str, wanted: int | None, partitions: int) -> SubtaskNumber:
    """The batch's number of subtasks: what is wanted, or what was when it was run first.

    Its servers may have committed their key groups of a run that was broken off. Those of the others must come from the
    same subtasks, or elements would be lost, or there twice.

    Args:
        wanted: None: as many as there are partitions.
        partitions: In which the rows come now. Which subtask has which of them depends on it.
    """
    pins = batch_pins(batch, subtasks_folder(state))
    settled = pins.now()
    if settled is None:
        before = pins.before()
        subtasks = wanted or partitions
        most = subtasks if before is None else max(subtasks, _decoded(pins.content(before)).most)
        settled = pins.pin(msgspec.json.encode(SubtaskNumber(subtasks, most, partitions)), before)
    number = _decoded(pins.content(settled))
    if number.partitions != partitions:
        _log.warning(
            "a batch is run again with another number of partitions: other subtasks get its rows",
            extra={"state": state, "partitions": partitions, "at_first": number.partitions},
        )
    return number


def _decoded(content: bytes) -> SubtaskNumber:
    return msgspec.json.decode(content, type=SubtaskNumber)

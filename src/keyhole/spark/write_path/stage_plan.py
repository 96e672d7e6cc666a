"""An epoch's states, ready to be staged: the plans of one round, run as one job of Spark's, and their receipts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from pyspark.sql import DataFrame

from keyhole.protocol.epochs import StatePlan
from keyhole.protocol.receipts import PartitionReceipt, StageOrder


@dataclass(frozen=True)
class StagedState:
    """A state of an epoch, or several that one pass of the batch stages; any number of times.

    Attributes:
        receipts: Makes the plans of one round, whose rows are the receipts of `partitions` partitions of each state.
        numbered: Its tasks go by the numbers of their partitions, so it must have a job of Spark's for itself.
    """

    plans: Sequence[StatePlan]
    partitions: int
    receipts: Callable[[StageOrder], Sequence[DataFrame]]
    numbered: bool = False


class Staging(TypedDict):
    """What an EpochBatch says of its states."""

    states: tuple[StatePlan, ...]
    partitions: Mapping[str, int]
    stage: Callable[[StageOrder], Sequence[PartitionReceipt]]


def staging_of(staged: Sequence[StagedState]) -> Staging:
    """All states of an epoch."""
    return Staging(
        states=tuple(plan for one in staged for plan in one.plans),
        partitions={plan.descriptor.state: one.partitions for one in staged for plan in one.plans},
        stage=functools.partial(stage_all, staged),
    )


def stage_all(staged: Sequence[StagedState], order: StageOrder) -> list[PartitionReceipt]:
    """One round: runs the plans of all passes and collects their receipts, nothing else.

    As one job of Spark's, because each costs processor time beyond its tasks: measured in docs/benchmarks.md.
    """
    alone = [plan for one in staged if one.numbered for plan in one.receipts(order)]
    together = [plan for one in staged if not one.numbered for plan in one.receipts(order)]
    if len(together) > 1 and not alone and not together[0].sparkSession.sparkContext._jsc.sc().isLocal():
        # The batch is kept by whoever computes it first. Of one job's tasks several would, on as many executors.
        alone.append(together.pop(0))
    jobs = alone + ([functools.reduce(DataFrame.union, together)] if together else [])
    receipts = [PartitionReceipt.from_row(bytes(row[0])) for job in jobs for row in job.collect()]
    received = {receipt.state for receipt in receipts}
    # Of others Spark has found out, before or while running, that they have no rows, and made no partitions at all.
    # Some that are missing while others are there would be an error, which the coordinator finds.
    return receipts + [
        PartitionReceipt(plan.descriptor.state, partition, attempt_id=0)
        for one in staged
        for plan in one.plans
        if plan.descriptor.state not in received
        for partition in range(one.partitions)
    ]

"""Says what the coordinator must know of a micro-batch, and what became of it, in frozen values. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord
from keyhole.protocol.receipts import PartitionReceipt, StageOrder


@dataclass(frozen=True)
class StatePlan:
    """A state as the batch declares it.

    Attributes:
        replace: The batch is the whole state (complete mode).
        standbys: On how many servers beside the owner each key group is followed, if there are as many.
    """

    descriptor: StateDescriptor
    replace: bool = False
    standbys: int = 0


@dataclass(frozen=True)
class EpochBatch:
    """A micro-batch, as the coordinator needs to know it.

    Attributes:
        offsets_hash: `offsets_hash` of the batch's source offsets.
        watermark_ms: Event-time watermark in milliseconds since 1970; 0: none.
        partitions: Number of partitions that `stage` will give receipts of, for each state, or by state.
        stage: Runs the batch's tasks once, over all partitions. Called once per round; the rows must be the same.
        offsets: The batch's entry in Spark's offset log; empty: unknown.
        stateful: Spark keeps state of its own for the query.
        next_watermark_ms: The watermark after the batch, asked for once its rows are staged; None: nobody needs it.
        bootstrap: The name of the bootstrap that the batch is, of no stream; empty: it is one of a stream.
    """

    spark_query_id: str
    batch_id: int
    offsets_hash: int
    watermark_ms: int
    states: tuple[StatePlan, ...]
    partitions: int | Mapping[str, int]
    stage: Callable[[StageOrder], Sequence[PartitionReceipt]]
    offsets: str = ""
    stateful: bool = False
    next_watermark_ms: Callable[[], int] | None = None
    bootstrap: str = ""

    @property
    def partitions_by_state(self) -> dict[str, int]:
        """How many partitions `stage` gives receipts of, for each state that the batch declares."""
        of = self.partitions
        names = [plan.descriptor.state for plan in self.states]
        return {name: of if isinstance(of, int) else of[name] for name in names}

    def with_watermark_from(self, before: CompleteRecord) -> EpochBatch:
        """The same batch, whose watermark is not below that of an epoch before it.

        That of a new checkpoint begins at 0: entries of states that are kept would come back that have expired.
        """
        return replace(self, watermark_ms=max(self.watermark_ms, before.watermark_ms))


@dataclass(frozen=True)
class EpochResult:
    """What became of a batch.

    Attributes:
        stamp: Of its epoch, which is complete.
        replayed: At least one key group had been committed by an earlier run.
        rounds: 1 where nothing failed.
    """

    stamp: EpochStamp
    replayed: bool
    rounds: int

    @property
    def epoch(self) -> int:
        """The number of the epoch that the batch became."""
        return self.stamp.epoch


def offsets_hash(offsets: str) -> int:
    """Hashes a batch's source offsets, as Spark writes them, to 64 bits."""
    return int.from_bytes(hashlib.blake2b(offsets.encode(), digest_size=8).digest(), "big")

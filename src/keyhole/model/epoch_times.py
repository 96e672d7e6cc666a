"""What an epoch took. Frozen values, pure."""

from __future__ import annotations

import msgspec


class EpochTimes(msgspec.Struct, frozen=True):
    """Of one complete epoch, by the clock of its driver.

    Attributes:
        generation: Of the run that completed it.
        batch: Spark's id of its batch; negative: it is none of Spark's, as a bootstrap's.
        began_ms: When the batch arrived at the sink: milliseconds since 1970, UTC.
        seconds: From there until it was complete.
        converge, stage, commit, complete: Seconds of that, by phase and over all rounds.
        rounds: 1 where nothing failed.
        replayed: Key groups of it had been committed before, by an earlier run or round.
        batch_seconds: The whole batch, as Spark reports it some time later; 0.0: not yet, or never.
    """

    epoch: int
    generation: int
    batch: int
    began_ms: int
    seconds: float
    converge: float
    stage: float
    commit: float
    complete: float
    rounds: int
    replayed: bool
    batch_seconds: float = 0.0

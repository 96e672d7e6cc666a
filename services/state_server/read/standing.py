"""What the answers of a copy stand for: which epoch, of which owner, how old; and the lease that confirms an owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from keyhole.clock import Clock
from keyhole.model.epoch import NO_EPOCH, EpochStamp


@dataclass(frozen=True)
class Standing:
    """What the answers of a copy stand for, apart from single key groups that stand elsewhere.

    Attributes:
        stamp: Of the last epoch that they have; the generation of an owner's is that of its run.
        as_of_ms: The copy holds all that was complete then, by the coordinator's clock; 0: not known. An owner's is 0:
            the time of its lease counts. But of a state that is fed by updates, all that its log had then, by the clock
            of this server, whoever owns it.
        heard_monotonic: When this server heard of that: whichever of the two makes the answer older counts, so that no
            jump of a clock makes it look fresh.
        lag_epochs: How many complete epochs the copy is known to lack.
    """

    stamp: EpochStamp = NO_EPOCH
    assignment_version: int = 0
    as_of_ms: int = 0
    heard_monotonic: float = 0.0
    lag_epochs: int = 0


def lagging(standing: Standing, lag_epochs: int) -> Standing:
    """The same rows, known to lack so many complete epochs."""
    return standing if standing.lag_epochs == lag_epochs else replace(standing, lag_epochs=lag_epochs)


def as_of_its_epoch(standing: Standing, last: Standing) -> Standing:
    """The same rows, for a reader that asked for their epoch by its number: of what came since, they have nothing.

    Args:
        last: Where the copy stands now.
    """
    stamp = standing.stamp
    lag_epochs = last.lag_epochs + last.stamp.epoch - stamp.epoch
    return replace(standing, as_of_ms=stamp.commit_time_ms, lag_epochs=max(0, lag_epochs))


@dataclass
class Lease:
    """When the coordinator was last heard of. One per query, shared by its tables.

    Attributes:
        on_confirm: Is called at each confirmation, in the same step.
    """

    clock: Clock
    seconds: float
    confirmed_monotonic: float = field(default=float("-inf"))
    confirmed_ms: int = 0
    on_confirm: Callable[[], None] = field(default=lambda: None, repr=False)
    _committing: int = field(default=0, init=False)
    _before_commit_ms: int = field(default=0, init=False)

    def confirm(self) -> None:
        self.confirmed_monotonic = self.clock.monotonic()
        self.confirmed_ms = self.clock.now_ms()
        self.on_confirm()

    @contextmanager
    def committing(self) -> Iterator[None]:
        """What the block commits is published at its end: until then it lacks. Event loop."""
        if not self._committing:
            self._before_commit_ms = self.confirmed_ms
        self._committing += 1
        try:
            yield
        finally:
            self._committing -= 1

    @property
    def complete_ms(self) -> int:
        """All that was committed by then is published: the last confirmation, or the one before a commit under way."""
        return self._before_commit_ms if self._committing else self.confirmed_ms

    @property
    def age_seconds(self) -> float:
        return self.clock.monotonic() - self.confirmed_monotonic

    @property
    def expired(self) -> bool:
        return self.age_seconds > self.seconds

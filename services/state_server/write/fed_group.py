"""A key group of a state that is fed by updates, in one time as its owner: how far it is, and what readers see."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.errors import KeyholeError
from keyhole.model.epoch import NO_EPOCH, EpochStamp
from services.state_server.read.feed_progress import GroupLag
from services.state_server.read.standing import Standing


@dataclass
class FedGroup:
    """See the module's text. Host thread, but for `lag`.

    Attributes:
        tenure: Which time that is.
        begun_monotonic: When it began.
        at: The offset from which the next records are to come.
        shown_from: It is shown once it is applied up to there.
        shown: Readers are answered from it.
        at_end: All that its log had when it was read last is applied.
        reached_ms, reached_monotonic: When that was so last, by either clock; 0: never.
        log_end: Where its log ended, as far as that is known.
        why: Why nothing more of it is applied; None: it goes on.
        waits: Rules that are ahead of the descriptor come next.
        again: It has failed, and began anew.
        stamp: What readers of it see, but for the generation.
    """

    tenure: int
    begun_monotonic: float
    at: int = 0
    shown_from: int = 0
    shown: bool = False
    at_end: bool = False
    reached_ms: int = 0
    reached_monotonic: float = 0.0
    log_end: int = 0
    why: KeyholeError | None = None
    waits: bool = False
    again: bool = False
    stamp: EpochStamp = NO_EPOCH

    @property
    def settled(self) -> bool:
        """It is shown, or nothing more comes that could be waited for."""
        return self.shown or self.why is not None or self.waits

    @property
    def behind(self) -> Standing:
        """What it stands for where it is behind its log: as of when it was not."""
        return Standing(self.stamp, as_of_ms=self.reached_ms or 1, heard_monotonic=self._since)

    @property
    def lag(self) -> GroupLag:
        """What it has not applied. Any thread."""
        updates = max(0, self.log_end - self.at)
        return GroupLag(None if self.at_end else self._since, updates, self.why is not None, self.waits)

    @property
    def _since(self) -> float:
        """When it had all of its log last, or began."""
        return self.reached_monotonic if self.reached_ms else self.begun_monotonic

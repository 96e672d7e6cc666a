"""A key group of a state that is fed by updates, in one time as its owner: how far it is, and what readers see."""

from __future__ import annotations

from dataclasses import dataclass, field

from keyhole.errors import KeyholeError
from keyhole.model.epoch import NO_EPOCH, EpochStamp
from services.state_server.read.feed_progress import GroupLag
from services.state_server.read.standing import Standing
from services.state_server.replica.ends_asking import LogEnd, LogEnds


@dataclass
class FedGroup:
    """See the module's text. Host thread, but for `lag`.

    Attributes:
        tenure: Which time that is.
        begun_monotonic: When it began.
        at: The offset from which the next records are to come.
        place: All below is applied.
        shown_from: It is shown once it is applied up to there.
        shown: Readers are answered from it.
        reached: The last end of its log that it has come to: what readers see has all that there was then. None: not
            known.
        stored: The same of what is committed.
        log_end: Where its log ended, as far as that is known.
        why: Why nothing more of it is applied; None: it goes on.
        waits: Rules that are ahead of the descriptor come next.
        again: It has failed, and began anew.
        stamp: What readers of it see, but for the generation.
    """

    tenure: int
    begun_monotonic: float
    at: int = 0
    place: int = 0
    shown_from: int = 0
    shown: bool = False
    reached: LogEnd | None = None
    stored: LogEnd | None = None
    log_end: int = 0
    why: KeyholeError | None = None
    waits: bool = False
    again: bool = False
    stamp: EpochStamp = NO_EPOCH
    _ends: LogEnds = field(default_factory=LogEnds)
    _ends_of_stored: LogEnds = field(default_factory=LogEnds)

    def ended(self, end: LogEnd) -> None:
        """Its log ended there when that was asked."""
        self._ends.add(end)
        self._ends_of_stored.add(end)
        self.log_end = max(self.log_end, end.offset)
        self.reached = self._ends.reached(self.place)

    def apply_to(self, place: int) -> None:
        """All below this place is applied now."""
        self.place = place
        self.reached = self._ends.reached(place)

    def store_to(self, place: int) -> None:
        """All below is committed, and in the store."""
        self.stored = self._ends_of_stored.reached(place)

    @property
    def settled(self) -> bool:
        """It is shown, or nothing more comes that could be waited for."""
        return self.shown or self.why is not None or self.waits

    @property
    def standing(self) -> Standing:
        """What it stands for: as of when it had all of its log last."""
        if self.reached is None:
            return Standing(self.stamp)
        return Standing(self.stamp, as_of_ms=self.reached.ms, heard_monotonic=self.reached.monotonic)

    @property
    def lag(self) -> GroupLag:
        """What it has not applied. Any thread."""
        return GroupLag(self.since, max(0, self.log_end - self.at), self.why is not None, self.waits)

    @property
    def since(self) -> float:
        """As of when it has all of its log; where that is not known, when it began. Any thread."""
        reached = self.reached
        return self.begun_monotonic if reached is None else reached.monotonic

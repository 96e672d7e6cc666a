"""When an epoch is committed: one moment for all of its key groups, and for each of its rounds."""

from __future__ import annotations

from keyhole.clock import Clock


class CommitTime:
    """Once the rows of a round are all staged, which may take minutes, and from then on in each further round. Before
    that: when the epoch was begun, up to which its tasks take what expires for living.

    Attributes:
        ms: Milliseconds since 1970.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._decided = False
        self.ms = clock.now_ms()

    def decide(self) -> None:
        """All rows are staged. Idempotent."""
        if not self._decided:
            self._decided = True
            self.ms = max(self.ms, self._clock.now_ms())

"""Records per second over the last few seconds, of a count that is looked at now and then. Pure."""

from __future__ import annotations

from collections import deque

_OVER_SECONDS = 5.0


class Rates:
    """Not thread-safe: one thread looks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, seconds: float, count: int) -> float:
        """What it comes to.

        Args:
            seconds: The time; no less than in the call before.
            count: Of all records until then.
        """
        self._seen.append((seconds, count))
        # The last one that is older stays: what is between them is the whole time.
        while len(self._seen) > 2 and self._seen[1][0] <= seconds - _OVER_SECONDS:
            self._seen.popleft()
        first_seconds, first = self._seen[0]
        return (count - first) / (seconds - first_seconds) if seconds > first_seconds else 0.0

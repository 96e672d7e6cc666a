"""How long nearly all of a server's latest answers took. Pure."""

from __future__ import annotations

import math

_SHORTEST_SECONDS = 0.0001
_BUCKETS_PER_DOUBLING = 4
# The last bucket ends at 6.5 seconds.
_BUCKETS = 16 * _BUCKETS_PER_DOUBLING
_FEWEST_IN_A_WINDOW, _ABOVE_IN_A_WINDOW = 1_000, 10
# Of a window, what must have been noted before anything is said, and how often it is looked at.
_FEW, _LOOKS = 10, 20


class LatencyQuantile:
    """Counts latencies in buckets whose ends are a fifth apart, and forgets half of them after each window.

    A window is 1,000 latencies, or as many as have 10 above the quantile. A latency is noted in less than a
    microsecond.

    Args:
        quantile: Above 0, below 1.

    Attributes:
        seconds: The quantile of the last one or two windows: the end of its bucket, so at most a fifth too long.
            Infinite while fewer than a tenth of a window were noted.
    """

    __slots__ = ("_counts", "_few", "_look", "_quantile", "_total", "_window", "seconds")

    def __init__(self, quantile: float) -> None:
        self.seconds = math.inf
        self._quantile = quantile
        self._window = max(_FEWEST_IN_A_WINDOW, math.ceil(_ABOVE_IN_A_WINDOW / (1 - quantile)))
        self._few = self._window / _FEW
        # Halved, so not whole numbers: in one where hardly any is above the quantile, each of these counts.
        self._counts = [0.0] * _BUCKETS
        self._total = 0.0
        self._look = self._few

    def note(self, seconds: float) -> None:
        """An answer took so long."""
        doublings = math.log2(seconds / _SHORTEST_SECONDS) if seconds > _SHORTEST_SECONDS else 0.0
        self._counts[min(int(doublings * _BUCKETS_PER_DOUBLING), _BUCKETS - 1)] += 1
        self._total += 1
        if self._total >= self._look:
            self._look_again()

    def _look_again(self) -> None:
        below, wanted = 0.0, self._quantile * self._total
        for bucket, count in enumerate(self._counts):
            below += count
            if below >= wanted:
                self.seconds = _SHORTEST_SECONDS * 2 ** ((bucket + 1) / _BUCKETS_PER_DOUBLING)
                break
        if self._total >= self._window:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
        self._look = self._total + self._window / _LOOKS

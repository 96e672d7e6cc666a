"""What counts where things happen: plain numbers, without locks. Each is written by one thread; others may read it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence


class Histogram:
    """How often a value was at most each bound, and above the one before.

    Attributes:
        bounds: Upper bounds, ascending.
        counts: One more than bounds: the last one is of what is above all of them.
        sum: Of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """The value was there so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class ReadCounts:
    """The reads of one state: keys looked up and the frames they came in, scans ended and what they sent, and what was
    refused, by reason. Also how many scans have used an index, by its field.
    """

    __slots__ = ("entries", "entry_bytes", "failed", "frames", "indexed", "keys", "scans")

    def __init__(self) -> None:
        self.keys = self.frames = self.scans = self.entries = self.entry_bytes = 0
        self.indexed: Counter[str] = Counter()
        self.failed: defaultdict[str, int] = defaultdict(int)


class Refusals:
    """Calls that were refused before they were looked at, by labels.REFUSALS. What secures a port counts here."""

    def __init__(self) -> None:
        self.by_refusal: defaultdict[str, int] = defaultdict(int)

    def note(self, refusal: str) -> None:
        """One more. `refusal`: one of labels.REFUSALS."""
        self.by_refusal[refusal] += 1

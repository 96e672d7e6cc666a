"""How late frames come, by what their sender says of when it sent them. Pure: times come in as numbers.

What waits in sockets and streams before a busy process reads it is as old as the process is behind. Nothing but the
sender's clock says so, and two clocks don't agree. So only differences count. The fastest frame of the last 10 to 20 s
is taken for one that came at once, and others are as much later as they took longer than it.
Source: the one-way delays of LEDBAT, RFC 6817.
"""

from __future__ import annotations

LATE = "late_ms"
"""The fact of a frame that was dropped by what it says of when it was sent."""

_WINDOW_SECONDS = 10.0
"""For one to two of these the fastest frame counts: two clocks that drift apart by 50 ppm differ by 1 ms by then."""
_MODULUS = 1 << 32
_HALF = 1 << 31


class FrameAges:
    """Those of one stream. Used by one thread.

    What it says is at most how long a frame has waited, where both clocks go on evenly. Where the sender's has stood
    still, as that of a machine that was suspended, its next frames seem late. Then the sender, who knows better, sends
    one that does not say when.
    """

    __slots__ = ("_before", "_first", "_least", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._first = self._least = self._before = 0

    def late_ms(self, sent_ms: int, now: float) -> int:
        """How many milliseconds later than the fastest one a frame has come.

        Args:
            sent_ms: By the sender's clock, modulo 2^32; 0: it does not say, and all is measured anew from here on.
            now: Seconds, by the receiver's.
        """
        if not sent_ms:
            self._since = None
            return 0
        took = int(now * 1000) - sent_ms
        if self._since is None or not 0 <= now - self._since <= 2 * _WINDOW_SECONDS:
            self._since, self._first = now, took
            self._least = self._before = 0
            return 0
        # Nearer than 24 days to the first one, in either direction.
        took = (took - self._first + _HALF) % _MODULUS - _HALF
        if now - self._since > _WINDOW_SECONDS:
            self._since, self._before, self._least = now, self._least, took
        elif took < self._least:
            self._least = took
        return took - min(self._least, self._before)


def stamp_of(now: float) -> int:
    """What a frame that is sent at `now` (seconds, on the sender's clock) says of it: never 0."""
    return int(now * 1000) % _MODULUS or 1

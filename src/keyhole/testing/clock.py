"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """See keyhole.clock.Clock."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward."""
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, in either direction."""
        self._now_ms += round(seconds * 1000)

"""Time, as something that is handed in: production code gets SystemClock, tests get keyhole.testing.ManualClock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one to tell people and other machines, one to measure with."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds since some moment. Never goes back."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

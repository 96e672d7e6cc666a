"""What the harness changes in Keyhole's own processes, from outside: their wall clock, and bugs that it must catch.

Environment: FAULT_CLOCK, a file that holds the wall clock's error in seconds; FAULT_PLANT, a bug's name.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from keyhole.clock import SystemClock

_LOOK_SECONDS = 0.05


class JumpingClock(SystemClock):
    """The machine's clocks, but for an error of the wall clock that a file tells, and that may change at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._looked = float("-inf")
        self._error_ms = 0

    def now_ms(self) -> int:
        """See Clock."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            try:
                self._error_ms = int(1000 * float(self._file.read_text() or 0))
            except (OSError, ValueError):
                self._error_ms = 0
        return super().now_ms() + self._error_ms


def clock() -> SystemClock:
    """This process's clock."""
    file = os.environ.get("FAULT_CLOCK")
    return JumpingClock(Path(file)) if file else SystemClock()

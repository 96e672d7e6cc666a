"""What the harness changes in Keyhole's own processes, from outside: their wall clock, and bugs that it must catch; and
what it watches there.

Environment: FAULT_CLOCK, a file that holds the wall clock's error in seconds; FAULT_PLANT, a bug's name; FAULT_GROUPS,
a file for what was seen of the key groups.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

from keyhole.clock import SystemClock
from tests.fault.history import Contradiction
from tests.support.observed_groups import GroupWatch

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


def watch_key_groups() -> GroupWatch | None:
    """Appends what contradicts the states of this process's key groups to FAULT_GROUPS, a line of JSON each."""
    path = os.environ.get("FAULT_GROUPS")
    if path is None:
        return None
    lock = threading.Lock()
    Path(path).touch()  # a server that has watched, and has noted nothing

    def note(text: str) -> None:
        with lock, Path(path).open("ab") as file:
            # On a line of its own, also where one that was killed has left half a line.
            file.write(b"\n" + msgspec.json.encode(Contradiction(time.monotonic(), Path(path).stem, text)) + b"\n")

    watch = GroupWatch(note)
    watch.begin()
    return watch

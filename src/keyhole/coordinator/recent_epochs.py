"""What the last epochs of a query took, for those who look at it."""

from __future__ import annotations

import threading
from collections import deque

import msgspec

from keyhole.model.epoch_times import EpochTimes

RECENT_EPOCHS = 16
"""How many are kept, and sent to the servers with each heartbeat: more than are complete within one."""


class RecentEpochs:
    """The last ones, of all runs of a query in this process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: deque[EpochTimes] = deque(maxlen=RECENT_EPOCHS)

    def note(self, times: EpochTimes) -> None:
        """Keeps an epoch that is complete, in place of the oldest one."""
        with self._lock:
            self._last.append(times)

    def note_batch(self, batch: int, seconds: float) -> None:
        """Spark reports what a batch took as a whole: it is the newest one of this id. Nothing where it is not kept."""
        with self._lock:
            for at in range(len(self._last) - 1, -1, -1):
                if self._last[at].batch == batch:
                    self._last[at] = msgspec.structs.replace(self._last[at], batch_seconds=seconds)
                    return

    @property
    def last(self) -> tuple[EpochTimes, ...]:
        """From the oldest to the newest."""
        with self._lock:
            return tuple(self._last)

"""The lock on all that changes for a query: its membership, its records and its epochs. One thread has it at a time.

An epoch holds it from its beginning to its end, but for the time in which a round's tasks stage their rows, which may
be minutes. For that time it lends the lock: heartbeats may then replace servers, and the epoch sees by the membership's
changes whether they did.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from keyhole.protocol.replacement import Urgency


class StagingRound(NamedTuple):
    """A round whose tasks run.

    Attributes:
        urgency: What was seen of the servers since it began.
        changes: How many changes of the membership had begun before.
    """

    urgency: Urgency
    changes: int


class ChangeLock:
    """See the module's text. Not re-entrant.

    Attributes:
        staging: For what an epoch lends the lock; None: it doesn't. Read with the lock in hand; without it, it is what
            was so a moment ago.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.staging: StagingRound | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Waits for the lock; it is the caller's for the block."""
        with self._lock:
            yield

    @contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """As `held`, without waiting. False: the block runs without the lock."""
        taken = self._lock.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                self._lock.release()

    @contextmanager
    def lent(self, staging: StagingRound) -> Iterator[None]:
        """Within `held`: others may have the lock for the block, after which the caller has it again, however the block
        ended. It waits for a heartbeat that has the lock then."""
        self.staging = staging
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self.staging = None

"""How long to wait before trying again."""

from __future__ import annotations

import math
import random

from keyhole.errors import KeyholeError

JITTER = random.SystemRandom()
"""By which waiters part. The `random` module has a state that programs seed, as a test does, or each of a thousand
tasks: all of them would come back at the same moment."""


class Backoff:
    """Doubles from `first_seconds` to `most_seconds`, each time between half of that and all of it, by chance.

    The jitter keeps many waiters from coming back at the same moment.
    """

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first = first_seconds
        self._most = most_seconds
        self._next = first_seconds

    def next(self) -> float:
        """Seconds to pause before the next attempt: doubled each time up to the most, and by chance down to half."""
        delay = self._next
        self._next = min(self._most, 2 * delay)
        return delay * JITTER.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begins with the shortest pause again. Call it after a success."""
        self._next = self._first


def retry_after_seconds(error: KeyholeError) -> float | None:
    """When to try again, in seconds, as whoever refused has said; None: it has not, and trying again makes it worse."""
    try:
        seconds = float(error.facts["retry_after_seconds"])
    except (KeyError, ValueError):
        return None
    # The fact came over the wire.
    return seconds if 0 <= seconds < math.inf else None

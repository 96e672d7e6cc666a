"""What was refused, for the operator: one line each in the log, and a count. Bounded, whoever knocks how often."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

_log = logging.getLogger("keyhole.audit")

LINES_PER_SECOND = 10
_BURST = 50
_MAX_TEXT = 100


class Audit:
    """Writes to the logger `keyhole.audit`. Used from one thread.

    Attributes:
        refused: How many, by reason: UNAUTHENTICATED, PERMISSION_DENIED.

    Args:
        on_refusal: Is called with the reason of each refusal, for a metric.
    """

    def __init__(
        self,
        on_refusal: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.on_refusal = on_refusal
        self._clock = clock
        self._left = float(_BURST)
        self._at = clock()
        self._unwritten = 0

    def refusal(self, reason: str, **facts: str) -> None:
        """Counts one, and writes it down unless too many came just now; then the next line says how many were not.

        Args:
            facts: Who, from where, what, why. What the caller chose is cut.
        """
        self.refused[reason] += 1
        self.on_refusal(reason)
        now = self._clock()
        self._left = min(float(_BURST), self._left + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._left < 1:
            self._unwritten += 1
            return
        self._left -= 1
        cut = {name: value[:_MAX_TEXT] for name, value in facts.items()}
        _log.warning("request refused", extra={"reason": reason, "unwritten": self._unwritten, **cut})
        self._unwritten = 0

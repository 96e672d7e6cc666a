"""How much may be taken a second: what is not taken is saved up, for one second. Pure: times come in as numbers."""

from __future__ import annotations

import math


class TokenBucket:
    """So many tokens a second. Used by one thread.

    It begins full, with the tokens of one second. Whoever comes when there is one is given all that it wants, and what
    is not there is owed: the next ones wait until that is paid. So a frame of any size comes through, also beside many
    small ones, and in the long run no more than the rate does.
    Source: the token bucket of RFC 2697, with a burst that may go into debt.

    Args:
        rate: Tokens a second, above 0.
        now: In seconds. Where the clock is set back, nothing is saved up, and nobody waits until it is again where it
            was. Where it jumps ahead, a second's tokens are the most that there can be.
    """

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._at = now

    def take(self, count: int, now: float, most_owed: float = math.inf) -> float:
        """Takes so many tokens, if one is there.

        Args:
            most_owed: Of what is owed, the next ones wait for no more than this.

        Returns:
            0: they are taken. Else in how many seconds they can be, if nobody else takes any; nothing was taken.
        """
        self._save(now)
        missing = min(count, 1, self._rate) - self._tokens
        if missing > 0:
            return missing / self._rate
        self._tokens = max(self._tokens - count, -most_owed)
        return 0.0

    def give_back(self, count: int) -> None:
        """What was taken is not needed after all."""
        self._tokens = min(self._rate, self._tokens + count)

    def is_full(self, now: float) -> bool:
        """Whether it is as if nothing had ever been taken."""
        self._save(now)
        return self._tokens >= self._rate

    def _save(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now

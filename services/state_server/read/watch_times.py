"""By when all that was committed was given to one watch: that decides for how long it can go on behind its token."""

from __future__ import annotations

from collections.abc import Iterable

from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS
from keyhole.errors import ResumeGone

_SLACK_MS = 60_000
RESUMABLE_MS = MIN_COMPACTION_LAG_MS - _SLACK_MS
"""For so long after all was given that there was, the changelog is sure to have all that came then."""

REFRESH_MS = 60_000
"""While rows are given, what has changed of those that were is given after so long."""


class GivenTimes:
    """Of each key group; of most the same. Milliseconds since 1970, UTC, by the owners' clocks.

    Attributes:
        all_ms: Of those of which nothing later is known.
    """

    def __init__(self) -> None:
        self.all_ms = 0
        self._later: dict[int, int] = {}

    def of(self, key_group: int) -> int:
        """By when all was given of a key group of which something was."""
        return self._later.get(key_group, self.all_ms)

    def given(self, key_group: int, ms: int) -> None:
        """All of the key group that was committed by then was given."""
        self._later[key_group] = max(ms, self.of(key_group))

    def given_all(self, ms: int) -> None:
        """The same of all of them."""
        self.all_ms = max(ms, self.all_ms)
        if self._later:
            self._later.clear()

    def least(self, begun: Iterable[int]) -> int:
        """By when all was given of all these key groups, of which something was."""
        return min(map(self.of, begun), default=self.all_ms) if self._later else self.all_ms

    def check(self, key_groups: Iterable[int], now_ms: int, state: str) -> None:
        """Passes where all that has come since is in the changelog. Raises ResumeGone."""
        age_ms = now_ms - self.least(key_groups)
        if age_ms > RESUMABLE_MS:
            raise ResumeGone(
                f"a watch of state {state} can't go on from its token, which is {age_ms // 1000:,} s old: what has "
                f"changed since may be compacted after {RESUMABLE_MS // 1000:,} s. Begin without a token",
                age_seconds=age_ms // 1000,
                limit_seconds=RESUMABLE_MS // 1000,
            )

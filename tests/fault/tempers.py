"""What readers ask for beside keys: with and without bounds, of which copy, and as of which epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fault.history import Asked
from tests.fault.workload import BY_CLOCK

LATEST = "latest"
"""The reader of what is staged, too."""

LOOKUP_SECONDS = 2.0
"""How long a request of keys, or of one key's entries, may take."""


@dataclass(frozen=True)
class Temper:
    """What a reader asks for.

    Attributes:
        monotonic: It passes the highest epoch that it has seen.
        earlier: It asks for the one before that, by its number.
        snapshot: It wants all that it asks for as of one epoch.
        latest: It also wants what is staged and not committed. Not of states whose entries expire by the clock: nobody
            knows as of when their rows were merged.
    """

    name: str
    stale: str = "when_needed"
    monotonic: bool = False
    max_staleness_ms: int = 0
    earlier: bool = False
    snapshot: bool = False
    latest: bool = False

    def asked(self, seen: int) -> Asked:
        """What goes with the next request, when this is the highest epoch that it has seen."""
        as_of = max(0, seen - 1) if self.earlier else 0
        return Asked(
            seen if self.monotonic else 0, self.stale, self.max_staleness_ms, as_of, self.snapshot, self.latest
        )

    def of(self, states: Sequence[str]) -> Sequence[str]:
        """Which of these states it asks for."""
        return [state for state in states if not (self.latest and state in BY_CLOCK)]


TEMPERS = (
    Temper("plain"),
    Temper("monotonic", monotonic=True),
    Temper("always", "always"),
    Temper("always-monotonic", "always", monotonic=True),
    Temper("never", "never"),
    Temper("never-monotonic", "never", monotonic=True),
    Temper("bounded", max_staleness_ms=3000),
    Temper("always-bounded", "always", max_staleness_ms=1500),
    Temper("earlier", earlier=True),
    Temper("snapshot", snapshot=True),
    Temper(LATEST, latest=True),
    Temper("latest-monotonic", monotonic=True, latest=True),
)

"""How many reads may fail at each step, by what they fail with: all bounds are here, each with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.e2e.reader import TIMEOUT_SECONDS
from tests.e2e.reads import Gaps

STARTING = "before the first answer"
SINCE = "since the first answer"

EXECUTOR, DRIVER = "executor pod deleted", "driver deleted"
ALONE = ("no replica, stores in emptyDirs", "no replica, stores in claims")

# The client ends a read when no other attempt would fit into its time: 1.8 s of 2 were measured.
_FAILS_AFTER_SECONDS = 0.75 * TIMEOUT_SECONDS


@dataclass(frozen=True)
class Bound:
    """What may fail.

    Attributes:
        reasons: With what; empty: nothing may.
        timeouts: Each waits for the reader's timeout, so that there are no more than fit into the gap.
        why: For who reads a report.
    """

    reasons: frozenset[str]
    timeouts: bool
    why: str

    def most(self, gap_seconds: float) -> float:
        """How many may fail with any of the reasons, by the longest time without an answer."""
        if not self.reasons:
            return 0
        # The first may have begun before the gap's last answer was counted.
        return gap_seconds // _FAILS_AFTER_SECONDS + 1 if self.timeouts else float("inf")


NOTHING = Bound(
    frozenset(),
    timeouts=False,
    why="whoever is taken away, another one holds the same, and the client sends again what was cut off",
)
BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        STARTING: Bound(
            frozenset({"SERVER_LOST", "NO_SERVER", "DEADLINE_EXCEEDED", "UNKNOWN_APPLICATION", "UNKNOWN_STATE"}),
            timeouts=False,
            why="the reader is there before proxies, job and states are",
        ),
        **dict.fromkeys(
            (f"{DRIVER}, {alone}" for alone in ALONE),
            Bound(
                frozenset({"DEADLINE_EXCEEDED"}),
                timeouts=True,
                why="executors and their state servers go with the driver, and nobody else holds the state",
            ),
        ),
    }
)
"""By step. All others have NOTHING."""


def surplus(step: str, gaps: Gaps) -> tuple[str, ...]:
    """What has failed beyond the step's bound, in words; empty: all is as it must be."""
    return tuple(_told(step, gaps, BOUNDS.get(step, NOTHING)))


def _told(step: str, gaps: Gaps, bound: Bound) -> Iterator[str]:
    within: dict[str, int] = {}
    for reason, count in sorted(gaps.errors.items()):
        if reason in bound.reasons:
            within[reason] = count
        else:
            yield f"{step}: {count} reads failed with {reason}, and none may: {bound.why}; {gaps.said.get(reason, '')}"
    most = bound.most(gaps.longest_seconds)
    if (failed := sum(within.values())) > most:
        yield (
            f"{step}: {failed} reads failed ({', '.join(within)}) in a gap of {gaps.longest_seconds} s, and at most "
            f"{most:.0f} may, each after {_FAILS_AFTER_SECONDS} s"
        )

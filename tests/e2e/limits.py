"""What readers may notice at each step: reads that fail, gaps, and time without a new epoch. Pure.

All limits are here, each with its reason. They are of a busy machine of two cores; the report says what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tests.e2e.reader import TIMEOUT_SECONDS
from tests.e2e.reads import Gaps

STARTING = "before the first answer"
SINCE = "since the first answer"

EXECUTOR, DRIVER = "executor pod deleted", "driver deleted"
KILLED, SCALED = "executor pod killed", "executors scaled to"
SERVER, API_SERVER, DRAINED = "state server killed alone", "API server away for two minutes", "node drained"
ALONE = ("no replica, stores in emptyDirs", "no replica, stores in claims")

# The client ends a read when no other attempt would fit into its time: 1.8 s of 2 were measured.
_FAILS_AFTER_SECONDS = 0.75 * TIMEOUT_SECONDS

# What a standby can't serve would be a gap of many seconds: a new pod, a JVM, a restore. Beside it, two busy cores.
_SERVED_SECONDS = 5.0
_FOR_EVER = float("inf")


@dataclass(frozen=True)
class Bound:
    """What readers may notice.

    Attributes:
        reasons: What reads may fail with; empty: none may fail.
        timeouts: Each read that fails waits for the reader's timeout, so that there are no more than fit into the gap.
        why: For who reads a report.
        gap_seconds: The longest time without an answer.
        epoch_seconds: The longest time without an answer of a newer epoch.
    """

    reasons: frozenset[str]
    timeouts: bool
    why: str
    gap_seconds: float = _SERVED_SECONDS
    epoch_seconds: float = 120.0

    def most(self, gap_seconds: float) -> float:
        """How many may fail with any of the reasons, by the longest time without an answer."""
        if not self.reasons:
            return 0
        # The first may have begun before the gap's last answer was counted.
        return gap_seconds // _FAILS_AFTER_SECONDS + 1 if self.timeouts else float("inf")


# A restart has a JVM, executors, their restore and a first batch; one that comes or goes stops the batch under way.
_RESTARTS, _REPLACES = 420.0, 240.0

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
            gap_seconds=_FOR_EVER,
            epoch_seconds=_FOR_EVER,
        ),
        # Each step has its own.
        SINCE: replace(NOTHING, gap_seconds=_FOR_EVER, epoch_seconds=_FOR_EVER),
        **dict.fromkeys((EXECUTOR, KILLED, SERVER, DRAINED), replace(NOTHING, epoch_seconds=_REPLACES)),
        # A batch goes on with what it has: nobody needs the API server but for what comes and goes.
        API_SERVER: replace(NOTHING, epoch_seconds=60.0),
        DRIVER: replace(NOTHING, epoch_seconds=_RESTARTS),
        **{f"{SCALED} {executors}": replace(NOTHING, epoch_seconds=_RESTARTS) for executors in (1, 2, 3)},
        **{f"{EXECUTOR}, {alone}": replace(NOTHING, gap_seconds=_RESTARTS, epoch_seconds=_RESTARTS) for alone in ALONE},
        **dict.fromkeys(
            (f"{DRIVER}, {alone}" for alone in ALONE),
            Bound(
                frozenset({"DEADLINE_EXCEEDED"}),
                timeouts=True,
                why="executors and their state servers go with the driver, and nobody else holds the state",
                gap_seconds=_RESTARTS,
                epoch_seconds=_RESTARTS,
            ),
        ),
    }
)
"""By step. All others have NOTHING."""


def surplus(step: str, gaps: Gaps) -> tuple[str, ...]:
    """What readers noticed beyond the step's bound, in words; empty: all is as it must be."""
    return tuple(_excess(step, gaps, BOUNDS.get(step, NOTHING)))


def _excess(step: str, gaps: Gaps, bound: Bound) -> Iterator[str]:
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
    for what, measured, at_most in (
        ("an answer", gaps.longest_seconds, bound.gap_seconds),
        ("a new epoch", gaps.epoch_seconds, bound.epoch_seconds),
    ):
        if measured > at_most:
            yield f"{step}: {measured} s without {what}, and at most {at_most:.0f} s may pass"

"""How readable the states were: what failed, why, and for how long nobody got an answer. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import msgspec

from keyhole.protocol.failpoints import Step
from tests.fault.history import EpochStep, FailedRead, History, Injected, Read
from tests.fault.mirroring_readers import MIRRORING
from tests.fault.watching_readers import SELECTING, WATCHING
from tests.fault.whole_readers import WHOLE

# A fault's end is not the end of its effects: those last until an epoch is complete again, for which every key group
# has its owner, and then until standbys and proxies have noticed.
_AFTERMATH_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
_BOUNDS = frozenset({"EPOCH_NOT_REACHED", "EPOCH_GONE", "TOO_STALE"})

# Of reads that may be answered by a standby, while one fault leaves a copy of every key group within reach.
LEAST_ANSWERED = 0.9


@dataclass
class Availability:
    """Of some reads. A gap: from the first failed read to the next answer, of one reader.

    Attributes:
        refused: Reads that asked for what no copy had: an epoch that is not committed everywhere yet or is no longer
            kept, or something fresher. Not among those that failed.
        reasons: Failed reads by reason.
    """

    reads: int = 0
    failed: int = 0
    refused: int = 0
    longest_gap_seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def fraction(self) -> float:
        """Of reads that were answered."""
        return 1 - self.failed / self.reads if self.reads else 1.0

    def add(self, other: Availability) -> None:
        self.reads += other.reads
        self.failed += other.failed
        self.refused += other.refused
        self.longest_gap_seconds = max(self.longest_gap_seconds, other.longest_gap_seconds)
        self.reasons += other.reasons

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"fraction": round(self.fraction, 5), "reasons": dict(self.reasons)}


def availability(history: History) -> dict[str, Availability]:
    """By kind of fault: the reads during it, where it was alone.

    "all" has everything, "none" what was without a fault, "harmless" what was during one fault that left a copy of
    every key group within reach.

    Reads that want the owner alone are left out, and watches: they can't go to another copy. So are reads of mirrors,
    which ask nobody, and of whole states, which need all key groups.
    """
    reads = [
        event
        for event in history.events
        if isinstance(event, (Read, FailedRead))
        and event.asked.stale != "never"
        and event.reader not in (WATCHING, SELECTING, WHOLE)
        and not event.reader.startswith(MIRRORING)
    ]
    faults = list(_effects(history))
    found = {"all": _of(reads)}
    by_kind: dict[str, list[Read | FailedRead]] = {}
    for read in reads:
        during = [fault for fault in faults if read.ended >= fault.began and read.began <= fault.ended]
        if len(during) <= 1:
            by_kind.setdefault(during[0].kind if during else "none", []).append(read)
        if len(during) == 1 and during[0].harmless:
            by_kind.setdefault("harmless", []).append(read)
    return found | {kind: _of(its) for kind, its in sorted(by_kind.items())}


def _effects(history: History) -> Iterator[Injected]:
    """The faults, each until its effects had ended."""
    complete = sorted(
        event.at for event in history.events if isinstance(event, EpochStep) and event.step == Step.DRIVER_COMPLETE
    )
    for event in history.events:
        if isinstance(event, Injected):
            after = bisect_right(complete, event.ended)
            ended = complete[after] if after < len(complete) else math.inf
            yield msgspec.structs.replace(event, ended=ended + _AFTERMATH_SECONDS)


def _of(reads: Sequence[Read | FailedRead]) -> Availability:
    reasons = Counter(read.reason for read in reads if isinstance(read, FailedRead))
    refused = sum(reasons[reason] for reason in _BOUNDS)
    readers = {read.reader for read in reads}
    gaps = (_longest_gap(read for read in reads if read.reader == reader) for reader in readers)
    return Availability(len(reads), reasons.total() - refused, refused, max(gaps, default=0.0), reasons)


def _longest_gap(reads: Iterable[Read | FailedRead]) -> float:
    longest, since, until = 0.0, None, 0.0
    for read in sorted(reads, key=lambda read: read.began):
        if since is not None and read.began > until + _PAUSE_SECONDS:
            since = None  # reads of another moment: these are those of one kind of fault
        until = max(until, read.ended)
        if isinstance(read, FailedRead) and read.reason not in _BOUNDS:
            since = read.began if since is None else since
        if since is not None:
            longest = max(longest, read.ended - since)
        if isinstance(read, Read) or read.reason in _BOUNDS:
            since = None
    return longest

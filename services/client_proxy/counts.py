"""What a proxy counts of the reads that go through it. Event loop's thread only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from keyhole.client.wire.segments import Answers
from keyhole.clock import Clock
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram, ReadCounts, Refusals
from keyhole.protocol.server_view import StateName
from keyhole.rpc.frames import AskAgain, Failure, as_error
from services.client_proxy.hot_keys import HotKeys
from services.client_proxy.siblings import CountedReads, RefusedReads


class StateCounts(ReadCounts):
    """The reads of one state.

    Attributes:
        missed: Keys that had to be sent to another copy than the first, or again.
        routed: Keys that were sent at all, and have come to an end.
        hot: Which keys are read most.
        refused_ms: When a read was refused last, by reason: milliseconds since 1970.
    """

    __slots__ = ("hot", "missed", "refused_ms", "routed")

    def __init__(self) -> None:
        super().__init__()
        self.missed = self.routed = 0
        self.refused_ms: dict[str, int] = {}
        self.hot = HotKeys()


_SAMPLES_SECONDS = 0.005
"""Between two samples of hot keys, of all states: together they take less than a hundredth of the time."""


class ProxyCounts:
    """See the module's text. `elsewhere`: of states that no server holds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lookup_seconds = Histogram(BY_NAME["keyhole_client_proxy_lookup_seconds"].buckets)
        self.frame_keys = Histogram(BY_NAME["keyhole_client_proxy_frame_keys"].buckets)
        self.scan_seconds = Histogram(BY_NAME["keyhole_client_proxy_scan_seconds"].buckets)
        self.refusals = Refusals()
        self.states: dict[StateName, StateCounts] = {}
        self.elsewhere = StateCounts()
        self._sample_due = 0.0

    def of(self, name: StateName, known: Mapping[StateName, object]) -> StateCounts:
        """Of one state.

        Args:
            known: The states that there are, or were: names that somebody made up are counted together.
        """
        counts = self.states.get(name)
        if counts is None:
            if name not in known:
                return self.elsewhere
            counts = self.states[name] = StateCounts()
        return counts

    def by_state(self) -> tuple[CountedReads, ...]:
        """Of each state that was read: for the proxy's other processes, and its console."""
        now = self._clock.monotonic()
        return tuple(_counted(name, of, now) for name, of in ((("", ""), self.elsewhere), *self.states.items()))

    def begun(self, counts: StateCounts, storage_keys: Sequence[bytes]) -> float:
        """A frame has come. Returns what `ended` wants to know."""
        keys = len(storage_keys)
        counts.frames += 1
        counts.keys += keys
        self.frame_keys.observe(keys)
        now = self._clock.monotonic()
        if now >= counts.hot.due and now >= self._sample_due:
            self._sample_due = now + _SAMPLES_SECONDS
            counts.hot.sample(now, counts.keys, storage_keys)
        return now

    def ended(self, counts: StateCounts, began: float, answers: Answers, missed: int) -> None:
        """It is answered. `missed`: of how many keys the first copy was not enough."""
        self.lookup_seconds.observe(self._clock.monotonic() - began)
        counts.routed += len(answers.values)
        counts.missed += missed
        if answers.failures:
            self.failed(counts, answers.failures.values())

    def failed(self, counts: StateCounts, failures: Iterable[Failure]) -> None:
        """One per key. That the others' values fill the response is no failure of a key's lookup."""
        reasons = Counter(
            as_error(failure).reason for failure in failures if not (isinstance(failure, AskAgain) and failure.full)
        )
        for reason, keys in reasons.items():
            self.refused(counts, reason, keys)

    def refused(self, counts: StateCounts, reason: str, keys: int) -> None:
        """So many keys, or scans, were refused now."""
        counts.failed[reason] += keys
        counts.refused_ms[reason] = self._clock.now_ms()


def _counted(name: StateName, of: StateCounts, now: float) -> CountedReads:
    refused = tuple(RefusedReads(reason, count, of.refused_ms.get(reason, 0)) for reason, count in of.failed.items())
    # What somebody made up is nobody's key.
    hottest = of.hot.hottest(now) if any(name) else ()
    return CountedReads(*name, of.keys, of.scans, of.entries, sum(of.failed.values()), refused, of.hot.reads, hottest)

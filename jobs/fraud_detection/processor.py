"""Finds a small payment that is followed by a large one, whatever order they come in: Spark's transformWithState."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

MINUTE_MS = 60_000

# The state that readers will find: the small payments of the last minute, each until its timer.
SUSPICIONS, SUSPICIONS_MAP_KEY, SUSPICIONS_VALUE = "suspicions", "time_ms bigint, payment bigint", "cents bigint"

OUTPUT = "account string, time_ms bigint, payment bigint, cents bigint"
"""The processor's own rows: an alert each."""

Stored = tuple[int, int]
"""The time and the number of a payment."""


class FraudDetector(StatefulProcessor):
    """Event time, by account; a payment that was made at or before the watermark is too late, and dropped.

    A small payment may come after the large one that followed it. So both are kept until no payment that makes a pair
    with them can come any more: a small one until the watermark is a minute past it, a large one without a small one
    until the watermark has reached it. What is found then doesn't depend on how payments come in batches.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark calls it once per task."""
        self._handle = handle
        self._small = handle.getMapState(SUSPICIONS, SUSPICIONS_MAP_KEY, SUSPICIONS_VALUE)
        self._large = handle.getMapState("large", SUSPICIONS_MAP_KEY, SUSPICIONS_VALUE)

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """Takes payments of one account: payment, time_ms, cents, and whether it is small or large."""
        in_time = [row for row in rows if row.time_ms > timerValues.getCurrentWatermarkInMs()]
        small = {(row.time_ms, row.payment): row.cents for row in in_time if row.small}
        large = {(row.time_ms, row.payment): row.cents for row in in_time if row.large}
        if not small and not large:
            return iter(())
        self._keep(self._small, small, MINUTE_MS)
        small_times = [time_ms for time_ms, _ in _keys(self._small)]
        waiting: dict[Stored, int] = {
            (time_ms, payment): cents for (time_ms, payment), (cents,) in self._large.iterator()
        }
        found = {at: cents for at, cents in (waiting | large).items() if _follows(at[0], small_times)}
        for at in sorted(found.keys() & waiting.keys()):
            self._large.removeKey(at)
        self._keep(self._large, {at: cents for at, cents in large.items() if at not in found}, 0)
        return iter([_row(key[0], at, cents) for at, cents in sorted(found.items())])

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Forgets the payments that can't be half of a pair any more."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        for state, kept_ms in ((self._small, MINUTE_MS), (self._large, 0)):
            for at in _keys(state):
                if at[0] + kept_ms <= watermark_ms:
                    state.removeKey(at)
        return iter(())

    def _keep(self, state: MapState, payments: dict[Stored, int], kept_ms: int) -> None:
        timers = {time_ms + kept_ms for time_ms, _ in payments}
        for expiry_ms in sorted(timers.difference(self._handle.listTimers()) if timers else ()):
            self._handle.registerTimer(expiry_ms)
        for at, cents in sorted(payments.items()):
            state.updateValue(at, (cents,))


def _keys(state: MapState) -> list[Stored]:
    return [(time_ms, payment) for time_ms, payment in state.keys()]  # noqa: SIM118 - no dictionary


def _follows(time_ms: int, small_times: Iterable[int]) -> bool:
    return any(before < time_ms <= before + MINUTE_MS for before in small_times)


def _row(account: str, at: Stored, cents: int) -> Row:
    time_ms, payment = at
    return Row(account=account, time_ms=time_ms, payment=payment, cents=cents)

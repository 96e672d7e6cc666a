"""Finds the payments that may be a small one and a large one after it, in any order: Spark's transformWithState."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from jobs.fraud_detection.model import Payment
from jobs.fraud_detection.pairs import MINUTE_MS, Small, Stored, candidates
from keyhole.spark.exposed import ExposedMap

# The state that readers find: an account's payments of the last minute, each until its timer.
RECENT = "recent"
_RECENT = ExposedMap(StructType().add("time_ms", "long").add("payment", "long"), StructType().add("cents", "long"))
EXPOSED: Mapping[str, ExposedMap] = {RECENT: _RECENT}

OUTPUT = (
    "account string, payment bigint, time_ms bigint, cents bigint, fee_cents bigint, "
    "merchant string, smalls array<struct<time_ms:bigint,cents:bigint>>"
)
"""The processor's own rows, of two sorts: a payment as it came, late or not, without `smalls`; and one that may be
large, without `merchant`, and with the payments before it that may be small."""

_HANDED_ON = [name for name in Payment._fields if name != "account"]


class PairFinder(StatefulProcessor):
    """Event time, by account; a payment that was made at or before the watermark is too late to be half of a pair.

    A small payment may come after the large one that followed it. So each is kept until no payment that makes a pair
    with it can come any more: until the watermark is a minute past it. Which pairs are found then doesn't depend on how
    payments come in batches.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark calls it once per task."""
        self._handle = handle
        self._recent = handle.getMapState(RECENT, _RECENT.key, _RECENT.value)

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """Takes payments of one account: payment, merchant, time_ms, cents, fee_cents."""
        (account,) = key
        came = list(rows)
        given = [_payment(account, row) for row in came]
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        new: dict[Stored, int] = {}
        for row in came:
            if row.time_ms > watermark_ms:
                at = row.time_ms, row.payment
                new[at] = max(row.cents, new.get(at, 0))  # of a number that came twice, whatever their order
        if new:
            known = {(time_ms, payment): cents for (time_ms, payment), (cents,) in self._recent.iterator()}
            given += [_candidate(account, at, cents, smalls) for at, cents, smalls in _found(known, new)]
            self._keep(new)
        return iter(given)

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Forgets the payments that can't be half of a pair any more."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        kept = [(time_ms, payment) for time_ms, payment in self._recent.keys()]  # noqa: SIM118 - no dictionary
        for at in kept:
            if at[0] + MINUTE_MS <= watermark_ms:
                self._recent.removeKey(at)
        return iter(())

    def _keep(self, payments: Mapping[Stored, int]) -> None:
        timers = {time_ms + MINUTE_MS for time_ms, _ in payments}
        for expiry_ms in sorted(timers.difference(self._handle.listTimers())):
            self._handle.registerTimer(expiry_ms)
        for at, cents in sorted(payments.items()):
            self._recent.updateValue(at, (cents,))


def _found(known: Mapping[Stored, int], new: Mapping[Stored, int]) -> Iterator[tuple[Stored, int, list[Small]]]:
    for at, smalls in candidates(known, new):
        yield at, new[at] if at in new else known[at], smalls


def _payment(account: str, row: Row) -> Row:
    return Row(account=account, **{name: row[name] for name in _HANDED_ON})


def _candidate(account: str, at: Stored, cents: int, smalls: list[Small]) -> Row:
    time_ms, payment = at
    before = [Row(time_ms=small.time_ms, cents=small.cents) for small in smalls]
    return Row(account=account, payment=payment, time_ms=time_ms, cents=cents, smalls=before)

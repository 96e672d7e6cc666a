"""A PairFinder on Spark's own tester, judged by rules that don't change."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from jobs.fraud_detection.model import Alert, Payment, Rule
from jobs.fraud_detection.processor import RECENT, PairFinder
from jobs.fraud_detection.recount import rule_at


class FinderBench:
    """A processor without Spark: batches of payments in, alerts out, and a watermark that is moved by hand."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        # In the job, too, rows pass that are behind the watermark: what is too late the processor decides.
        self._tester = TwsTester(PairFinder(), timeMode="eventTime", eventTimeExtractor=lambda _: sys.maxsize)

    def rows(self, payments: Iterable[Payment]) -> list[Row]:
        """A batch; the processor's own rows."""
        by_account: dict[str, list[Row]] = {}
        for payment in payments:
            by_account.setdefault(payment.account, []).append(Row(**payment._asdict()))
        return [row for account, of in sorted(by_account.items()) for row in self._tester.test(account, of)]

    def take(self, payments: Iterable[Payment]) -> list[Alert]:
        """A batch; the alerts of it, and of what was waiting."""
        candidates = [row for row in self.rows(payments) if "smalls" in row]
        return [
            Alert(row.account, row.payment, row.time_ms, row.cents)
            for row in candidates
            if self._is_large(row) and any(map(self._is_small, row.smalls))
        ]

    def advance(self, watermark_ms: int) -> None:
        """Moves the watermark; timers give no rows."""
        assert self._tester.setWatermark(watermark_ms) == []

    def recent(self, account: str) -> dict[tuple[int, int], int]:
        """What the state `recent` holds: cents, by time and payment."""
        stored = self._tester.peekMapState(RECENT, account)
        return {(time_ms, payment): cents for (time_ms, payment), (cents,) in stored.items()}

    def _is_large(self, payment: Row) -> bool:
        rule = rule_at(self._rules, payment.time_ms)
        return rule is not None and payment.cents >= rule.large_cents

    def _is_small(self, payment: Row) -> bool:
        rule = rule_at(self._rules, payment.time_ms)
        return rule is not None and payment.cents <= rule.small_cents

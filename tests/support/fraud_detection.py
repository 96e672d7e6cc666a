"""A FraudDetector on Spark's own tester, and payments for it that a rule has judged."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from jobs.fraud_detection.model import Alert, Payment, Rule
from jobs.fraud_detection.processor import SUSPICIONS, FraudDetector
from jobs.fraud_detection.reference import rule_at


class DetectorBench:
    """A processor without Spark: batches of payments in, alerts out, and a watermark that is moved by hand."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        # In Spark, too, rows pass that are behind the watermark of their batch: what is too late the processor decides.
        self._tester = TwsTester(FraudDetector(), timeMode="eventTime", eventTimeExtractor=lambda _: sys.maxsize)

    def take(self, payments: Iterable[Payment]) -> list[Alert]:
        """A batch; the alerts of it, and of what was waiting."""
        by_account: dict[str, list[Row]] = {}
        for payment in payments:
            by_account.setdefault(payment.account, []).append(self._judged(payment))
        rows = [row for account, of in sorted(by_account.items()) for row in self._tester.test(account, of)]
        return [Alert(row.account, row.payment, row.time_ms, row.cents) for row in rows]

    def advance(self, watermark_ms: int) -> None:
        """Moves the watermark; timers give no alerts."""
        assert self._tester.setWatermark(watermark_ms) == []

    def suspicions(self, account: str) -> dict[tuple[int, int], int]:
        """What the state `suspicions` holds: cents, by time and payment."""
        stored = self._tester.peekMapState(SUSPICIONS, account)
        return {(time_ms, payment): cents for (time_ms, payment), (cents,) in stored.items()}

    def waiting(self, account: str) -> int:
        """How many large payments wait for a small one that comes late."""
        return len(self._tester.peekMapState("large", account))

    def _judged(self, payment: Payment) -> Row:
        rule = rule_at(self._rules, payment.time_ms)
        return Row(
            payment=payment.payment,
            time_ms=payment.time_ms,
            cents=payment.cents,
            small=rule is not None and payment.cents <= rule.small_cents,
            large=rule is not None and payment.cents >= rule.large_cents,
        )

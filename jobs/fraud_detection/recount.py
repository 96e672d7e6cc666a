"""The job's formulas in plain Python, batch by batch. Imports nothing of the job but its model, nor Spark."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.fraud_detection.model import AMOUNTS, FIELDS, Aggregation, Alert, Payment, Rule, Spent, Total
from jobs.json_records import fields_of

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_DELAY_MS = 10 * _SECOND_MS
_END_OF_TIME_MS = 4_102_444_800_000
_LONGEST_WINDOW_MS = 366 * 86_400_000
_MOST_CENTS = 100_000_000_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_NO_NAMES = ("true", "false", "null")
_BIGINT = 1 << 63

TotalKey = tuple[str, str, int]
"""An aggregation, what it is of, as in the state's key, and the window's start in milliseconds since 1970."""


def payment_of(value: bytes | None) -> Payment | None:
    """The payment in a record, by the job's README; None where it is none."""
    account, merchant, payment, time_ms, cents, fee = _fields(
        value, account=str, merchant=str, payment=int, time=int, cents=int, fee=int
    )
    if not _is_name(account) or not _is_name(merchant):
        return None
    if payment is None or not _within(time_ms, 0, _END_OF_TIME_MS - 1):
        return None
    if not _within(cents, 1, _MOST_CENTS) or not _within(fee or 0, 0, _MOST_CENTS):
        return None
    return Payment(account, payment, merchant, time_ms, cents, fee or 0)


def rule_of(value: bytes | None) -> Rule | None:
    """The rule in a record, likewise."""
    rule, since_ms, small, large = _fields(value, rule=int, since=int, small=int, large=int)
    if rule is None or not _within(since_ms, 0, _BIGINT - 1) or since_ms % _SECOND_MS:
        return None
    if not _within(small, 0, _BIGINT - 1) or not _within(large, small + 1, _BIGINT - 1):
        return None
    return Rule(rule, since_ms, small, large)


def aggregation_of(value: bytes | None) -> Aggregation | None:
    """The aggregation in a record, likewise."""
    name, by, of, window_ms, since_ms, until_ms = _fields(
        value, aggregation=str, by=object, of=str, window=int, since=int, until=int
    )
    by, of = [by] if isinstance(by, str) else by, "cents" if of is None else of
    if not _is_name(name) or type(by) is not list or any(each not in FIELDS or by.count(each) > 1 for each in by):
        return None
    if of not in AMOUNTS or not _within(window_ms, 1, _LONGEST_WINDOW_MS) or not _within(since_ms, 0, _BIGINT - 1):
        return None
    return Aggregation(name, ",".join(by), window_ms, since_ms, until_ms, of)


def rule_at(rules: Iterable[Rule], time_ms: int) -> Rule | None:
    """The rule in force for payments of a moment."""
    return max(
        (rule for rule in rules if rule.since_ms <= time_ms), key=lambda of: (of.since_ms, of.rule), default=None
    )


def spent(history: Iterable[tuple[str, int]], payments: Iterable[Payment]) -> dict[str, Spent]:
    """By account, what it has spent; of the history are known accounts and cents."""
    cents: defaultdict[str, list[int]] = defaultdict(list)
    for account, of_before in history:
        cents[account].append(of_before)
    for payment in payments:
        cents[payment.account].append(payment.cents)
    return {account: Spent(len(of), sum(of)) for account, of in cents.items()}


@dataclass
class Recount:
    """What the states should say after the batches that it was given."""

    alerts: set[Alert] = field(default_factory=set)
    totals: dict[TotalKey, Total] = field(default_factory=dict)
    _newest_ms: int = 0
    _accepted: defaultdict[str, list[Payment]] = field(default_factory=lambda: defaultdict(list))

    @property
    def watermark_ms(self) -> int:
        """Of the next batch: what was made then, or before, is too late in it."""
        return max(0, self._newest_ms - _DELAY_MS)

    def take(self, payments: Sequence[Payment], rules: Sequence[Rule], aggregations: Sequence[Aggregation]) -> None:
        """One batch, in any order, with the rules and the aggregations that it read."""
        accepted = [payment for payment in payments if payment.time_ms > self.watermark_ms]
        for payment in payments:
            self._add(payment, aggregations)
            self._newest_ms = max(self._newest_ms, payment.time_ms)
        for payment in accepted:
            insort(self._accepted[payment.account], payment, key=_time)
        for payment in accepted:
            self._judge(payment, rules)

    def recent(self, account: str, watermark_ms: int) -> dict[tuple[int, int], int]:
        """By time and number, the cents of the account's payments that are still kept at a watermark."""
        return {
            (payment.time_ms, payment.payment): payment.cents
            for payment in self._accepted[account]
            if payment.time_ms + _MINUTE_MS > watermark_ms
        }

    def _add(self, payment: Payment, aggregations: Iterable[Aggregation]) -> None:
        for each in aggregations:
            if payment.time_ms < each.since_ms or (each.until_ms is not None and payment.time_ms >= each.until_ms):
                continue
            fields: dict[str, Any] = dict(zip(FIELDS, payment, strict=True))
            of = ":".join(str(fields[name]) for name in each.by.split(",")) if each.by else "all"
            key, amount = (each.aggregation, of, payment.time_ms - payment.time_ms % each.window_ms), fields[each.of]
            spent, number, highest = self.totals.get(key, Total(0, 0, 0))
            self.totals[key] = Total(spent + amount, number + 1, max(highest, amount))

    def _judge(self, new: Payment, rules: Sequence[Rule]) -> None:
        """All pairs of which it is the one half, whichever."""
        of_account = self._accepted[new.account]
        begin = bisect_left(of_account, new.time_ms - _MINUTE_MS, key=_time)
        end = bisect_left(of_account, new.time_ms + _MINUTE_MS + 1, key=_time)
        for other in of_account[begin:end]:
            for small, large in ((other, new), (new, other)):
                if small.time_ms < large.time_ms and small.cents < large.cents and _is_fraud(small, large, rules):
                    self.alerts.add(Alert(large.account, large.payment, large.time_ms, large.cents))


def _is_fraud(small: Payment, large: Payment, rules: Sequence[Rule]) -> bool:
    before, after = rule_at(rules, small.time_ms), rule_at(rules, large.time_ms)
    if before is None or after is None:
        return False
    return small.cents <= before.small_cents and large.cents >= after.large_cents


def _time(payment: Payment) -> int:
    return payment.time_ms


def _fields(value: bytes | None, **types: type) -> list[Any]:
    """In their order; all None where it is no record."""
    return [*(fields_of(value, types) or dict.fromkeys(types)).values()]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None and value not in _NO_NAMES


def _within(value: object, lowest: int, highest: int) -> bool:
    return type(value) is int and lowest <= value <= highest

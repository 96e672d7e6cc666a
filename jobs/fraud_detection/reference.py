"""The job's formulas in plain Python, over all payments at once. Imports nothing of the job but its model."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jobs.fraud_detection.model import Aggregation, Alert, Payment, Rule, Total

_MINUTE_MS = 60_000
_END_OF_TIME_MS = 4_102_444_800_000
_MOST_CENTS = 100_000_000_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_NO_NAMES = ("true", "false", "null")
_BIGINT = 1 << 63

TotalKey = tuple[str, str, int]
"""An aggregation, the account or merchant, and the window's start in milliseconds since 1970."""


def payment_of(value: bytes | None) -> Payment | None:
    """The payment in a record, by the job's README; None where it is none."""
    try:
        record = json.loads(value or b"")
        found = Payment(*(record[name] for name in ("account", "payment", "merchant", "time", "cents")))
    except (ValueError, TypeError, KeyError):
        return None
    if not all(
        isinstance(name, str) and _NAME.fullmatch(name) and name not in _NO_NAMES
        for name in (found.account, found.merchant)
    ):
        return None
    if not all(type(number) is int for number in (found.payment, found.time_ms, found.cents)):
        return None
    within = 0 <= found.time_ms < _END_OF_TIME_MS and 0 < found.cents <= _MOST_CENTS
    return found if within and -_BIGINT <= found.payment < _BIGINT else None


def rule_at(rules: Iterable[Rule], time_ms: int) -> Rule | None:
    """The rule in force for payments of a moment."""
    return max(
        (rule for rule in rules if rule.since_ms <= time_ms), key=lambda of: (of.since_ms, of.rule), default=None
    )


def alerts(payments: Iterable[Payment], rules: Sequence[Rule]) -> set[Alert]:
    """The large payments with a small one of the same account before them, by a minute at most.

    Each of the two is judged by the rule that was in force when it was made. The order of the payments doesn't matter.
    """
    small_times: defaultdict[str, list[int]] = defaultdict(list)
    large: list[Payment] = []
    for payment in payments:
        rule = rule_at(rules, payment.time_ms)
        if rule is not None and payment.cents <= rule.small_cents:
            small_times[payment.account].append(payment.time_ms)
        if rule is not None and payment.cents >= rule.large_cents:
            large.append(payment)
    return {
        Alert(payment.account, payment.payment, payment.time_ms, payment.cents)
        for payment in large
        if any(before < payment.time_ms <= before + _MINUTE_MS for before in small_times[payment.account])
    }


def totals(payments: Iterable[Payment], aggregations: Sequence[Aggregation]) -> dict[TotalKey, Total]:
    """By aggregation, account or merchant, and window, what was spent; every payment counts, however late it came."""
    found: dict[TotalKey, Total] = {}
    for payment in payments:
        for each in aggregations:
            if payment.time_ms < each.since_ms or (each.until_ms is not None and payment.time_ms >= each.until_ms):
                continue
            of = payment.account if each.by == "account" else payment.merchant
            key = each.aggregation, of, payment.time_ms - payment.time_ms % each.window_ms
            spent, number, highest = found.get(key, Total(0, 0, 0))
            found[key] = Total(spent + payment.cents, number + 1, max(highest, payment.cents))
    return found

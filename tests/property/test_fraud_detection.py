"""The processor finds what the recount finds, however payments come in batches, and forgets what it needn't keep."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.fraud_detection.model import Alert, Payment, Rule
from jobs.fraud_detection.pairs import MINUTE_MS
from jobs.fraud_detection.recount import Recount, rule_at
from tests.support.fraud_detection import FinderBench

BEGIN_MS = 1_795_219_200_000
STEP_MS = 10_000  # so that a minute is met exactly, often
RULES = [Rule(1, BEGIN_MS, 2, 8), Rule(2, BEGIN_MS + 9 * STEP_MS, 4, 6)]

MADE = st.tuples(st.sampled_from(["a", "b"]), st.integers(-2, 25), st.integers(1, 9))
BATCHES = st.lists(st.tuples(st.lists(MADE, max_size=6), st.integers(-4, 30)), max_size=10)


def alerts(payments: list[Payment]) -> set[Alert]:
    """By the definition, all pairs looked at."""
    found = set()
    for small in payments:
        for large in payments:
            before, after = rule_at(RULES, small.time_ms), rule_at(RULES, large.time_ms)
            if before is None or after is None or small.account != large.account:
                continue
            fits = small.cents <= before.small_cents and large.cents >= after.large_cents
            if fits and small.cents < large.cents and small.time_ms < large.time_ms <= small.time_ms + MINUTE_MS:
                found.add(Alert(large.account, large.payment, large.time_ms, large.cents))
    return found


@settings(deadline=None)
@given(BATCHES)
def test_the_alerts_are_those_of_the_payments_that_were_not_too_late(
    batches: list[tuple[list[tuple[str, int, int]], int]],
) -> None:
    bench, accepted, found = FinderBench(RULES), list[Payment](), set[Alert]()
    watermark_ms, number = 0, 0
    for made, step in batches:
        payments = []
        for account, at, cents in made:
            number += 1
            payments.append(Payment(account, number, "m", BEGIN_MS + at * STEP_MS, cents))
        found.update(bench.take(payments))
        accepted += [payment for payment in payments if payment.time_ms > watermark_ms]
        assert found == alerts(accepted)
        if BEGIN_MS + step * STEP_MS > watermark_ms:
            watermark_ms = BEGIN_MS + step * STEP_MS
            bench.advance(watermark_ms)
        for account in ("a", "b"):
            kept = {
                (payment.time_ms, payment.payment)
                for payment in accepted
                if payment.account == account and payment.time_ms + MINUTE_MS > watermark_ms
            }
            assert bench.recent(account).keys() == kept
    bench.advance(BEGIN_MS + 1_000 * STEP_MS)
    assert bench.recent("a") == bench.recent("b") == {}


@settings(deadline=None)
@given(st.lists(st.lists(MADE, max_size=6), max_size=6), st.integers(0, 2**32))
def test_the_recount_agrees_with_the_processor_whose_watermark_is_spark_s(
    batches: list[list[tuple[str, int, int]]], seed: int
) -> None:
    bench, recount, found = FinderBench(RULES), Recount(), set[Alert]()
    watermark_ms, number = 0, 0
    for made in batches:
        numbered = enumerate(made, start=number)
        number += len(made)
        payments = [Payment(account, n, "m", BEGIN_MS + at * STEP_MS, cents) for n, (account, at, cents) in numbered]
        if recount.watermark_ms > watermark_ms:
            watermark_ms = recount.watermark_ms
            bench.advance(watermark_ms)
        for account in ("a", "b"):
            assert bench.recent(account) == recount.recent(account, recount.watermark_ms)
        found.update(bench.take(payments))
        recount.take(random.Random(seed).sample(payments, len(payments)), RULES, [])
        assert found == recount.alerts

"""The processor finds what the reference finds, however payments come in batches, and forgets what it needn't keep."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.fraud_detection.model import Payment, Rule
from jobs.fraud_detection.processor import MINUTE_MS
from jobs.fraud_detection.reference import alerts
from tests.support.fraud_detection import DetectorBench

BEGIN_MS = 1_795_219_200_000
STEP_MS = 10_000  # so that a minute is met exactly, often
RULES = [Rule(1, BEGIN_MS, 2, 8), Rule(2, BEGIN_MS + 9 * STEP_MS, 4, 6)]

MADE = st.tuples(st.sampled_from(["a", "b"]), st.integers(-2, 25), st.integers(1, 9))
BATCHES = st.lists(st.tuples(st.lists(MADE, max_size=6), st.integers(-4, 30)), max_size=10)


@settings(deadline=None)
@given(BATCHES)
def test_the_alerts_are_those_of_the_payments_that_were_not_too_late(
    batches: list[tuple[list[tuple[str, int, int]], int]],
) -> None:
    bench, accepted, found = DetectorBench(RULES), list[Payment](), []
    watermark_ms, number = 0, 0
    for made, step in batches:
        payments = []
        for account, at, cents in made:
            number += 1
            payments.append(Payment(account, number, "m", BEGIN_MS + at * STEP_MS, cents))
        found += bench.take(payments)
        accepted += [payment for payment in payments if payment.time_ms > watermark_ms]
        assert set(found) == alerts(accepted, RULES)
        assert len(set(found)) == len(found)
        if BEGIN_MS + step * STEP_MS > watermark_ms:
            watermark_ms = BEGIN_MS + step * STEP_MS
            bench.advance(watermark_ms)
    for account in ("a", "b"):
        assert all(time_ms > watermark_ms - MINUTE_MS for time_ms, _ in bench.suspicions(account))
    bench.advance(BEGIN_MS + 1_000 * STEP_MS)
    assert [(bench.suspicions(account), bench.waiting(account)) for account in ("a", "b")] == [({}, 0)] * 2


@given(st.lists(MADE, max_size=20), st.integers(0, 2**32))
def test_the_reference_does_not_mind_the_order(made: list[tuple[str, int, int]], seed: int) -> None:
    payments = [Payment(account, n, "m", BEGIN_MS + at * STEP_MS, cents) for n, (account, at, cents) in enumerate(made)]
    shuffled = random.Random(seed).sample(payments, len(payments))
    assert alerts(shuffled, RULES) == alerts(payments, RULES)

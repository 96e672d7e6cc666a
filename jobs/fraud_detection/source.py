"""Made-up payments, the same for the same seed: most are honest, some look nearly like fraud, and some are."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from jobs.fraud_detection.model import Aggregation, Payment, Rule

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

# Within the job's delay of 10 seconds with room to spare: nothing that is sent is too late.
LATEST_MS = 5 * SECOND_MS


@dataclass(frozen=True)
class Shape:
    """What the payments are like.

    Attributes:
        per_second: Honest ones, of all accounts, on average.
        frauds: How many of these are a small payment that a large one follows within a minute.
        decoys: Likewise, but the large one comes after more than a minute, or before the small one.
        late: Which part of all comes late, by up to LATEST_MS.
    """

    accounts: int = 500
    merchants: int = 40
    per_second: float = 20.0
    frauds: float = 0.01
    decoys: float = 0.02
    late: float = 0.2


def rules(begin_ms: int) -> list[Rule]:
    """Two rules: the second one is stricter, from the tenth minute on."""
    return [Rule(1, begin_ms, 100, 50_000), Rule(2, begin_ms + 10 * MINUTE_MS, 200, 30_000)]


def aggregations(begin_ms: int) -> list[Aggregation]:
    """Spent per account and hour; and from the tenth to the twentieth minute, per merchant and minute, too."""
    return [
        Aggregation("spent-per-hour", "account", HOUR_MS, begin_ms, None),
        Aggregation("merchant-minutes", "merchant", MINUTE_MS, begin_ms + 10 * MINUTE_MS, begin_ms + 20 * MINUTE_MS),
    ]


def payments(seed: int, begin_ms: int, shape: Shape) -> Iterator[Payment]:
    """Payments in the order in which they are sent, without end."""
    draw = random.Random(seed)  # noqa: S311 - made-up payments, no secrets
    numbers = itertools.count(1)
    waiting: list[tuple[int, Payment]] = []
    now_ms = float(begin_ms)
    while True:
        now_ms += draw.expovariate(shape.per_second) * SECOND_MS
        account = f"account-{draw.randrange(shape.accounts)}"
        for offset_ms, cents in _episode(draw, shape):
            merchant = f"merchant-{draw.randrange(shape.merchants)}"
            payment = Payment(account, next(numbers), merchant, int(now_ms) + offset_ms, cents)
            late_ms = draw.randint(1, LATEST_MS) if draw.random() < shape.late else 0
            heapq.heappush(waiting, (payment.time_ms + late_ms, payment))
        while waiting and waiting[0][0] <= now_ms:
            yield heapq.heappop(waiting)[1]


def _episode(draw: random.Random, shape: Shape) -> list[tuple[int, int]]:
    """When, in milliseconds from now, and how many cents."""
    small, large = draw.randint(1, 250), draw.randint(25_000, 150_000)
    chance = draw.random()
    if chance < shape.frauds:
        return [(0, small), (draw.randint(1, MINUTE_MS), large)]
    if chance < shape.frauds + shape.decoys / 2:
        return [(0, small), (draw.randint(MINUTE_MS + 1, 3 * MINUTE_MS), large)]
    if chance < shape.frauds + shape.decoys:
        return [(0, large), (draw.randint(0, MINUTE_MS), small)]
    return [(0, max(1, round(draw.lognormvariate(math.log(2_500), 1.0))))]


def payment_record(payment: Payment) -> bytes:
    """The payment as the job takes it from Kafka."""
    account, number, merchant, time_ms, cents = payment
    fields = {"account": account, "payment": number, "merchant": merchant, "time": time_ms, "cents": cents}
    return json.dumps(fields).encode()


def rule_record(rule: Rule) -> bytes:
    """The rule as the job takes it from Kafka."""
    number, since_ms, small_cents, large_cents = rule
    return json.dumps({"rule": number, "since": since_ms, "small": small_cents, "large": large_cents}).encode()


def aggregation_record(aggregation: Aggregation) -> bytes:
    """The aggregation as the job takes it from Kafka."""
    name, by, window_ms, since_ms, until_ms = aggregation
    fields = {"aggregation": name, "by": by, "window": window_ms, "since": since_ms, "until": until_ms}
    return json.dumps(fields).encode()

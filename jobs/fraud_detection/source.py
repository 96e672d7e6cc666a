"""Made-up payments, the same for the same seed: most are honest, some look nearly like fraud, and some are.

`python -m jobs.fraud_detection.source` sends them to a topic, and to two more the rules and the aggregations, which
change all the time; settings: KEYHOLE_PAYMENTS_*.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from jobs.fraud_detection.config import PaymentsConfig
from jobs.fraud_detection.description import JOB
from jobs.fraud_detection.model import FIELDS, Aggregation, Payment, Rule
from keyhole.local.job_sources import Sender, due, run_source

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

# Within the job's delay of 10 seconds with room to spare, or far behind: too late for pairs, never for totals.
LATEST_MS = 5 * SECOND_MS
TOO_LATE_MS = (2 * MINUTE_MS, 20 * MINUTE_MS)

# 2026-11-21: the payments begin then in every run, and their time goes faster than the clock.
BEGIN_MS = 1_795_219_200_000
# Another rule, and another time for the aggregation that comes and goes; published so long before it begins.
CHANGE_MS = 10 * MINUTE_MS
AHEAD_MS = 5 * MINUTE_MS
# There are so many rules at once; the next one takes the place of the oldest.
RULES = 4

# Which payments are too late goes by the topic's order: there is one, in one partition.
PARTITIONS = 1
# Of what is paid, the merchant pays so small a part.
FEE = 50
_SEED = 20_151_019


@dataclass(frozen=True)
class Shape:
    """What the payments are like.

    Attributes:
        per_second: Honest ones, of all accounts, on average.
        frauds: How many of these are a small payment that a large one follows within a minute.
        decoys: Likewise, but the large one comes after more than a minute, or before the small one.
        late: Which part of all comes late, by up to LATEST_MS.
        too_late: Likewise, but by TOO_LATE_MS.
    """

    accounts: int = 500
    merchants: int = 40
    per_second: float = 20.0
    frauds: float = 0.01
    decoys: float = 0.02
    late: float = 0.2
    too_late: float = 0.0


def rules(begin_ms: int) -> Iterator[Rule]:
    """One from the beginning on, then another one every CHANGE_MS, without end: in turn strict and lax."""
    for turn in itertools.count():
        small, large = (200, 30_000) if turn % 2 else (100, 50_000)
        yield Rule(turn % RULES + 1, begin_ms + turn * CHANGE_MS, small, large)


def aggregations(begin_ms: int) -> Iterator[Aggregation]:
    """Spent per account and hour, fees per account and merchant for a while, and all that is spent per minute; and, in
    every second CHANGE_MS, what is spent per merchant and minute. Without end."""
    yield Aggregation("spent-per-hour", "account", HOUR_MS, begin_ms, None)
    yield Aggregation("fees-of-pairs", "account,merchant", HOUR_MS, begin_ms, begin_ms + CHANGE_MS, "fee")
    yield Aggregation("spent-per-minute", "", MINUTE_MS, begin_ms, None)
    for turn in itertools.count(1, 2):
        since_ms = begin_ms + turn * CHANGE_MS
        yield Aggregation("merchant-minutes", "merchant", MINUTE_MS, since_ms, since_ms + CHANGE_MS)


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
            payment = Payment(account, next(numbers), merchant, int(now_ms) + offset_ms, cents, cents // FEE)
            heapq.heappush(waiting, (payment.time_ms + _late_ms(draw, shape), payment))
        while waiting and waiting[0][0] <= now_ms:
            yield heapq.heappop(waiting)[1]


def _late_ms(draw: random.Random, shape: Shape) -> int:
    chance = draw.random()
    if chance < shape.late:
        return draw.randint(1, LATEST_MS)
    return draw.randint(*TOO_LATE_MS) if chance < shape.late + shape.too_late else 0


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
    return json.dumps(dict(zip(FIELDS, payment, strict=True))).encode()


def rule_record(rule: Rule) -> bytes:
    """The rule as the job takes it from Kafka."""
    number, since_ms, small_cents, large_cents = rule
    return json.dumps({"rule": number, "since": since_ms, "small": small_cents, "large": large_cents}).encode()


def aggregation_record(aggregation: Aggregation) -> bytes:
    """The aggregation as the job takes it from Kafka."""
    name, by, window_ms, since_ms, until_ms, of = aggregation
    fields = {"aggregation": name, "by": by if by in FIELDS else [each for each in by.split(",") if each], "of": of}
    return json.dumps(fields | {"window": window_ms, "since": since_ms, "until": until_ms}).encode()


def malformed(record: bytes) -> bytes:
    """The record as it comes out of a broken pipe."""
    return record[:-2]


def feed(config: PaymentsConfig, sender: Sender, stopped: threading.Event) -> None:
    """Sends until it is stopped; a rule or an aggregation comes AHEAD_MS before it begins. Raises KeyholeError."""
    to_rules = Sender(config.bootstrap_servers, config.rules_topic)
    to_aggregations = Sender(config.bootstrap_servers, config.aggregations_topic)
    draw = random.Random(_SEED)  # noqa: S311 - made-up faults, no secrets
    per_second = config.rate / config.speed
    shape = Shape(accounts=config.accounts, per_second=per_second, frauds=config.frauds, too_late=0.005)
    coming = payments(_SEED, BEGIN_MS, shape)
    changes = heapq.merge(
        ((rule.since_ms, to_rules, rule_record(rule)) for rule in rules(BEGIN_MS)),
        ((each.since_ms, to_aggregations, aggregation_record(each)) for each in aggregations(BEGIN_MS)),
        key=lambda change: change[0],
    )
    for to in (to_rules, to_aggregations):
        to.send(b"{}")  # which is neither
    since_ms, to, record = next(changes)
    now_ms = BEGIN_MS
    for more in due(config.rate, stopped):
        while since_ms - AHEAD_MS <= now_ms:
            to.send(record)
            since_ms, to, record = next(changes)
        for payment in itertools.islice(coming, more):
            now_ms = max(now_ms, payment.time_ms)
            sent = payment_record(payment)
            sender.send(malformed(sent) if draw.random() < config.malformed else sent)
        for each in (sender, to_rules, to_aggregations):
            each.poll()
    to_rules.flush()
    to_aggregations.flush()


def topics(config: PaymentsConfig) -> dict[str, int]:
    """What it sends to, and how many partitions each has."""
    return {config.topic: PARTITIONS, config.rules_topic: 1, config.aggregations_topic: 1}


if __name__ == "__main__":
    sys.exit(run_source("payments", PaymentsConfig, feed, topics, JOB.kinds))

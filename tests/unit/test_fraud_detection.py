"""The source's payments, the reference's formulas on known payments, and the processor on Spark's own tester."""

from __future__ import annotations

import itertools
import json

import pytest

from jobs.fraud_detection import pipeline, source
from jobs.fraud_detection.model import Aggregation, Alert, Payment, Rule, Total
from jobs.fraud_detection.processor import MINUTE_MS
from jobs.fraud_detection.reference import alerts, payment_of, rule_at, totals
from jobs.fraud_detection.source import HOUR_MS, LATEST_MS, Shape
from tests.support.fraud_detection import DetectorBench

BEGIN_MS = 1_795_219_200_000  # 2026-11-21, on the hour
RULE = Rule(1, 0, 100, 50_000)
SMALL, LARGE, BETWEEN = 100, 50_000, 101
NUMBERS = itertools.count(1)


def at(second: float, cents: int, account: str = "a", merchant: str = "m") -> Payment:
    return Payment(account, next(NUMBERS), merchant, BEGIN_MS + round(second * 1000), cents)


def alert(payment: Payment) -> Alert:
    return Alert(payment.account, payment.payment, payment.time_ms, payment.cents)


def record(**fields: object) -> bytes:
    payment = {"account": "a", "payment": 1, "merchant": "m", "time": BEGIN_MS, "cents": 1}
    return json.dumps(payment | fields).encode()


def sent(count: int, seed: int = 1) -> list[Payment]:
    return list(itertools.islice(source.payments(seed, BEGIN_MS, Shape(accounts=100)), count))


# The source


def test_the_same_seed_gives_the_same_payments_and_another_seed_others() -> None:
    assert sent(500) == sent(500)
    assert sent(500) != sent(500, seed=2)


def test_payments_come_late_but_never_too_late_and_none_twice() -> None:
    payments = sent(20_000)
    newest = itertools.accumulate((payment.time_ms for payment in payments), max)
    behind = [now - payment.time_ms for now, payment in zip(newest, payments, strict=True)]
    assert sum(ms > 0 for ms in behind) / len(payments) > 0.1
    assert LATEST_MS / 2 < max(behind) <= LATEST_MS
    assert len({payment.payment for payment in payments}) == len(payments)


def test_some_payments_are_fraud_and_more_look_like_it_under_both_rules() -> None:
    payments, rules = sent(30_000), source.rules(BEGIN_MS)
    found = alerts(payments, rules)
    change_ms = rules[1].since_ms
    assert {alert.time_ms < change_ms for alert in found} == {True, False}
    assert found != alerts(payments, rules[:1])
    large = sum(
        rule is not None and p.cents >= rule.large_cents for p in payments for rule in [rule_at(rules, p.time_ms)]
    )
    assert 20 < len(found) < large / 2


def test_what_the_source_sends_is_a_payment() -> None:
    payment = at(0, 7)
    assert payment_of(source.payment_record(payment)) == payment


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        record(account=None),
        record(account=1),
        record(account="false"),
        record(account="a b"),
        record(merchant=""),
        record(merchant="m\n"),
        record(payment=None),
        record(payment="1"),
        record(payment=1 << 63),
        record(time=-1),
        record(time=4_102_444_800_000),
        record(cents=0),
        record(cents=1.5),
        record(cents=True),
        record(cents=100_000_000_001),
    ],
)
def test_what_is_no_payment_is_none(value: bytes | None) -> None:
    assert payment_of(value) is None


# The reference


@pytest.mark.parametrize("seconds", [0.001, 30, 60])
def test_a_large_payment_within_a_minute_of_a_small_one_is_an_alert(seconds: float) -> None:
    small, large = at(0, SMALL), at(seconds, LARGE)
    assert alerts([large, small], [RULE]) == {alert(large)}


@pytest.mark.parametrize(
    "second",
    [at(0, LARGE), at(60.001, LARGE), at(-1, LARGE), at(30, LARGE - 1), at(30, LARGE, account="b")],
    ids=["at once", "after a minute", "before", "not large", "of another account"],
)
def test_nothing_else_is(second: Payment) -> None:
    assert alerts([at(0, SMALL), at(1, BETWEEN), second], [RULE]) == set()


def test_payments_in_between_and_several_small_ones_change_nothing() -> None:
    large = [at(30, LARGE), at(31, LARGE)]
    assert alerts([at(0, SMALL), at(5, SMALL), at(10, BETWEEN), *large], [RULE]) == {alert(one) for one in large}


def test_each_payment_is_judged_by_the_rule_of_its_time() -> None:
    change = Rule(2, BEGIN_MS + 20_000, 10, 1_000)
    small, large = at(0, SMALL), at(30, 1_000)
    assert alerts([small, large], [RULE, change]) == {alert(large)}
    assert alerts([at(20, SMALL), large], [RULE, change]) == set()
    assert alerts([small, large], [change]) == set()  # nothing was small before the first rule
    assert rule_at([RULE, change, Rule(1, BEGIN_MS + 20_000, 0, 1)], BEGIN_MS + 20_000) == change


def test_totals_are_by_what_the_aggregation_says_while_it_is_there() -> None:
    by_account = Aggregation("h", "account", HOUR_MS, BEGIN_MS, None)
    by_merchant = Aggregation("m", "merchant", MINUTE_MS, BEGIN_MS + 10_000, BEGIN_MS + 20_000)
    payments = [at(-1, 1), at(0, 2), at(10, 3), at(19.999, 4, account="b"), at(20, 5), at(3_600, 6)]
    assert totals(payments, [by_account, by_merchant]) == {
        ("h", "a", BEGIN_MS): Total(10, 3, 5),
        ("h", "b", BEGIN_MS): Total(4, 1, 4),
        ("h", "a", BEGIN_MS + HOUR_MS): Total(6, 1, 6),
        ("m", "m", BEGIN_MS): Total(7, 2, 4),
    }


# The processor; tests/property compares it with the reference


def test_a_small_payment_is_a_suspicion_until_its_timer() -> None:
    bench, small = DetectorBench([RULE]), at(0, SMALL)
    assert bench.take([small, at(1, BETWEEN)]) == []
    assert bench.suspicions("a") == {(small.time_ms, small.payment): SMALL}
    bench.advance(small.time_ms + MINUTE_MS - 1)
    assert bench.suspicions("a") == {(small.time_ms, small.payment): SMALL}
    bench.advance(small.time_ms + MINUTE_MS)
    assert bench.suspicions("a") == {}


def test_the_large_one_may_come_first_and_is_told_when_the_small_one_comes() -> None:
    bench, small, large = DetectorBench([RULE]), at(0, SMALL), at(30, LARGE)
    assert bench.take([large]) == []
    assert bench.waiting("a") == 1
    assert bench.take([small]) == [alert(large)]
    assert bench.waiting("a") == 0


def test_a_large_payment_waits_until_no_small_one_before_it_can_come() -> None:
    bench, large = DetectorBench([RULE]), at(0, LARGE)
    bench.take([large])
    bench.advance(large.time_ms - 1)
    assert bench.waiting("a") == 1
    bench.advance(large.time_ms)
    assert bench.waiting("a") == 0


def test_the_timer_of_one_payment_forgets_no_other() -> None:
    bench, first, second = DetectorBench([RULE]), at(0, SMALL), at(5, SMALL)
    early, late = at(60, LARGE), at(70, LARGE, account="b")
    bench.take([first, second, at(60, LARGE, account="b"), late])
    bench.advance(early.time_ms)
    assert list(bench.suspicions("a")) == [(second.time_ms, second.payment)]
    assert bench.waiting("b") == 1
    after = at(64, LARGE)
    assert bench.take([after, at(61, SMALL, account="b")]) == [alert(after), alert(late)]


def test_a_large_one_that_is_sent_again_is_the_same_alert() -> None:
    bench, small, large = DetectorBench([RULE]), at(0, SMALL), at(30, LARGE)
    bench.take([large])
    assert bench.take([small, large]) == [alert(large)]
    assert bench.waiting("a") == 0
    assert bench.take([large]) == [alert(large)]


def test_what_is_too_late_is_half_of_no_pair() -> None:
    bench = DetectorBench([RULE])
    bench.take([at(30, LARGE)])
    bench.advance(BEGIN_MS + 10_000)
    assert bench.take([at(10, SMALL), at(0, SMALL)]) == []
    assert bench.take([at(10.001, SMALL)]) != []


def test_the_job_says_what_its_states_hold() -> None:
    assert pipeline.KEY_GROUPS % pipeline.SHUFFLE_PARTITIONS == 0
    assert tuple(pipeline.TOTALS_REDUCERS) == Total._fields
    columns = [column.split()[0] for column in pipeline.OUTPUT.split(", ")]
    assert columns == [pipeline.ALERTS_KEY, *pipeline.ALERTS_MAP_KEY, "cents"]
    assert sorted(columns) == sorted(Alert._fields)

"""The source's payments, the recount's formulas on known payments, and the processor on Spark's own tester."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.fraud_detection import pipeline, source
from jobs.fraud_detection.model import Aggregation, Alert, Payment, Rule, Spent, Total
from jobs.fraud_detection.pairs import MINUTE_MS, candidates
from jobs.fraud_detection.recount import Recount, aggregation_of, payment_of, rule_at, rule_of, spent
from jobs.fraud_detection.source import HOUR_MS, LATEST_MS, TOO_LATE_MS, Shape
from jobs.fraud_detection.verify import Table, counted, history_in
from keyhole.demo.batch_logs import BatchLogs
from keyhole.encoding.columnar import ipc_stream
from keyhole.spark.driver.checkpoint_files import LocalFiles
from keyhole.spark.driver.pins import BatchPins
from tests.support.fraud_detection import FinderBench
from tests.support.odd_records import NO_OBJECTS

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


def alerts(payments: Iterable[Payment], rules: Sequence[Rule]) -> set[Alert]:
    """Of payments that came together."""
    recount = Recount()
    recount.take(list(payments), rules, [])
    return recount.alerts


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
    payments, rules = sent(30_000), list(itertools.islice(source.rules(BEGIN_MS), 2))
    found = alerts(payments, rules)
    change_ms = rules[1].since_ms
    assert {alert.time_ms < change_ms for alert in found} == {True, False}
    assert found != alerts(payments, rules[:1])
    large = sum(
        rule is not None and p.cents >= rule.large_cents for p in payments for rule in [rule_at(rules, p.time_ms)]
    )
    assert 20 < len(found) < large / 2


def test_what_the_source_sends_is_a_payment() -> None:
    for payment in (at(0, 7), at(0, 7)._replace(fee_cents=3)):
        assert payment_of(source.payment_record(payment)) == payment
    assert payment_of(record()) == Payment("a", 1, "m", BEGIN_MS, 1, 0)


@pytest.mark.parametrize(
    "value",
    [
        *NO_OBJECTS,
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
        record(fee=-1),
        record(fee=1.5),
    ],
)
def test_what_is_no_payment_is_none(value: bytes | None) -> None:
    assert payment_of(value) is None


# The recount


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
    recount = Recount()
    for batch in (payments[:3], payments[3:]):
        recount.take(batch, [], [by_account, by_merchant])
    assert recount.totals == {
        ("h", "a", BEGIN_MS): Total(10, 3, 5),
        ("h", "b", BEGIN_MS): Total(4, 1, 4),
        ("h", "a", BEGIN_MS + HOUR_MS): Total(6, 1, 6),
        ("m", "m", BEGIN_MS): Total(7, 2, 4),
    }


def test_totals_are_of_any_fields_together_or_of_all_and_add_up_what_the_aggregation_says() -> None:
    payments = [
        Payment(account, number, "m", BEGIN_MS, 10 * number, number) for number, account in enumerate("aab", start=1)
    ]
    recount = Recount()
    pairs, everything = Aggregation("p", "merchant,account", HOUR_MS, 0, None, "fee"), Aggregation("e", "", 1, 0, None)
    recount.take(payments, [], [pairs, everything, Aggregation("n", "cents", HOUR_MS, 0, None)])
    assert recount.totals == {
        ("p", "m:a", BEGIN_MS): Total(3, 2, 2),
        ("p", "m:b", BEGIN_MS): Total(3, 1, 3),
        ("e", "all", BEGIN_MS): Total(60, 3, 30),
        **{("n", str(cents), BEGIN_MS): Total(cents, 1, cents) for cents in (10, 20, 30)},
    }


def test_what_was_spent_before_counts_too() -> None:
    payments = [at(0, 1), at(1, 2), at(2, 3, account="b")]
    assert spent([("a", 10), ("c", 20), ("c", 5)], payments) == {"a": Spent(3, 13), "b": Spent(1, 3), "c": Spent(2, 25)}


def test_a_history_is_all_files_of_its_folder_or_nothing(tmp_path: Path) -> None:
    assert history_in(None) == []
    for name, cents in (("one", 1), ("two", 2)):
        pq.write_table(pa.table({"account": ["a"], "cents": [cents], "more": [0]}), tmp_path / f"{name}.parquet")
    assert sorted(history_in(tmp_path)) == [("a", 1), ("a", 2)]


def test_a_pair_is_judged_once_by_the_rules_that_its_batch_reads() -> None:
    small, large, strict = at(0, SMALL), at(30, 1_000), Rule(2, BEGIN_MS + 20_000, 10, 1_000)
    before, after = Recount(), Recount()
    for recount, first, second in ((before, [RULE, strict], [RULE]), (after, [RULE], [RULE, strict])):
        recount.take([small], first, [])
        recount.take([large], second, [])
        recount.take([at(31, BETWEEN)], [RULE, strict], [])
    assert (before.alerts, after.alerts) == (set(), {alert(large)})


def test_what_is_too_late_by_the_batch_before_is_in_no_pair_but_in_the_totals() -> None:
    recount, hour = Recount(), Aggregation("h", "account", HOUR_MS, BEGIN_MS, None)
    recount.take([at(30, LARGE)], [RULE], [hour])
    assert recount.watermark_ms == BEGIN_MS + 20_000
    recount.take([at(20, SMALL)], [RULE], [hour])
    assert recount.alerts == set()
    assert recount.totals == {("h", "a", BEGIN_MS): Total(SMALL + LARGE, 2, LARGE)}
    assert set(recount.recent("a", recount.watermark_ms).values()) == {LARGE}
    recount.take([at(20.001, SMALL)], [RULE], [hour])
    assert len(recount.alerts) == 1


def test_too_late_payments_are_far_behind() -> None:
    payments = list(itertools.islice(source.payments(1, BEGIN_MS, Shape(per_second=1, late=0.0, too_late=0.1)), 5_000))
    newest = itertools.accumulate((payment.time_ms for payment in payments), max)
    behind = [now - payment.time_ms for now, payment in zip(newest, payments, strict=True)]
    late = [ms for ms in behind if ms > LATEST_MS]
    assert len(late) > 100
    assert min(late) >= TOO_LATE_MS[0]


def test_rules_and_aggregations_follow_each_other_and_are_never_many() -> None:
    rules = list(itertools.islice(source.rules(BEGIN_MS), 100))
    assert [rule.since_ms for rule in rules] == [BEGIN_MS + turn * source.CHANGE_MS for turn in range(100)]
    assert all(one.small_cents != other.small_cents for one, other in itertools.pairwise(rules))
    assert len({rule.rule for rule in rules}) == source.RULES
    assert [rule_of(source.rule_record(rule)) for rule in rules] == rules
    aggregations = list(itertools.islice(source.aggregations(BEGIN_MS), 10))
    assert len({each.aggregation for each in aggregations}) == 4
    assert {"account", "merchant", "account,merchant", ""} == {each.by for each in aggregations}
    assert [aggregation_of(source.aggregation_record(each)) for each in aggregations] == aggregations


# What each batch read


def give(checkpoint: Path, batch: int, epoch: int, rows: list[dict[str, int]]) -> None:
    """As the job does."""
    schema = pa.schema([(name, pa.int64()) for name in [*Rule._fields, pipeline.PUBLISHED]])
    pins = BatchPins(LocalFiles(checkpoint / "keyhole" / "broadcast" / "fraud-detection.rules"), batch, kept=100)
    pins.share(ipc_stream(pa.Table.from_pylist(rows, schema)), str(epoch), pins.before())


def logs(folder: Path) -> tuple[BatchLogs, BatchLogs]:
    """Of the payments' query, and of the rules'."""
    return BatchLogs(folder / "checkpoint", folder / "logs"), BatchLogs(folder / "checkpoint-rules", folder / "logs")


def end(checkpoint: Path, batch: int, offset: int) -> None:
    """As Spark does."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"topic":{{"0":{offset}}}}}')


def test_a_batch_was_given_the_last_records_up_to_the_epoch_that_it_read_or_it_is_found(tmp_path: Path) -> None:
    checkpoint, lax = tmp_path / "checkpoint", RULE._replace(large_cents=60_000)
    published = [(1, RULE), (2, Rule(2, 1_000, 1, 2)), (3, lax), (4, Rule(3, 2_000, 1, 2))]
    end(tmp_path / "checkpoint-rules", 0, 2)
    end(tmp_path / "checkpoint-rules", 1, 4)
    rows = [rule._asdict() | {"published": offset} for offset, rule in published]
    give(checkpoint, 0, 0, [])
    give(checkpoint, 1, 1, rows[:1])
    give(checkpoint, 2, 2, rows[1:3])
    batches, updates = logs(tmp_path)
    table = Table(batches, "rules", updates, published)
    assert [table.given_to(batch) for batch in range(3)] == [[], [RULE], [lax, published[1][1]]]
    assert table.read == table.agreed == 3
    give(checkpoint, 3, 2, rows[:2])
    assert table.given_to(3) == [lax, published[1][1]]
    assert (table.read, table.agreed) == (4, 3)


def test_the_payments_of_a_batch_are_counted_with_the_rules_that_it_read(tmp_path: Path) -> None:
    checkpoint, taken = tmp_path / "checkpoint", [at(0, SMALL), None, at(30, LARGE), at(31, SMALL), at(32, LARGE)]
    end(tmp_path / "checkpoint-rules", 0, 1)
    for batch, offset, epoch, rows in ((0, 3, 0, []), (1, 5, 1, [RULE._asdict() | {"published": 0}])):
        end(checkpoint, batch, offset)
        give(checkpoint, batch, epoch, rows)
    batches, updates = logs(tmp_path)
    rules, nothing = Table(batches, "rules", updates, [(0, RULE)]), Nothing(batches, "aggregations", updates, [])
    recount, watermarks_ms = counted(batches, 2, taken, rules, nothing)
    assert recount.alerts == {alert(payment) for payment in taken[4:] if payment is not None}
    assert watermarks_ms == [0, BEGIN_MS + 20_000, BEGIN_MS + 22_000]


class Nothing(Table[Aggregation]):
    """No aggregations, in any batch."""

    def given_to(self, batch: int) -> list[Aggregation]:
        return []


# The candidates


def test_of_the_small_ones_of_a_second_the_lowest_within_the_minute_is_told() -> None:
    at_ms = BEGIN_MS + 60_500
    known = {
        (BEGIN_MS + 499, 1): 1,  # more than a minute before
        (BEGIN_MS + 500, 2): 7,
        (BEGIN_MS + 999, 3): 8,
        (BEGIN_MS + 30_000, 4): 9,
        (BEGIN_MS + 30_999, 5): 5,
        (BEGIN_MS + 60_400, 6): 10,  # not lower
        (BEGIN_MS + 60_499, 7): 9,
        (at_ms, 8): 2,  # at the same time
    }
    found = dict(candidates(known, {(at_ms, 9): 10}))
    assert found == {(at_ms, 9): [(BEGIN_MS + 500, 7), (BEGIN_MS + 30_999, 5), (BEGIN_MS + 60_499, 9)]}


def test_a_busy_account_gives_no_more_candidates_than_there_are_seconds() -> None:
    known = {(BEGIN_MS + number * 10, number): 100 + number % 7 for number in range(6_000)}
    ((_, smalls),) = candidates(known, {(BEGIN_MS + 59_995, 0): 1_000})
    assert len(smalls) == 60
    assert {small.cents for small in smalls} == {100}


# The processor; tests/property compares it with the recount


def test_a_payment_is_kept_until_its_timer() -> None:
    bench, small = FinderBench([RULE]), at(0, SMALL)
    assert bench.take([small]) == []
    assert bench.recent("a") == {(small.time_ms, small.payment): SMALL}
    bench.advance(small.time_ms + MINUTE_MS - 1)
    assert bench.recent("a") == {(small.time_ms, small.payment): SMALL}
    bench.advance(small.time_ms + MINUTE_MS)
    assert bench.recent("a") == {}


def test_the_large_one_may_come_first_and_is_told_when_the_small_one_comes() -> None:
    bench, small, large = FinderBench([RULE]), at(0, SMALL), at(30, LARGE)
    assert bench.take([large]) == []
    assert bench.take([small]) == [alert(large)]
    assert bench.take([at(1, BETWEEN)]) == []


def test_the_timer_of_one_payment_forgets_no_other() -> None:
    bench, first, second = FinderBench([RULE]), at(0, SMALL), at(5, SMALL)
    bench.take([first, second])
    bench.advance(first.time_ms + MINUTE_MS)
    assert list(bench.recent("a")) == [(second.time_ms, second.payment)]
    after = at(64, LARGE)
    assert bench.take([after]) == [alert(after)]


def test_a_large_one_that_is_sent_again_is_the_same_alert() -> None:
    bench, small, large = FinderBench([RULE]), at(0, SMALL), at(30, LARGE)
    assert bench.take([small, large, large]) == [alert(large)]
    assert bench.take([large]) == [alert(large)]


def test_what_is_too_late_is_half_of_no_pair_and_is_handed_on() -> None:
    bench = FinderBench([RULE])
    bench.take([at(30, LARGE)])
    bench.advance(BEGIN_MS + 10_000)
    late = [at(10, SMALL), at(0, SMALL)]
    assert [(row.payment, row.merchant) for row in bench.rows(late)] == [(payment.payment, "m") for payment in late]
    assert bench.take([at(10.001, SMALL)]) != []


def test_the_job_says_what_its_states_hold() -> None:
    assert tuple(pipeline.TOTALS_REDUCERS) == Total._fields
    assert tuple(pipeline.SPENT_REDUCERS) == Spent._fields
    assert {pipeline.KEY, *pipeline.ALERTS_MAP_KEY, "cents"} == set(Alert._fields)
    for schema, of in ((pipeline.RULES_SCHEMA, Rule), (pipeline.AGGREGATIONS_SCHEMA, Aggregation)):
        assert [column.split()[0] for column in schema.split(", ")] == [*of._fields, pipeline.PUBLISHED]

"""The job's pipeline on real Spark: payments, rules and aggregations from records, and the alerts of a stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from jobs.fraud_detection import pipeline, reference, source
from jobs.fraud_detection.model import Aggregation, Alert, Payment, Rule, Total
from jobs.fraud_detection.processor import FraudDetector
from jobs.fraud_detection.source import MINUTE_MS, Shape
from tests.integration.conftest import RunQuery, Stream

pytestmark = pytest.mark.integration

BEGIN_MS = 1_795_219_200_000
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PAYMENT = ("account", "payment", "merchant", "time_ms", "cents")


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The only state store that takes transformWithState."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    assert before is not None
    spark.conf.set(PROVIDER, before)


def record(**fields: object) -> bytes:
    payment = {"account": "a", "payment": 1, "merchant": "m", "time": BEGIN_MS, "cents": 1}
    return json.dumps(payment | fields).encode()


BAD: list[bytes | None] = [
    None,
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b"[]",
    b"null",
    b"{}",
    record(account=None),
    record(account=1),
    record(account=True),
    record(account="false"),
    record(account="a b"),
    record(merchant=""),
    record(merchant="m\n"),
    record(payment=None),
    record(payment="1"),
    record(payment=1 << 63),
    record(time=-1),
    record(time="now"),
    record(time=4_102_444_800_000),
    record(cents=0),
    record(cents=1.5),
    record(cents=True),
    record(cents=100_000_000_001),
]
GOOD: list[bytes | None] = [
    record(),
    record(account="A.b-c_1" + "x" * 57, payment=-(1 << 63), time=0, cents=100_000_000_000, unknown=[]),
]


def records(spark: SparkSession, values: list[bytes | None] | list[bytes]) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "value binary")


def test_what_is_a_payment_to_spark_is_one_to_the_reference(spark: SparkSession) -> None:
    found = pipeline.payments(records(spark, GOOD + BAD).coalesce(1)).collect()
    expected = [payment for payment in map(reference.payment_of, GOOD + BAD) if payment is not None]
    assert [Payment(*(row[name] for name in PAYMENT)) for row in found] == expected
    assert len(found) == len(GOOD)
    assert [row.time.astimezone().timestamp() * 1000 for row in found] == [payment.time_ms for payment in expected]


def test_rules_and_aggregations_come_back_as_they_were_sent_and_wrong_ones_do_not(spark: SparkSession) -> None:
    rules = source.rules(BEGIN_MS)
    bad_rules = [Rule(1, -1, 1, 2), Rule(1, 0, -1, 2), Rule(1, 0, 2, 2)]
    values = [source.rule_record(rule) for rule in [*rules, *bad_rules]] + [b"{}", b"no"]
    assert [Rule(*row) for row in pipeline.rules(records(spark, values).coalesce(1)).collect()] == rules
    aggregations = source.aggregations(BEGIN_MS)
    bad = [
        Aggregation("a b", "account", 1, 0, None),
        Aggregation("a", "payment", 1, 0, None),
        Aggregation("a", "account", 0, 0, None),
        Aggregation("a", "account", 1, -1, None),
    ]
    values = [source.aggregation_record(each) for each in [*aggregations, *bad]] + [b"{}", b"no"]
    found = pipeline.aggregations(records(spark, values).coalesce(1)).collect()
    assert [Aggregation(*row) for row in found] == aggregations


def test_each_payment_is_judged_once_by_the_rule_of_its_time(spark: SparkSession) -> None:
    rules = [Rule(2, 1_000, 10, 20), Rule(1, 1_000, 0, 1), Rule(3, 2_000, 5, 15)]
    made = [
        Payment("a", n, "m", at, cents)
        for n, (at, cents) in enumerate(itertools.product((0, 1_000, 2_000), range(1, 25)))
    ]
    frame = pipeline.payments(records(spark, [source.payment_record(payment) for payment in made]))
    judged = pipeline.judged(frame, pipeline.rules(records(spark, [source.rule_record(rule) for rule in rules])))
    found = {row.payment: (row.small, row.large) for row in judged.collect()}
    assert judged.count() == len(made)
    for payment in made:
        rule = reference.rule_at(rules, payment.time_ms)
        expected = (
            (False, False) if rule is None else (payment.cents <= rule.small_cents, payment.cents >= rule.large_cents)
        )
        assert found[payment.payment] == expected
    no_rules = pipeline.judged(frame, pipeline.rules(records(spark, [b"{}"])))
    assert no_rules.count() == len(made)
    assert no_rules.where("small or large").count() == 0


def test_contributions_add_up_to_the_totals_of_the_reference(spark: SparkSession) -> None:
    made = list(itertools.islice(source.payments(2, BEGIN_MS, Shape(accounts=20, per_second=1)), 2_000))
    aggregations = source.aggregations(BEGIN_MS)
    rows = pipeline.contributions(
        pipeline.payments(records(spark, [source.payment_record(payment) for payment in made])),
        pipeline.aggregations(records(spark, [source.aggregation_record(each) for each in aggregations])),
    )
    # As the reducing state adds them up.
    merge = {"sum": f.sum, "count": f.count, "max": f.max}
    columns = [merge[reducer](name).alias(name) for name, reducer in pipeline.TOTALS_REDUCERS.items()]
    totals = rows.groupBy(*pipeline.TOTALS_KEY, pipeline.TOTALS_MAP_KEY).agg(*columns).collect()
    found = {
        (row.aggregation, row.of, round(row.window.astimezone().timestamp() * 1000)): Total(
            row.spent_cents, row.payments, row.highest_cents
        )
        for row in totals
    }
    assert found == reference.totals(made, aggregations)
    assert {name for name, _, _ in found} == {"spent-per-hour", "merchant-minutes"}


@pytest.mark.usefixtures("rocksdb")
def test_a_stream_of_payments_gives_the_alerts_of_the_reference_each_once(
    spark: SparkSession, stream: Stream, run_query: RunQuery
) -> None:
    shape = Shape(accounts=15, per_second=1, frauds=0.05, decoys=0.1)
    made = list(itertools.islice(source.payments(9, BEGIN_MS, shape), 1_000))
    rules = source.rules(BEGIN_MS)
    found: list[Alert] = []

    def collect(batch: DataFrame, _: int) -> None:
        found.extend(Alert(row.account, row.payment, row.time_ms, row.cents) for row in batch.collect())

    batches = [made[first : first + 250] for first in range(0, len(made), 250)]
    data = stream(
        "value string", [[{"value": source.payment_record(payment).decode()} for payment in batch] for batch in batches]
    )
    by = pipeline.rules(records(spark, [source.rule_record(rule) for rule in rules]))
    judged = pipeline.judged(pipeline.payments(data), by)
    run_query(pipeline.alerts(judged, FraudDetector()), "update", collect)

    expected = reference.alerts(made, rules)
    assert set(found) == expected
    assert len(found) == len(expected) > 10
    assert {alert.time_ms < BEGIN_MS + 10 * MINUTE_MS for alert in found} == {True, False}

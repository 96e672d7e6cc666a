"""The job's pipeline on real Spark: payments, rules and aggregations from records, and the alerts of a stream."""

from __future__ import annotations

import itertools
import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import Column, DataFrame, SparkSession

from jobs.fraud_detection import __main__ as job
from jobs.fraud_detection import pipeline, source
from jobs.fraud_detection.config import FraudDetectionConfig
from jobs.fraud_detection.model import FIELDS, Aggregation, Alert, Payment, Rule, Total
from jobs.fraud_detection.processor import OUTPUT
from jobs.fraud_detection.recount import Recount, aggregation_of, payment_of, rule_at, rule_of
from jobs.fraud_detection.recount import spent as recounted
from jobs.fraud_detection.source import MINUTE_MS, Shape
from keyhole import Client
from keyhole.spark import queryable
from keyhole.spark.changes import split
from keyhole.spark.dead_letters import drop
from tests.support.micro_batches import session_settings
from tests.support.odd_records import NO_OBJECTS, odd_records
from tests.support.streams import RunQuery, Service, Stream
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS

BEGIN_MS = 1_795_219_200_000
PAYMENT = Payment._fields
HISTORY = "account string, payment bigint, merchant string, time_ms bigint, cents int, fee_cents int"


def record(**fields: object) -> bytes:
    payment = {"account": "a", "payment": 1, "merchant": "m", "time": BEGIN_MS, "cents": 1}
    return json.dumps(payment | fields).encode()


BAD: list[bytes | None] = [
    *NO_OBJECTS,
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
    record(fee=-1),
    record(fee="1"),
    record(fee=100_000_000_001),
    record() + b"xyz",
    record() * 2,
    record().replace(b'"', b"'"),
    record().decode().encode("utf-16"),
]
GOOD: list[bytes | None] = [
    record(),
    record(fee=None),
    record(fee=7),
    record(account="A.b-c_1" + "x" * 57, payment=-(1 << 63), time=0, cents=100_000_000_000, unknown=[]),
]


def records(spark: SparkSession, values: list[bytes | None] | list[bytes]) -> DataFrame:
    return spark.createDataFrame(list(zip(values, itertools.count())), "value binary, offset bigint").coalesce(1)


def test_what_is_a_payment_to_spark_is_one_to_the_recount(spark: SparkSession) -> None:
    found = pipeline.payments(records(spark, GOOD + BAD).coalesce(1)).collect()
    expected = [payment for payment in map(payment_of, GOOD + BAD) if payment is not None]
    assert [Payment(*(row[name] for name in PAYMENT)) for row in found] == expected
    assert len(found) == len(GOOD)
    assert [row.time.astimezone().timestamp() * 1000 for row in found] == [payment.time_ms for payment in expected]


BAD_RULES = [Rule(1, -1000, 1, 2), Rule(1, 1, 1, 2), Rule(1, 0, -1, 2), Rule(1, 0, 2, 2), Rule(1 << 63, 0, 1, 2)]
BAD_AGGREGATIONS = [
    Aggregation("a b", "account", 1, 0, None),
    Aggregation("a", "account", 0, 0, None),
    Aggregation("a", "account", 1, -1, None),
    Aggregation("a", "amount", 1, 0, None),
    Aggregation("a", "account,amount", 1, 0, None),
    Aggregation("a", "account,account", 1, 0, None),
    *(Aggregation("a", "account", 1, 0, None, of) for of in ("", "time", "payment", "account", 7, ["cents"])),  # type: ignore[arg-type]
    *(Aggregation("a", "account", 1, 0, until) for until in ("tomorrow", "", 1.5, True, [], {}, 1 << 63)),  # type: ignore[arg-type]
]


def test_rules_and_aggregations_come_back_as_they_were_sent_and_wrong_ones_do_not(spark: SparkSession) -> None:
    rules = list(itertools.islice(source.rules(BEGIN_MS), 3))
    values = [source.rule_record(rule) for rule in [*rules, *BAD_RULES]] + [b"{}", b"no"]
    found = pipeline.rules(records(spark, values)).collect()
    assert [tuple(row) for row in found] == [(*rule, offset) for offset, rule in enumerate(rules)]
    assert [rule_of(value) for value in values] == [*rules, *[None] * (len(BAD_RULES) + 2)]
    aggregations = list(itertools.islice(source.aggregations(BEGIN_MS), 5))
    aggregations += [Aggregation("a", by, 1, 0, 2, "fee") for by in (*FIELDS, ",".join(reversed(FIELDS)))]
    values = [source.aggregation_record(each) for each in [*aggregations, *BAD_AGGREGATIONS]] + [b"{}", b"no"]
    found = pipeline.aggregations(records(spark, values)).collect()
    assert [tuple(row) for row in found] == [(*each, offset) for offset, each in enumerate(aggregations)]
    assert [aggregation_of(value) for value in values] == [*aggregations, *[None] * (len(BAD_AGGREGATIONS) + 2)]


def aggregation(**fields: object) -> bytes:
    return json.dumps({"aggregation": "a", "window": 1, "since": 0} | fields).encode()


def test_an_aggregation_as_it_was_published_before_there_were_more_fields_is_the_same_one(spark: SparkSession) -> None:
    values = [aggregation(by="account"), aggregation(by="merchant", until=None), aggregation(by="account", of=None)]
    found = pipeline.aggregations(records(spark, values)).collect()
    expected = [Aggregation("a", by, 1, 0, None, "cents") for by in ("account", "merchant", "account")]
    assert [tuple(row)[:-1] for row in found] == expected == [aggregation_of(value) for value in values]


def test_an_aggregation_that_was_broadcast_before_adds_up_cents(
    spark: SparkSession, service: Service, application: str, stream: Stream, run_query: RunQuery
) -> None:
    def broadcast(published: bytes, *dropped: str) -> None:
        sink = queryable.broadcast(
            pipeline.AGGREGATIONS,
            key=pipeline.AGGREGATIONS_KEY,
            order_by=pipeline.PUBLISHED,
            query=pipeline.AGGREGATIONS,
            config=service.config(application),
            on_new_checkpoint="continue",
        )
        data = stream("value string, offset bigint", [[{"value": published.decode(), "offset": 0}]])
        run_query(pipeline.aggregations(data).drop(*dropped), "append", sink, checkpoint=f"without-{len(dropped)}")

    broadcast(aggregation(by="account"), "of")
    broadcast(aggregation(by=["merchant"], aggregation="b", of="fee"))
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        values = [client.get(application, pipeline.AGGREGATIONS, name).value for name in "ab"]
    assert [(value.by, value.of, value.window_ms) for value in values] == [("account", None, 1), ("merchant", "fee", 1)]
    to = [(name, value.by, value.window_ms, 0, None, value.of, 0) for name, value in zip("ab", values, strict=True)]
    paid = pipeline.payments(records(spark, [record(cents=7, fee=1)]))
    found = pipeline.contributions(paid, spark.createDataFrame(to, pipeline.AGGREGATIONS_SCHEMA)).collect()
    assert {(row["of"], row.spent_cents, row.highest_cents) for row in found} == {("a", 7, 7), ("m", 1, 1)}


_NO_GROUPING = (
    "by is neither one of account, payment, merchant, time, cents, fee, "
    "nor a list of some of them, each once, or of none"
)


_BAD_BY: list[object] = ["", "Account", "account,merchant", 7, None, {}, [7], [None], ["x"]]
_BAD_BY += [["account", "account"], [["account"]], ["account", 7], {"account": 1}]
_NEITHER_GROUPS_NOR_ADDS_UP: list[tuple[dict[str, object], str]] = [
    *(({"by": by}, _NO_GROUPING) for by in _BAD_BY),
    ({}, _NO_GROUPING),
    ({"by": [], "of": "time"}, "of is none of cents, fee"),
]


def test_a_grouping_or_an_amount_that_can_not_be_is_refused_with_those_that_can(spark: SparkSession) -> None:
    reasons: list[str] = []

    def accept(parsed: DataFrame, problem: Column) -> DataFrame:
        reasons.extend(row[0] for row in parsed.select(problem).collect())
        return drop(parsed, problem)

    values = [aggregation(**fields) for fields, _ in _NEITHER_GROUPS_NOR_ADDS_UP]
    assert pipeline.aggregations(records(spark, values), accept).collect() == []
    assert reasons == [reason for _, reason in _NEITHER_GROUPS_NOR_ADDS_UP]
    assert [aggregation_of(value) for value in values] == [None] * len(values)


def test_of_records_with_any_fault_spark_takes_what_the_recount_takes_as_it_takes_it(spark: SparkSession) -> None:
    odd = odd_records(json.loads(record()))
    expected = [payment for payment in map(payment_of, odd) if payment is not None]
    found = [Payment(*(row[name] for name in PAYMENT)) for row in pipeline.payments(records(spark, odd)).collect()]
    assert found == expected
    assert 10 < len(expected) < len(odd) / 2
    odd = odd_records(json.loads(source.rule_record(Rule(1, BEGIN_MS, 1, 2))))
    rules = [(*rule, offset) for offset, value in enumerate(odd) if (rule := rule_of(value)) is not None]
    assert [tuple(row) for row in pipeline.rules(records(spark, odd)).collect()] == rules
    assert 10 < len(rules) < len(odd) / 2
    odd = odd_records(json.loads(source.aggregation_record(Aggregation("a", "account", 1, 0, 2))))
    odd += odd_records(json.loads(source.aggregation_record(Aggregation("a", "account,merchant", 1, 0, 2, "fee"))))
    aggregations = [(*each, offset) for offset, value in enumerate(odd) if (each := aggregation_of(value)) is not None]
    assert [tuple(row) for row in pipeline.aggregations(records(spark, odd)).collect()] == aggregations
    assert 10 < len(aggregations) < len(odd) / 2


def test_a_candidate_is_an_alert_by_the_rules_of_its_times(spark: SparkSession) -> None:
    rules = [Rule(2, 1_000, 10, 20), Rule(1, 1_000, 0, 1), Rule(3, 2_000, 5, 15)]
    times = (500, 1_500, 2_500)
    made = [
        (before, small, after, large)
        for before, after in itertools.product(times, times)
        for small, large in itertools.product((5, 6, 10, 11), (14, 15, 19, 20))
    ]
    candidates = [
        ("a", n, after, large, None, None, [(before, 100), (before, small)])
        for n, (before, small, after, large) in enumerate(made)
    ]
    rows = spark.createDataFrame([*candidates, ("a", -1, 1_500, 20, 0, "merchant", None)], OUTPUT)
    by = pipeline.rules(records(spark, [source.rule_record(rule) for rule in rules]))
    found = {row.payment for row in pipeline.alerts(rows, by).collect()}
    expected = set()
    for n, (before, small, after, large) in enumerate(made):
        of_small, of_large = rule_at(rules, before), rule_at(rules, after)
        if of_small and of_large and small <= of_small.small_cents and large >= of_large.large_cents:
            expected.add(n)
    assert found == expected
    assert 0 < len(found) < len(made) / 2
    assert pipeline.alerts(rows, pipeline.rules(records(spark, [b"{}"]))).count() == 0


@pytest.mark.usefixtures("rocksdb")
def test_a_stream_of_payments_gives_the_alerts_and_totals_of_the_recount_late_ones_in_totals_only(
    spark: SparkSession, stream: Stream, run_query: RunQuery
) -> None:
    shape = Shape(accounts=15, per_second=1, frauds=0.05, decoys=0.1, too_late=0.1)
    made = list(itertools.islice(source.payments(9, BEGIN_MS, shape), 1_000))
    rules, aggregations = (
        list(itertools.islice(source.rules(BEGIN_MS), 3)),
        [
            *itertools.islice(source.aggregations(BEGIN_MS), 4),
            Aggregation("payments", ",".join(FIELDS), MINUTE_MS, BEGIN_MS, None),
        ],
    )
    by = pipeline.rules(records(spark, [source.rule_record(rule) for rule in rules]))
    to = pipeline.aggregations(records(spark, [source.aggregation_record(each) for each in aggregations]))
    found: list[Alert] = []
    arrived: list[int] = []
    totals: dict[tuple[str, str, int], Total] = {}

    def collect(batch: DataFrame, _: int) -> None:
        batch = batch.persist()
        rows = split(batch).rows
        found.extend(Alert(**row.asDict()) for row in pipeline.alerts(rows, by).collect())
        arrived.extend(row.payment for row in pipeline.arrived(rows).collect())
        for row in pipeline.contributions(pipeline.arrived(rows), to).collect():
            key = row.aggregation, row["of"], round(row.window.astimezone().timestamp() * 1000)
            before = totals.get(key, Total(0, 0, 0))
            totals[key] = Total(
                before.spent_cents + row.spent_cents,
                before.payments + row.payments,
                max(before.highest_cents, row.highest_cents),
            )
        batch.unpersist()

    batches = [made[first : first + 250] for first in range(0, len(made), 250)]
    data = stream(
        "value string", [[{"value": source.payment_record(payment).decode()} for payment in batch] for batch in batches]
    )
    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        run_query(pipeline.paired(pipeline.payments(data), pipeline.exposing()), "update", collect)

    recount, patient = Recount(), Recount()
    for batch in batches:
        recount.take(batch, rules, aggregations)
    patient.take(made, rules, aggregations)
    assert sorted(arrived) == sorted(payment.payment for payment in made)
    assert set(found) == recount.alerts < patient.alerts
    assert {alert.time_ms < BEGIN_MS + 10 * MINUTE_MS for alert in found} == {True, False}
    assert totals == recount.totals == patient.totals
    assert {name for name, _, _ in totals} == {each.aggregation for each in aggregations}
    assert {of for name, of, _ in totals if name == "spent-per-minute"} == {"all"}
    pairs = {of for name, of, _ in totals if name == "fees-of-pairs"}
    assert pairs <= {f"{payment.account}:{payment.merchant}" for payment in made}
    assert len(pairs) > 100


def test_what_accounts_have_spent_begins_with_the_history_once_and_goes_on_with_the_topic(
    spark: SparkSession, service: Service, tmp_path: Path, application: str
) -> None:
    made = list(itertools.islice(source.payments(5, BEGIN_MS, Shape(accounts=15)), 300))
    before, after = made[:100], [made[100:200], made[200:]]
    history, topic = str(tmp_path / "history"), f"payments-{uuid.uuid4().hex[:8]}"
    spark.createDataFrame(before, HISTORY).write.parquet(history)
    make_topic(service.bootstrap_servers, topic)
    config = FraudDetectionConfig(
        topic=topic,
        rules_topic="none",
        aggregations_topic="none",
        checkpoint=str(tmp_path / "checkpoint"),
        directory=tmp_path,
        history=history,
    )
    producer, sent = Producer({"bootstrap.servers": service.bootstrap_servers}), list[Payment]()
    for payments in after:  # the job is started again for the second
        for value in [*map(source.payment_record, payments), b"no payment"]:
            producer.produce(topic, value)
        assert producer.flush(LONG_SECONDS) == 0
        query = job.spent(spark, service.config(application), config)
        query.processAllAvailable()
        query.stop()
        sent += payments
        expected = recounted([(payment.account, payment.cents) for payment in before], sent)
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            answers = client.get_many(application, pipeline.SPENT, list(expected))
        assert [(answer.value.payments, answer.value.cents) for answer in answers] == list(expected.values())
    assert (tmp_path / "checkpoint-spent").is_dir()

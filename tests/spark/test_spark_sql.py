"""States fed by streams that are written in SQL: nothing but text between the view and the sink."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from keyhole import Client
from keyhole.spark import queryable
from keyhole.spark.batch import classic, current
from keyhole.spark.partitioning import HashLayout, layout_of
from tests.support.streams import RunQuery, Service, Stream

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "customer string, at timestamp, amount bigint"
ROWS = [{"customer": f"c{n % 5}", "at": (START + timedelta(minutes=9 * n)).isoformat(), "amount": n} for n in range(60)]
PAYMENTS = [ROWS[:25], ROWS[25:40], ROWS[40:]]


def test_a_state_is_fed_by_sql_over_a_streaming_view(
    spark: SparkSession, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    stream(SCHEMA, PAYMENTS).createOrReplaceTempView("payments")
    spent = spark.sql("SELECT customer, sum(amount) AS spent, count(*) AS payments FROM payments GROUP BY customer")
    sink = queryable.value("spent", key="customer", key_groups=8, config=service.config(application))
    layouts: list[HashLayout | None] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        layouts.append(layout_of(classic(batch), current(classic(batch), batch_id).execution))
        sink(batch, batch_id)

    run_query(spent, "update", feed)
    assert layouts == 3 * [HashLayout(("customer",), 4)], "grouped by the key already: no second shuffle"
    expected: dict[str, list[int]] = defaultdict(list)
    for row in ROWS:
        expected[str(row["customer"])].append(int(str(row["amount"])))
    with Client(service.proxy) as client:
        answers = client.get_many(application, "spent", sorted(expected))
    assert [(a.value.spent, a.value.payments) for a in answers] == [
        (sum(expected[customer]), len(expected[customer])) for customer in sorted(expected)
    ]
    assert {answer.epoch for answer in answers} == {3}


def test_windows_in_sql_are_entries_of_a_map(
    spark: SparkSession, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    stream(SCHEMA, PAYMENTS).withWatermark("at", "1 hour").createOrReplaceTempView("payments_by_time")
    per_hour = spark.sql(
        """
        SELECT customer, w.start AS hour, sum(amount) AS spent
        FROM (SELECT customer, window(at, '1 hour') AS w, amount FROM payments_by_time)
        GROUP BY customer, w
        """
    )
    sink = queryable.map(
        "per_hour",
        key="customer",
        map_key="hour",
        ttl=timedelta(days=7),
        ttl_clock="event_time",
        key_groups=8,
        config=service.config(application),
    )
    run_query(per_hour, "update", sink)
    expected: dict[datetime, int] = defaultdict(int)
    for n in range(0, 60, 5):
        expected[START + timedelta(hours=9 * n // 60)] += n
    with Client(service.proxy) as client:
        found = client.scan(application, "per_hour", "c0")
    assert {entry.map_key: entry.value.spent for entry in found} == expected

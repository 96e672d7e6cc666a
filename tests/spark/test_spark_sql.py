"""States fed by streams that are written in SQL: nothing but text between the view and the sink."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame

from keyhole.spark import queryable
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.layout import HashLayout, layout_of
from keyhole.spark.driver.micro_batch import current
from tests.support.scenario import Scenarios

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "customer string, at timestamp, amount bigint"
ROWS = [{"customer": f"c{n % 5}", "at": (START + timedelta(minutes=9 * n)).isoformat(), "amount": n} for n in range(60)]
PAYMENTS = [ROWS[:25], ROWS[25:40], ROWS[40:]]


def test_a_state_is_fed_by_sql_over_a_streaming_view(scenarios: Scenarios) -> None:
    scenario = scenarios()
    scenario.stream(SCHEMA, PAYMENTS).createOrReplaceTempView("payments")
    spent = scenario.spark.sql(
        "SELECT customer, sum(amount) AS spent, count(*) AS payments FROM payments GROUP BY customer"
    )
    sink = queryable.value("spent", key="customer", key_groups=8, config=scenario.config)
    layouts: list[HashLayout | None] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        layouts.append(layout_of(classic(batch), current(classic(batch), batch_id).execution))
        sink(batch, batch_id)

    scenario.run(spent, "update", feed)
    assert layouts == 3 * [HashLayout(("customer",), 2)], "grouped by the key already: no second shuffle"
    expected: dict[str, list[int]] = defaultdict(list)
    for row in ROWS:
        expected[str(row["customer"])].append(int(str(row["amount"])))
    answers = scenario.get_many("spent", sorted(expected))
    assert [(a.value.spent, a.value.payments) for a in answers] == [
        (sum(expected[customer]), len(expected[customer])) for customer in sorted(expected)
    ]
    assert {answer.epoch for answer in answers} == {3}


def payment(customer: str, minutes: int, amount: int = 1) -> dict[str, object]:
    return {"customer": customer, "at": (START + timedelta(minutes=minutes)).isoformat(), "amount": amount}


@pytest.fixture(scope="module")
def per_hour(scenarios: Scenarios) -> Sequence[Mapping[int, tuple[int, int]]]:
    """After each epoch, by hour: how many payments of c0 there were, and what they come to."""
    scenario = scenarios()
    # The watermark is an hour behind, and Spark drops rows by that of the batch before: in the third one the row of c0
    # at 5 minutes comes too late for its window, that at 130 just in time.
    batches = [
        [payment(f"c{n % 2}", 7 * n, n) for n in range(30)],
        [payment("c1", 220)],
        [payment("c0", 5), payment("c0", 130), payment("c1", 9 * 60)],
        [payment("c0", 9 * 60 + 1)],
    ]
    scenario.stream(SCHEMA, batches).withWatermark("at", "1 hour").createOrReplaceTempView("payments_by_time")
    windows = scenario.spark.sql(
        """
        SELECT customer, w.start AS hour, count(*) AS payments, sum(amount) AS spent
        FROM (SELECT customer, window(at, '1 hour') AS w, amount FROM payments_by_time)
        GROUP BY customer, w
        """
    )
    lives: dict[str, Any] = {"ttl": timedelta(hours=4), "ttl_clock": "event_time"}
    sink = queryable.map("per_hour", key="customer", map_key="hour", key_groups=4, config=scenario.config, **lives)
    seen: list[dict[int, tuple[int, int]]] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        of = scenario.scan("per_hour", "c0")
        seen.append(
            {(entry.map_key - START) // timedelta(hours=1): (entry.value.payments, entry.value.spent) for entry in of}
        )

    scenario.run(windows, "update", feed)
    return seen


# Of c0, by hour: of the rows at 0, 14, 28 minutes and so on.
HOURS = {
    hour: (sum(n // 60 == hour for n in range(0, 210, 14)), sum(n // 7 for n in range(0, 210, 14) if n // 60 == hour))
    for hour in range(4)
}


def test_windows_in_sql_are_entries_of_a_map(per_hour: Sequence[Mapping[int, tuple[int, int]]]) -> None:
    assert per_hour[0] == HOURS


def test_windows_are_entries_of_a_map_until_the_watermark_has_passed_their_ttl(
    per_hour: Sequence[Mapping[int, tuple[int, int]]],
) -> None:
    written_again = {2: (HOURS[2][0] + 1, HOURS[2][1] + 1)}
    assert per_hour[:3] == [HOURS, HOURS, HOURS | written_again]
    # The watermark is at eight hours. After the first batch it was at two and a half, after the third where it is now.
    assert per_hour[3] == written_again | {9: (1, 1)}

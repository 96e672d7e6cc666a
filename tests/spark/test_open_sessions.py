"""Sessions while they are open, which Spark's session windows don't show: by the processor of docs/kinds.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from keyhole import Client
from keyhole.spark import queryable
from keyhole.spark.changes import own_rows
from tests.support.micro_batches import session_settings
from tests.support.snippets import snippet
from tests.support.streams import RunQuery, Service, Stream
from tests.support.waiting import LONG_SECONDS

pytestmark = pytest.mark.usefixtures("rocksdb")


def processor() -> Any:
    """The one that the page shows."""
    # Of a module that can't be imported: Spark's workers are sent the class itself.
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(snippet("class OpenSessions"), names)
    return names["OpenSessions"]()


START = datetime(2026, 1, 1, tzinfo=UTC)


def at(user: str, *minutes: int) -> list[dict[str, Any]]:
    return [{"user": user, "at": (START + timedelta(minutes=minute)).isoformat()} for minute in minutes]


def test_open_sessions_are_entries_until_they_are_closed_and_closed_ones_entries_of_another_state(
    spark: SparkSession, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    # The watermark is 30 minutes behind; the rows at 8 and 24 minutes come late, and make sessions longer.
    batches = [at("a", 0, 16), at("a", 8, 50, 24), at("b", 65), at("b", 110)]
    events = stream("user string, at timestamp", batches)
    config = service.config(application)
    exposing = queryable.QueryableProcessor(
        processor(),
        key="user",
        expose={"open": queryable.ExposedMap("since timestamp", "until timestamp, events bigint")},
    )
    sessions = exposing.transform(
        events.withWatermark("at", "30 minutes"),
        "user string, since timestamp, until timestamp, events bigint",
        time_mode="eventTime",
    )
    sink = queryable.together(
        queryable.exposed(exposing, key_groups=4, config=config),
        queryable.map("closed", key="user", map_key="since", key_groups=4, config=config).of(own_rows),
    )
    seen: list[dict[str, list[tuple[str, int, int, int]]]] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            seen.append(
                {
                    state: [
                        (user, minute(of.map_key), minute(of.value.until), of.value.events)
                        for user in ("a", "b")
                        for of in client.scan(application, state, user)
                    ]
                    for state in ("open", "closed")
                }
            )

    def minute(of: datetime) -> int:
        return (of - START) // timedelta(minutes=1)

    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        run_query(sessions, "update", feed)
    assert seen == [
        {"open": [("a", 0, 10, 1), ("a", 16, 26, 1)], "closed": []},
        {"open": [("a", 0, 34, 4), ("a", 50, 60, 1)], "closed": []},
        {"open": [("a", 0, 34, 4), ("a", 50, 60, 1), ("b", 65, 75, 1)], "closed": []},
        {"open": [("a", 50, 60, 1), ("b", 65, 75, 1), ("b", 110, 120, 1)], "closed": [("a", 0, 34, 4)]},
        # A batch without rows, as the watermark has moved on.
        {"open": [("b", 110, 120, 1)], "closed": [("a", 0, 34, 4), ("a", 50, 60, 1), ("b", 65, 75, 1)]},
    ]

"""A Spark job that is stopped, changed and started again, while readers that know its old fields go on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.errors import KeyholeError, StateChanged, ValueMismatch
from keyhole.local.ports import free_ports
from keyhole.local.services import start_state_server
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.streams import RunQuery, Service, Stream
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS

_FOLLOWS_SECONDS = 5 * LONG_SECONDS
SCHEMA = "k string, celsius double, count int, note string"
FIRST = [{"k": "a", "celsius": 1.5, "count": 1, "note": "x"}, {"k": "b", "celsius": 2.5, "count": 2}]
SECOND = [{"k": "b", "celsius": 3.5, "count": 3}, {"k": "c", "celsius": 4.5, "count": 4}]


def old(data: DataFrame) -> DataFrame:
    return data.select("k", F.col("celsius").cast("float"), "count", "note")


def new(data: DataFrame) -> DataFrame:
    """A field dropped, one added, two widened, and all of them in another order."""
    return data.select("k", F.lit("F").alias("unit"), F.col("count").cast("bigint").alias("count"), "celsius")


OLD_ROWS: dict[str, dict[str, Any]] = {
    "a": {"celsius": 1.5, "count": 1, "note": "x"},
    "b": {"celsius": 2.5, "count": 2, "note": None},
}
NEW_ROWS: dict[str, dict[str, Any]] = {
    "a": {"unit": "C", "count": 1, "celsius": 1.5},
    "b": {"unit": "F", "count": 3, "celsius": 3.5},
    "c": {"unit": "F", "count": 4, "celsius": 4.5},
}


@pytest.fixture
def replica(service: Service, application: str, tmp_path: Path) -> Iterator[str]:
    """The address of a server that follows the application on its own."""
    (port,) = free_ports(1)
    settings = {"KEYHOLE_STATE_SERVER_ROLE": "replica", "KEYHOLE_STATE_SERVER_APPLICATIONS": application}
    child = start_state_server(
        "replica",
        port,
        bootstrap_servers=service.bootstrap_servers,
        directory=tmp_path / "replica",
        environ={**os.environ, **settings},
    )
    yield f"127.0.0.1:{port}"
    child.terminate()


def rows(client: Client, application: str) -> dict[str, dict[str, Any]]:
    answers = client.get_many(application, "readings", ["a", "b", "c"], stale="always")
    return {key: answer.value.asdict() for key, answer in zip("abc", answers, strict=True) if answer.found}


def await_rows(client: Client, application: str, wanted: dict[str, dict[str, Any]]) -> None:
    """A replica follows; it may not know the state yet."""
    until, last = time.monotonic() + _FOLLOWS_SECONDS, ""
    while True:
        try:
            found = rows(client, application)
            if found == wanted:
                return
            last = str(found)
        except KeyholeError as error:
            last = error.message
        assert time.monotonic() < until, last
        time.sleep(0.1)


def test_old_rows_are_read_by_the_new_fields_by_all_who_knew_the_old_ones(
    stream: Stream, run_query: RunQuery, service: Service, application: str, replica: str
) -> None:
    config = service.config(application)
    run_query(old(stream(SCHEMA, [FIRST])), "append", queryable.value("readings", key="k", config=config))
    with (
        Client(service.proxy, timeout=LONG_SECONDS) as client,
        Client(replica, timeout=PATIENCE_SECONDS) as of_replica,
    ):
        assert rows(client, application) == OLD_ROWS
        await_rows(of_replica, application, OLD_ROWS)
        sink = queryable.value("readings", key="k", defaults={"unit": "C"}, config=config)
        run_query(new(stream(SCHEMA, [FIRST, SECOND])), "append", sink)
        assert rows(client, application) == NEW_ROWS
        await_rows(of_replica, application, NEW_ROWS)
        # And back: what the new job has added is dropped, and what it had dropped is a new field.
        run_query(
            new(stream(SCHEMA, [FIRST, SECOND, SECOND])).select("k", "celsius", "count", F.lit("y").alias("note")),
            "append",
            queryable.value("readings", key="k", defaults={"note": "none"}, config=config),
        )
        back = {key: {"celsius": row["celsius"], "count": row["count"], "note": "y"} for key, row in NEW_ROWS.items()}
        back["a"]["note"] = "none"
        await_rows(of_replica, application, back)
        assert rows(client, application) == back
        assert client.describe_state(application, "readings").value.version == 3


def refused(run: RunQuery, data: DataFrame, sink: Sink) -> KeyholeError:
    with pytest.raises(StreamingQueryException):
        run(data, "append", sink)
    assert sink.failure is not None
    return sink.failure


def test_a_field_of_another_type_and_a_default_that_does_not_fit_are_refused_by_name_and_the_old_job_goes_on(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    config = service.config(application)
    run_query(old(stream(SCHEMA, [FIRST])), "append", queryable.value("readings", key="k", config=config))
    both = stream(SCHEMA, [FIRST, SECOND])
    other = old(both).withColumn("count", F.col("count").cast("string"))
    error = refused(run_query, other, queryable.value("readings", key="k", config=config))
    assert isinstance(error, StateChanged)
    assert error.facts["fields"] == "count"
    assert "field 'count' was int and is string" in error.message
    wrong = queryable.value("readings", key="k", defaults={"unit": 5}, config=config)
    error = refused(run_query, new(both), wrong)
    assert isinstance(error, ValueMismatch)
    assert "the default of field 'unit' is a int that does not fit string" in error.message
    run_query(old(both), "append", queryable.value("readings", key="k", config=config))
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        assert {key: row["count"] for key, row in rows(client, application).items()} == {"a": 1, "b": 3, "c": 4}
        assert client.describe_state(application, "readings").value.version == 1

"""Update, append and complete mode, and order_by: what each leaves in the state."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f

import keyhole
from keyhole.errors import DuplicateKey
from keyhole.spark import queryable
from tests.support.streams import RunQuery, Service, Stream

SCHEMA = "k string, v bigint"


def values(service: Service, application: str, state: str, keys: str) -> dict[str, int]:
    with keyhole.Client(service.proxy) as client:
        answers = client.get_many(application, state, list(keys))
    return {key: answer.value.v for key, answer in zip(keys, answers, strict=True) if answer.found}


def test_append_mode_keeps_the_last_row_of_each_key(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = stream(SCHEMA, [[{"k": "a", "v": 1}, {"k": "b", "v": 2}], [{"k": "a", "v": 3}]])
    run_query(rows, "append", queryable.value("last", key="k", config=service.config(application)))
    assert values(service, application, "last", "abc") == {"a": 3, "b": 2}


def test_update_mode_writes_only_what_changed(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = stream(SCHEMA, [[{"k": "a", "v": 1}, {"k": "b", "v": 2}], [{"k": "a", "v": 3}]])
    summed = rows.groupBy("k").agg(f.sum("v").alias("v"))
    run_query(summed, "update", queryable.value("sums", key="k", config=service.config(application)))
    assert values(service, application, "sums", "ab") == {"a": 4, "b": 2}


def test_complete_mode_deletes_what_is_no_longer_in_the_result_also_in_key_groups_without_rows(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = stream(SCHEMA, [[{"k": key, "v": 1} for key in "abcdefgh"], [{"k": key, "v": 1} for key in "abcd"]])
    once = rows.groupBy("k").agg(f.sum("v").alias("v")).filter("v = 1")
    run_query(once, "complete", queryable.value("once", key="k", config=service.config(application)))
    assert values(service, application, "once", "abcdefgh") == dict.fromkeys("efgh", 1)


def test_order_by_lets_the_highest_win_within_a_batch_and_against_the_stored_value(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    first = [{"k": "a", "v": 5}, {"k": "a", "v": 7}, {"k": "a", "v": 6}, {"k": "b", "v": 1}]
    second = [{"k": "a", "v": 2}, {"k": "b", "v": 3}]
    sink = queryable.value("best", key="k", order_by="v", config=service.config(application))
    run_query(stream(SCHEMA, [first, second]), "append", sink)
    assert values(service, application, "best", "ab") == {"a": 7, "b": 3}


def test_two_rows_of_one_key_without_order_by_are_refused_and_nothing_is_lost(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = stream(SCHEMA, [[{"k": "a", "v": 1}], [{"k": "a", "v": 2}, {"k": "a", "v": 3}, {"k": "b", "v": 1}]])
    sink = queryable.value("last", key="k", config=service.config(application))
    with pytest.raises(Exception, match="order_by"):
        run_query(rows, "append", sink)
    assert isinstance(sink.failure, DuplicateKey)
    assert values(service, application, "last", "ab") == {"a": 1}

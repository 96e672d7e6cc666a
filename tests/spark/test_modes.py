"""Update, append and complete mode, and order_by: what each leaves in the state, and which states take it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole import field
from keyhole.errors import DuplicateKey, InvalidConfiguration, KeyholeError
from keyhole.spark import queryable
from tests.support.scenario import Scenario, Scenarios, only

SCHEMA = "k string, v bigint"


def values(scenario: Scenario, state: str, keys: str) -> dict[str, int]:
    answers = scenario.get_many(state, keys)
    return {key: answer.value.v for key, answer in zip(keys, answers, strict=True) if answer.found}


def rows(of: str, *pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"of": of, "k": key, "v": value} for key, value in pairs]


@dataclass(frozen=True)
class Ended:
    """A query in append mode, which has ended at two rows of one key of the state `last`.

    Attributes:
        ended: What ended it, as Spark tells it.
        failure: The same, as the sink has it.
    """

    scenario: Scenario
    ended: str
    failure: KeyholeError | None


@pytest.fixture(scope="module")
def appended(scenarios: Scenarios) -> Ended:
    scenario = scenarios()
    batches = [
        rows("last", ("a", 1), ("b", 2)) + rows("best", ("a", 5), ("a", 7), ("a", 6), ("b", 1)),
        rows("last", ("a", 3)) + rows("best", ("a", 2), ("b", 3)),
        rows("last", ("a", 4), ("a", 5), ("c", 1)) + rows("best", ("a", 9)),
    ]
    of: dict[str, Any] = {"key": "k", "key_groups": 4, "config": scenario.config}
    sink = queryable.together(
        queryable.value("last", **of).of(only("last")),
        queryable.value("best", order_by="v", index="v", **of).of(only("best")),
    )
    with pytest.raises(StreamingQueryException) as ended:
        scenario.run(scenario.stream(f"of string, {SCHEMA}", batches), "append", sink)
    return Ended(scenario, str(ended.value), sink.failure)


def test_append_mode_keeps_the_last_row_of_each_key(appended: Ended) -> None:
    assert values(appended.scenario, "last", "ab") == {"a": 3, "b": 2}


def test_order_by_lets_the_highest_win_within_a_batch_and_against_the_stored_value(appended: Ended) -> None:
    assert values(appended.scenario, "best", "ab") == {"a": 7, "b": 3}


def test_a_state_with_an_index_is_scanned_by_it(appended: Ended) -> None:
    scenario = appended.scenario
    assert scenario.client.describe_state(scenario.application, "best").index == ("v",)
    found = scenario.client.scan_all(scenario.application, "best", where=field("v") == 7)
    assert [(entry.key, entry.value.v) for entry in found] == [("a", 7)]


def test_two_rows_of_one_key_without_order_by_end_the_query_and_nothing_is_lost(appended: Ended) -> None:
    assert "order_by" in appended.ended
    assert isinstance(appended.failure, DuplicateKey)
    assert values(appended.scenario, "last", "abc") == {"a": 3, "b": 2}
    assert {answer.epoch for answer in appended.scenario.get_many("best", ["a", "b"])} == {2}


@dataclass(frozen=True)
class Ran:
    """A query of running results, and what a reducing state has said of each of its batches."""

    scenario: Scenario
    refusals: Sequence[str]


def run(scenario: Scenario, data: DataFrame, mode: str, state: str) -> Ran:
    sink = queryable.value(state, key="k", config=scenario.config)
    reducing = queryable.reducing("sums", key="k", reducers={"v": "sum"}, query="sums", config=scenario.config)
    refusals: list[str] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        with pytest.raises(InvalidConfiguration) as refusal:
            reducing(batch, batch_id)
        assert reducing.failure is refusal.value
        refusals.append(refusal.value.message)
        sink(batch, batch_id)

    scenario.run(data, mode, feed)
    return Ran(scenario, refusals)


@pytest.fixture(scope="module")
def update(scenarios: Scenarios) -> Ran:
    scenario = scenarios()
    data = scenario.stream(SCHEMA, [[{"k": "a", "v": 1}, {"k": "b", "v": 2}], [{"k": "a", "v": 3}]])
    return run(scenario, data.groupBy("k").agg(f.sum("v").alias("v")), "update", "totals")


@pytest.fixture(scope="module")
def complete(scenarios: Scenarios) -> Ran:
    scenario = scenarios()
    data = scenario.stream(SCHEMA, [[{"k": key, "v": 1} for key in "abcdefgh"], [{"k": key, "v": 1} for key in "abcd"]])
    return run(scenario, data.groupBy("k").agg(f.sum("v").alias("v")).filter("v = 1"), "complete", "once")


def test_update_mode_writes_only_what_changed(update: Ran) -> None:
    assert values(update.scenario, "totals", "ab") == {"a": 4, "b": 2}


def test_complete_mode_deletes_what_is_no_longer_in_the_result_also_in_key_groups_without_rows(complete: Ran) -> None:
    assert values(complete.scenario, "once", "abcdefgh") == dict.fromkeys("efgh", 1)


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_running_results_of_a_streaming_aggregation_are_not_reduced(request: pytest.FixtureRequest, mode: str) -> None:
    refusals = request.getfixturevalue(mode).refusals
    assert len(refusals) == 2
    for refusal in refusals:
        assert re.search(f"reducing state 'sums' can't be fed .* {mode} mode", refusal)

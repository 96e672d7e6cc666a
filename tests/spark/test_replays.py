"""A batch that Spark runs again and that gives other rows: found out, logged or refused, and never committed twice."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from keyhole.errors import KeyholeError, ReplayDiffers
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.scenario import Scenario, Scenarios, logged

KEYS = ["a", "b", "c"]
ROWS = [{"k": key, "v": number} for number, key in enumerate(KEYS)]


class Stamped:
    """When the rows were added: another time whenever a batch is run, though it says that nothing but rows shows."""

    commutative = True

    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        return [*accumulator, time.time_ns()]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return sorted([*one, *other])

    def result(self, accumulator: list[int]) -> list[list[int]]:
        return [accumulator]


class Unknown(Exception):
    """Raised where an epoch is complete and Spark doesn't know it yet."""


def times(scenario: Scenario) -> list[tuple[int, ...]]:
    return [answer.value.times for answer in scenario.get_many("stamped", KEYS)]


@dataclass(frozen=True)
class Replayed:
    """A query whose first batch is run three times: until its epoch is complete, strictly, and not strictly.

    Attributes:
        committed: The times by key, as they were first.
        ended: What ended the strict run, as Spark tells it.
        failure: The same, as the sink has it.
        refused: The times by key after the strict run.
        accepted: After the last one, which had a second batch.
        said: What the strict and the last run logged, each.
    """

    committed: Sequence[tuple[int, ...]]
    ended: str
    failure: KeyholeError | None
    refused: Sequence[tuple[int, ...]]
    accepted: Sequence[tuple[int, ...]]
    said: Sequence[Sequence[logging.LogRecord]]


@pytest.fixture(scope="module")
def replayed(scenarios: Scenarios) -> Replayed:
    scenario = scenarios()
    data = scenario.stream("k string, v long", [ROWS, ROWS])

    def sink(strict: bool) -> Sink:
        declared: dict[str, Any] = {"key": "k", "aggregator": Stamped(), "result": "times array<bigint>"}
        return queryable.aggregating("stamped", strict=strict, key_groups=1, config=scenario.config, **declared)

    first, strict = sink(False), sink(True)

    def stops_at_once(batch: DataFrame, batch_id: int) -> None:
        first(batch, batch_id)
        raise Unknown

    with pytest.raises(StreamingQueryException, match="Unknown"):
        scenario.run(data, "append", stops_at_once, name="stamping")
    committed = times(scenario)
    with logged("keyhole") as by_strict, pytest.raises(StreamingQueryException) as ended:
        scenario.run(data, "append", strict, name="stamping")
    refused = times(scenario)
    with logged("keyhole") as by_last:
        scenario.run(data, "append", sink(False), name="stamping")
    said = [[record for record in records if record.msg == "a replay differs"] for records in (by_strict, by_last)]
    return Replayed(committed, str(ended.value), strict.failure, refused, times(scenario), said)


def test_a_batch_is_committed_though_spark_does_not_hear_of_it(replayed: Replayed) -> None:
    assert [len(of) for of in replayed.committed] == [1, 1, 1]


def test_a_strict_job_ends_where_an_aggregate_depends_on_time_and_its_batch_is_run_again(replayed: Replayed) -> None:
    assert re.search(r"stamped key group 0.* start the job with strict=False", replayed.ended)
    assert isinstance(replayed.failure, ReplayDiffers)
    assert replayed.refused == replayed.committed


def test_a_job_that_is_not_strict_goes_on_with_what_was_committed_first(replayed: Replayed) -> None:
    assert [(len(of), of[0]) for of in replayed.accepted] == [(2, before[0]) for before in replayed.committed]


@pytest.mark.parametrize("run", [0, 1], ids=["strict", "not strict"])
def test_an_aggregate_that_depends_on_time_is_found_out_when_its_batch_is_run_again(
    replayed: Replayed, run: int
) -> None:
    (record,) = replayed.said[run]
    assert (record.__dict__["which"], record.__dict__["epoch"]) == ("stamped key group 0", 1)

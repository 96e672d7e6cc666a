"""A reducing state with real processes: killed within an epoch, it adds each event once; what it refuses of Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.errors import KeyholeError, ValueMismatch
from keyhole.reducers import REDUCERS as ALL_REDUCERS
from keyhole.spark import queryable
from keyhole.steps import Step
from tests.support.counting_job import STATE
from tests.support.pipeline import EVENTS_PER_KILL, Pipeline
from tests.support.scenario import Scenario, Scenarios


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars, mode="reducing")
    yield running
    running.close()


def totals(events: int, keys: int = 40, seed: int = 7) -> Counter[str]:
    """The sums of what Pipeline.produce sends."""
    draw, total = random.Random(seed), Counter[str]()
    for _ in range(events):
        key = f"key-{draw.randrange(keys)}"
        total[key] += draw.randrange(1_000_000)
    return total


def await_recount(pipeline: Pipeline, events: int) -> None:
    """Counts, maxima and sums."""
    pipeline.await_recount()
    expected = totals(events)
    with Client(pipeline.address, timeout=5) as client:
        found = client.get_many(pipeline.application, STATE, sorted(expected))
    assert [answer.value.total for answer in found] == [expected[key] for key in sorted(expected)]


def test_a_server_killed_within_epochs_adds_nothing_twice(pipeline: Pipeline) -> None:
    steps = [Step.SERVER_STAGED, Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_STORE_WRITTEN, Step.SERVER_COMMITTED]
    events = EVENTS_PER_KILL * (len(steps) + 1)
    pipeline.produce(events)
    pipeline.kill_server_at(steps)
    await_recount(pipeline, events)
    assert pipeline.driver is not None
    assert pipeline.driver.exit_code is None  # the same query: it never ended


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Step.DRIVER_COMPLETE], id="before on_commit"),
        pytest.param(
            [Step.DRIVER_BEFORE_COMMIT, Step.DRIVER_COMMITTED],
            id="before the epoch is complete",
            marks=pytest.mark.thorough("an aggregating state's batches, and a server's death, run always"),
        ),
    ],
)
def test_batches_that_a_restarted_driver_runs_again_are_added_once(pipeline: Pipeline, steps: list[Step]) -> None:
    events = EVENTS_PER_KILL * (len(steps) + 1)
    pipeline.produce(events)
    pipeline.start_server()
    pipeline.kill_driver_at(steps)
    await_recount(pipeline, events)

    def published() -> dict[int, int]:
        return {int(path.name): int(path.read_text()) for path in (pipeline.directory / "published").iterdir()}

    # And what it wrote elsewhere as its epochs were complete, which is a moment after readers see them.
    pipeline.await_(lambda: sum(published().values()) >= events, "what the last epoch writes elsewhere")
    assert sorted(published()) == list(range(1, len(published()) + 1))
    assert sum(published().values()) == events


SCHEMA = "k string, batch int, m int, whole int, exact decimal(10,2), rough float, word string"
KEYS = [f"k{number}" for number in range(5)]
MOST = (1 << 63) - 1
REDUCERS = {
    "whole": "sum",
    "exact": "sum",
    "rough": "sum",
    "word": "min",
    "any": "count",
    "at": "max",
    "held": "max_by(at)",
    "odd": "any",
    "even": "all",
    "since": "min",
    "held_first": "min_by(since)",
    "left": "first",
    "left_last": "last",
}


def random_rows(batches: int) -> list[list[dict[str, object]]]:
    """With nulls. The floats add up exactly, so that the order in which Spark adds them does not show."""
    draw = random.Random(3)

    def row(batch: int) -> dict[str, object]:
        values: dict[str, object] = {
            "whole": draw.randrange(-(1 << 31), 1 << 31),
            "exact": f"{draw.randrange(-(10**9), 10**9)}.{draw.randrange(100):02}",
            "rough": draw.randrange(1000) / 4,
            "word": draw.choice("abcäé"),
        }
        place = {"k": draw.choice(KEYS), "batch": batch, "m": draw.randrange(3)}
        return place | {name: v for name, v in values.items() if draw.random() < 0.7}

    return [[row(batch) for _ in range(40)] for batch in range(batches)]


def widened(data: DataFrame) -> DataFrame:
    """No two rows have the same `at`: which of them Spark's max_by takes would be chance. What is left falls from batch
    to batch, so that the first one is the highest.
    """
    left = F.when(F.col("word").isNotNull(), 100 - F.col("batch"))
    return data.withColumns(
        {
            "any": F.when(F.col("word") != "a", F.array("whole")),
            "at": F.col("whole"),
            "held": F.struct("exact", "word"),
            "odd": F.col("whole") % 2 != 0,
            "even": F.col("whole") % 2 == 0,
            "since": F.col("whole"),
            "held_first": F.struct("exact", "word"),
            "left": left,
            "left_last": left,
        }
    )


def aggregates() -> list[Column]:
    """What Spark has for each of the reducers."""
    return [
        *(F.sum("whole"), F.sum("exact"), F.sum("rough"), F.min("word"), F.count("any")),
        *(F.max("at"), F.max_by("held", "at"), F.bool_or("odd"), F.bool_and("even")),
        *(F.min("since"), F.min_by("held_first", "since"), F.max("left"), F.min("left_last")),
    ]


@dataclass(frozen=True)
class Summed:
    """Two states of all rows, one by key, the other by key and map key; and the rows as Spark has them at once."""

    scenario: Scenario
    everything: DataFrame


@pytest.fixture(scope="module")
def summed(scenarios: Scenarios) -> Summed:
    scenario, rows = scenarios(), random_rows(3)
    # One that has nothing to go by, of which max_by and min_by are null.
    rows[1].append({"k": "timeless", "batch": 1, "m": 0, "exact": "1.50", "word": "b"})
    of: dict[str, Any] = {"key": "k", "key_groups": 8, "reducers": REDUCERS, "config": scenario.config}
    sink = queryable.together(queryable.reducing("by_key", **of), queryable.reducing("by_entry", map_key="m", **of))
    scenario.run(widened(scenario.stream(SCHEMA, rows)), "append", sink)
    lines = [json.dumps(row) for batch in rows for row in batch]
    spark = scenario.spark
    return Summed(scenario, widened(spark.read.schema(SCHEMA).json(spark.sparkContext.parallelize(lines))))


@pytest.mark.parametrize(
    ("state", "place"),
    [("by_key", ("k",)), ("by_entry", ("k", "m"))],
    ids=["by key", "by key and map key"],
)
def test_the_fields_are_what_sparks_own_aggregates_are_of_all_rows(
    summed: Summed, state: str, place: tuple[str, ...]
) -> None:
    assert {reducer.split("(")[0] for reducer in REDUCERS.values()} == set(ALL_REDUCERS)
    expected = {
        row[: len(place)]: tuple(value.asDict() if isinstance(value, Row) else value for value in row[len(place) :])
        for row in summed.everything.groupBy(*place).agg(*aggregates()).collect()
    }
    found = {names: summed.scenario.get(state, names).value for names in expected}
    assert {names: tuple(value.asdict().values()) for names, value in found.items()} == expected


def test_the_entries_of_a_reducing_map_are_those_that_have_had_rows(summed: Summed) -> None:
    entries = {(key, entry.map_key) for key in [*KEYS, "timeless"] for entry in summed.scenario.scan("by_entry", key)}
    assert entries == {tuple(row) for row in summed.everything.select("k", "m").distinct().collect()}


BATCHES = [
    *random_rows(2),
    [{"k": "full", "word": "a", "whole": 1}],
    [{"k": "full", "word": "b", "whole": 2}, {"k": "k0", "word": "none has had it yet"}],
]


@dataclass(frozen=True)
class Outgrown:
    """A query in update mode, which has ended as a sum outgrew its type.

    Attributes:
        ended: What ended it, as Spark tells it.
        failure: The same, as the sink has it.
    """

    scenario: Scenario
    ended: str
    failure: KeyholeError | None


@pytest.fixture(scope="module")
def outgrown(scenarios: Scenarios) -> Outgrown:
    scenario = scenarios()
    of: dict[str, Any] = {"key": "k", "key_groups": 4, "config": scenario.config}
    sink = queryable.together(
        queryable.reducing("firsts", reducers={"word": "count"}, **of),
        queryable.reducing("sums", reducers={"v": "sum"}, **of).of(
            lambda rows: rows.where("k = 'full'").selectExpr("k", f"if(whole = 1, {MOST}, 1L) AS v")
        ),
    )
    distinct = scenario.stream(SCHEMA, BATCHES).filter("word is not null").dropDuplicates(["k", "word"])
    with pytest.raises(StreamingQueryException) as ended:
        scenario.run(distinct, "update", sink)
    return Outgrown(scenario, str(ended.value), sink.failure)


def test_what_other_stateful_operators_let_through_is_reduced(outgrown: Outgrown) -> None:
    words = {row["word"] for batch in BATCHES[:2] for row in batch if row["k"] == "k0" and "word" in row}
    assert outgrown.scenario.get("firsts", "k0").value.word == len(words)


def test_a_sum_that_outgrows_bigint_ends_the_query_and_changes_nothing(outgrown: Outgrown) -> None:
    assert "the sum in field v does not fit its type bigint" in outgrown.ended
    assert isinstance(outgrown.failure, ValueMismatch)
    assert outgrown.scenario.get("sums", "full").value.v == MOST

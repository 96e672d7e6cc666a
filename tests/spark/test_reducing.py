"""A reducing state fed by Spark: its fields are what Spark's aggregates are; what it refuses of Spark.

Killed at any step of an epoch: tests/processes/test_kill_server.py, test_kill_driver.py.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from keyhole.encoding.reducers import REDUCERS as ALL_REDUCERS
from keyhole.errors import KeyholeError, ValueMismatch
from keyhole.spark import queryable, reductions
from tests.support.scenario import Scenario, Scenarios

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

# Fields with names of their own, several of one column.
NAMED = {
    "rows": reductions.count(),
    "wholes": reductions.count("whole"),
    "most": reductions.max("whole"),
    "held_at_most": reductions.max_by("held", "whole"),
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
        *(F.count("*"), F.count("whole"), F.max("whole"), F.max_by("held", "whole")),
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
    of: dict[str, Any] = {"key": "k", "key_groups": 8, "reducers": REDUCERS | NAMED, "config": scenario.config}
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


BATCHES: list[list[dict[str, Any]]] = [
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

"""A reducing state with real processes: killed within an epoch, it adds each event once; what it refuses of Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.reducers import REDUCERS as ALL_REDUCERS
from keyhole.spark import queryable
from keyhole.steps import Step
from tests.support.counting_job import STATE
from tests.support.pipeline import EVENTS_PER_KILL, Pipeline
from tests.support.streams import RunQuery, Service, Stream


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


@pytest.mark.parametrize("place", [("k",), ("k", "m")], ids=["by key", "by key and map key"])
def test_the_fields_are_what_sparks_own_aggregates_are_of_all_rows(
    spark: SparkSession,
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    place: tuple[str, ...],
) -> None:
    assert {reducer.split("(")[0] for reducer in REDUCERS.values()} == set(ALL_REDUCERS)
    rows, key, map_key = random_rows(3), place[0], place[1:]
    # One that has nothing to go by, of which max_by and min_by are null.
    rows[1].append({"k": "timeless", "batch": 1, "m": 0, "exact": "1.50", "word": "b"})
    config = service.config(application)
    sink = queryable.reducing("sums", key=key, map_key=map_key, key_groups=8, reducers=REDUCERS, config=config)
    run_query(widened(stream(SCHEMA, rows)), "append", sink)
    lines = [json.dumps(row) for batch in rows for row in batch]
    everything = spark.read.schema(SCHEMA).json(spark.sparkContext.parallelize(lines))
    expected = {
        row[: len(place)]: tuple(value.asDict() if isinstance(value, Row) else value for value in row[len(place) :])
        for row in widened(everything).groupBy(*place).agg(*aggregates()).collect()
    }
    with Client(service.proxy) as client:
        found = {names: client.get(application, "sums", names).value for names in expected}
        assert {names: tuple(value.asdict().values()) for names, value in found.items()} == expected
        if map_key:
            entries = {
                (of, entry.map_key) for of in [*KEYS, "timeless"] for entry in client.scan(application, "sums", of)
            }
            assert entries == expected.keys()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_running_results_of_a_streaming_aggregation_are_refused(
    stream: Stream, run_query: RunQuery, service: Service, application: str, mode: str
) -> None:
    sink = queryable.reducing("sums", key="k", reducers={"n": "sum"}, config=service.config(application))
    counts = stream(SCHEMA, random_rows(1)).groupBy("k").agg(F.count("*").alias("n"))
    with pytest.raises(StreamingQueryException, match=f"reducing state 'sums' can't be fed .* {mode} mode"):
        run_query(counts, mode, sink)
    assert isinstance(sink.failure, InvalidConfiguration)


def test_what_other_stateful_operators_let_through_is_reduced(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.reducing("firsts", key="k", reducers={"word": "count"}, config=service.config(application))
    rows = random_rows(2)
    distinct = stream(SCHEMA, rows).filter("word is not null").dropDuplicates(["k", "word"])
    run_query(distinct, "update", sink)
    words = {row["word"] for batch in rows for row in batch if row["k"] == "k0" and "word" in row}
    with Client(service.proxy) as client:
        assert client.get(application, "firsts", "k0").value.word == len(words)


def test_a_sum_that_outgrows_bigint_ends_the_query_and_changes_nothing(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.reducing("sums", key="k", reducers={"v": "sum"}, config=service.config(application))
    batches = [[{"k": "a", "v": (1 << 63) - 1}], [{"k": "a", "v": 1}]]
    with pytest.raises(StreamingQueryException, match="the sum in field v does not fit its type bigint"):
        run_query(stream("k string, v long", batches), "append", sink)
    assert isinstance(sink.failure, ValueMismatch)
    with Client(service.proxy) as client:
        assert client.get(application, "sums", "a").value.v == (1 << 63) - 1

"""What making a state queryable costs: the time of each micro-batch with Keyhole's sink, and with Spark's rows taken by
nobody (`noop`), of the same plan over the same files, the two in turn in one run. One line of JSON per kind of state.

    uv run python -m benchmarks.overhead [--rows 100000] [--batches 8] [--keys 20000] [--kinds value,map,...]

`ratio` is plain Spark's median batch over Keyhole's (1: costs nothing; the goal is 0.85), `updates_per_second` what one
state server takes in meanwhile, Spark's share of the time included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.batches import WARM_BATCHES, plain, spread, stream, timed, write_file
from benchmarks.cluster import Cluster, cluster
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.session import local_settings, start_session

APPLICATION = "overhead"
SCHEMA = "k long, m int, v double, at timestamp"
KEY_GROUPS = 16


class Mean:
    """Sum and number."""

    commutative = True

    def create(self) -> list[float]:
        return [0.0, 0.0]

    def add(self, accumulator: list[float], row: Any) -> list[float]:
        accumulator[0] += row.v
        accumulator[1] += 1
        return accumulator

    def merge(self, one: list[float], other: list[float]) -> list[float]:
        return [one[0] + other[0], one[1] + other[1]]

    def result(self, accumulator: list[float]) -> Mapping[str, float]:
        return {"mean": accumulator[0] / accumulator[1]}


@dataclass(frozen=True)
class Case:
    """A plan, and the sink of its results. `mode`: Spark's output mode."""

    plan: Callable[[DataFrame], DataFrame]
    sink: Callable[[JobConfig], Callable[[DataFrame, int], None]]
    mode: str = "append"


def _rows(data: DataFrame) -> DataFrame:
    return data


def _highest(data: DataFrame) -> DataFrame:
    return data.groupBy("k").agg(F.max("v").alias("highest"), F.count("*").alias("n"))


def _hourly(data: DataFrame) -> DataFrame:
    counts = data.withWatermark("at", "1 hour").groupBy("k", F.window("at", "1 hour").alias("w")).count()
    return counts.select("k", F.col("w.start").alias("hour"), "count")


CASES: dict[str, Case] = {
    "value": Case(_highest, lambda config: queryable.value("value", key="k", **_options(config)), "update"),
    "map": Case(_hourly, lambda config: queryable.map("map", key="k", map_key="hour", **_options(config)), "update"),
    "list": Case(
        _rows, lambda config: queryable.list("list", key="k", value=["v"], max_length=100, **_options(config))
    ),
    "reducing": Case(
        _rows,
        lambda config: queryable.reducing("reducing", key="k", reducers={"v": "sum", "m": "count"}, **_options(config)),
    ),
    "aggregating": Case(
        _rows,
        lambda config: queryable.aggregating(
            "aggregating", key="k", aggregator=Mean(), result="mean double", value=["v"], **_options(config)
        ),
    ),
}


def _options(config: JobConfig) -> Any:
    return {"key_groups": KEY_GROUPS, "config": config, "on_new_checkpoint": "reset"}


def main() -> None:
    """Prints one line of JSON per kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows per batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--kinds", default=",".join(CASES))
    options = parser.parse_args()
    with cluster() as running, tempfile.TemporaryDirectory(prefix="keyhole-overhead-") as directory:
        spark = start_session(
            "overhead", local_settings([], Path(directory), quick=False) | {"spark.log.level": "ERROR"}
        )
        source = Path(directory) / "source"
        write_source(source, options.rows, WARM_BATCHES + options.batches, options.keys)
        for kind in options.kinds.split(","):
            print(
                json.dumps({"benchmark": "overhead", "kind": kind} | measured(kind, spark, running, source)), flush=True
            )
        spark.stop()


def write_source(folder: Path, rows: int, batches: int, keys: int) -> None:
    """One file per batch."""
    folder.mkdir()
    draw = np.random.default_rng(1)
    for number in range(batches):
        table = pa.table(
            {
                "k": draw.integers(0, keys, rows),
                "m": draw.integers(0, 1000, rows, dtype=np.int32),
                "v": draw.random(rows),
                "at": pa.array(
                    1_760_000_000_000_000 + number * 600_000_000 + draw.integers(0, 600_000_000, rows),
                    pa.timestamp("us", "UTC"),
                ),
            }
        )
        write_file(folder, number, table)


def measured(kind: str, spark: SparkSession, running: Cluster, source: Path) -> dict[str, Any]:
    """Seconds per batch of both, twice in turn."""
    case = CASES[kind]
    config = JobConfig(APPLICATION, running.servers, running.bootstrap_servers)
    seconds: dict[str, list[float]] = {"plain": [], "keyhole": []}
    files = list(source.iterdir())
    rows = pq.ParquetFile(files[0]).metadata.num_rows
    for turn, side in enumerate(("plain", "keyhole", "plain", "keyhole")):
        seconds[side] += timed(
            case.plan(stream(spark, source, SCHEMA)),
            plain if side == "plain" else case.sink(config),
            batches=len(files),
            # The query's name stays: it is the one that feeds the state.
            name=f"{side}-{kind}",
            checkpoint=source.parent / "checkpoints" / f"{side}-{kind}-{turn}",
            mode=case.mode,
        )
    of_plain, of_keyhole = (statistics.median(of) for of in seconds.values())
    return {
        "batch_seconds": {name: spread(of) for name, of in seconds.items()},
        "ratio": round(of_plain / of_keyhole, 2),
        "updates_per_second": round(rows / of_keyhole),
        "added_seconds_per_batch": round(of_keyhole - of_plain, 2),
    }


if __name__ == "__main__":
    main()

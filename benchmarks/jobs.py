"""What making its state queryable costs each job: its batches with its own sink, beside the same plan whose rows nobody
takes (`noop`). The same records of the job's own source, in the same batches, the two in turn in one run.

    uv run python -m benchmarks.jobs [--jobs golden_signals,vital_signs,...] [--scale 1] [--batches 5]

One line of JSON per job. `ratio` is the plain job's median batch over Keyhole's (1: costs nothing; the goal is 0.85);
`cpu_ratio` the same of processor time, of Spark, the state server and Kafka together. Records that are none are dropped
on both sides: keeping them in a dead-letter topic is no part of making a state queryable.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.batches import WARM_BATCHES, ForeachBatch, plain, spread, stream, timed, write_records
from benchmarks.cluster import Cluster, cluster
from benchmarks.processes import SPARK, Processes, Usage
from jobs.golden_signals import __main__ as golden_signals
from jobs.golden_signals import pipeline as golden_pipeline
from jobs.golden_signals import source as golden_source
from jobs.tweet_impressions import __main__ as tweet_impressions
from jobs.tweet_impressions import pipeline as tweet_pipeline
from jobs.tweet_impressions import source as tweet_source
from jobs.vital_signs import __main__ as vital_signs
from jobs.vital_signs import pipeline as vital_pipeline
from jobs.vital_signs import source as vital_source
from jobs.vital_signs.processor import OUTPUT as VITAL_OUTPUT
from jobs.vital_signs.processor import VitalSigns
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.running import ROCKSDB
from keyhole.spark.session import local_session, local_settings

FILES_PER_BATCH = 2
BEGIN_MS = 1_795_219_200_000


@dataclass(frozen=True)
class Side:
    """A query: from Kafka's records to what the sink takes, and the sink."""

    plan: Callable[[DataFrame], DataFrame]
    sink: ForeachBatch


@dataclass(frozen=True)
class Job:
    """One of jobs/, with Keyhole and without.

    Attributes:
        query: Its name, with Keyhole.
        rows: Of a batch.
        records: Of its source, without end.
        keyhole, without: Made anew for each turn. They get a folder for the job's own files.
        settings: Of Spark's, beside the usual ones.
    """

    query: str
    rows: int
    records: Callable[[], Iterable[bytes]]
    keyhole: Callable[[JobConfig, Path], Side]
    without: Callable[[Path], Side]
    mode: str = "update"
    settings: Mapping[str, str] = field(default_factory=dict)


def _golden_records() -> Iterator[bytes]:
    requests = golden_source.requests(1, BEGIN_MS, golden_source.Shape(per_second=1000))
    return map(golden_source.record, requests)


def _tweet_records() -> Iterator[bytes]:
    return map(tweet_source.record, tweet_source.events(1, tweet_source.BEGIN_MS, tweet_source.Shape()))


def _tweet_hours(records: DataFrame) -> DataFrame:
    return tweet_pipeline.tweet_hours(tweet_pipeline.events(records))


def _vital_records() -> Iterator[bytes]:
    seconds = vital_source.chunks(1, vital_source.BEGIN_US, vital_source.Shape(patients=100))
    return map(vital_source.record, itertools.chain.from_iterable(seconds))


def _vital_keyhole(config: JobConfig, files: Path) -> Side:
    processor = vital_pipeline.exposing()
    sink = queryable.exposed(processor, key_groups=vital_pipeline.KEY_GROUPS, config=config)
    return Side(
        lambda records: vital_pipeline.monitored(vital_pipeline.chunks(records), processor),
        functools.partial(vital_signs.commit, sink, files),
    )


def _vital_without(files: Path) -> Side:
    """The processor as it is, without a QueryableProcessor around it, and the files of closed blobs."""

    def monitored(records: DataFrame) -> DataFrame:
        chunks = vital_pipeline.chunks(records).withWatermark("time", vital_pipeline.DELAY)
        return chunks.groupBy(*vital_pipeline.KEY).transformWithState(VitalSigns(), VITAL_OUTPUT, "Update", "eventTime")

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.foreachPartition(functools.partial(vital_signs.write_files, files))

    return Side(monitored, write)


JOBS: dict[str, Job] = {
    "golden_signals": Job(
        query=golden_pipeline.STATE,
        rows=20_000,
        records=_golden_records,
        keyhole=lambda config, _: Side(golden_pipeline.measurements, golden_signals.state(config, lambda epoch: None)),
        without=lambda _: Side(golden_pipeline.measurements, plain),
        mode="append",
    ),
    "tweet_impressions": Job(
        query=tweet_pipeline.QUERY,
        rows=20_000,
        records=_tweet_records,
        keyhole=lambda config, _: Side(_tweet_hours, tweet_impressions.states(config)),
        without=lambda _: Side(_tweet_hours, plain),
    ),
    "vital_signs": Job(
        query=vital_pipeline.QUERY,
        rows=1_000,
        records=_vital_records,
        keyhole=_vital_keyhole,
        without=_vital_without,
        settings=ROCKSDB,
    ),
}


def main() -> None:
    """Prints one line of JSON per job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--scale", type=float, default=1.0, help="of each job's number of rows in a batch")
    parser.add_argument("--batches", type=int, default=5)
    options = parser.parse_args()
    with cluster() as running, tempfile.TemporaryDirectory(prefix="keyhole-jobs-") as directory:
        settings = local_settings([], Path(directory) / "spark", partitions=4) | {"spark.log.level": "ERROR"}
        spark = local_session("jobs", settings)
        for name in options.jobs.split(","):
            folder = Path(directory) / name
            folder.mkdir()
            line = measured(name, spark, running, folder, round(JOBS[name].rows * options.scale), options.batches)
            print(json.dumps({"benchmark": "jobs", "job": name} | line), flush=True)
        spark.stop()


def measured(name: str, spark: SparkSession, running: Cluster, folder: Path, rows: int, batches: int) -> dict[str, Any]:
    """Each side once to warm up, and then twice, there and back.

    Args:
        folder: Empty, for all that is written.
        rows: Of a batch.
        batches: That are counted, in a turn.
    """
    job, processes = JOBS[name], Processes(running.pids)
    records = iter(job.records())
    source = folder / "records"
    number = WARM_BATCHES + batches
    write_records(source, (list(itertools.islice(records, rows)) for _ in range(number)), FILES_PER_BATCH)
    seconds: dict[str, list[float]] = {"plain": [], "keyhole": []}
    cpu: dict[str, list[dict[str, float]]] = {"plain": [], "keyhole": []}
    for key, value in job.settings.items():
        spark.conf.set(key, value)
    for turn, side in enumerate(("plain", "keyhole", "plain", "keyhole", "keyhole", "plain")):
        files = folder / f"files-{turn}"
        # Each turn feeds states of its own, which begin empty.
        config = JobConfig(f"{name.replace('_', '-')}-{turn}", running.servers, running.bootstrap_servers)
        made = job.keyhole(config, files) if side == "keyhole" else job.without(files)
        looks: list[Usage] = []
        batch_seconds = timed(
            made.plan(stream(spark, source, files_per_batch=FILES_PER_BATCH)),
            made.sink,
            batches=number,
            name=job.query if side == "keyhole" else "plain",
            checkpoint=folder / f"checkpoint-{turn}",
            mode=job.mode,
            each=lambda looks=looks: looks.append(processes.usage()),  # type: ignore[misc]
        )
        if turn >= 2:
            seconds[side] += batch_seconds
            cpu[side].append({of: taken / batches for of, taken in looks[-1].since(looks[0]).items()})
    for key in job.settings:
        spark.conf.unset(key)
    median = {side: statistics.median(of) for side, of in seconds.items()}
    # The other processes idle beside the plain job.
    totals = {"plain": [of[SPARK] for of in cpu["plain"]], "keyhole": [sum(of.values()) for of in cpu["keyhole"]]}
    return {
        "rows_per_batch": rows,
        "batch_seconds": {side: spread(of) for side, of in seconds.items()},
        "rows_per_second": {side: round(rows / of) for side, of in median.items()},
        "ratio": round(median["plain"] / median["keyhole"], 2),
        "cpu_seconds_per_batch": {side: spread(of) for side, of in totals.items()},
        "of_which": {of: round(statistics.median(turn[of] for turn in cpu["keyhole"]), 2) for of in cpu["keyhole"][0]},
        "cpu_ratio": round(statistics.median(totals["plain"]) / statistics.median(totals["keyhole"]), 2),
    }


if __name__ == "__main__":
    main()

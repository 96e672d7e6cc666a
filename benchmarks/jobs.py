"""What making its state queryable costs each job: its batches with its own sink, beside the same results, which nobody
keeps: what Spark makes goes to `noop`, and what an aggregator makes of a batch is thrown away. The same records of the
job's own source, in the same batches, the two in turn in one run.

    uv run python -m benchmarks.jobs [--jobs golden_signals,vital_signs,...] [--scale 1] [--batches 5]

One line of JSON per job. Batches are as large as the job itself makes them where there is more than it can take in
(its `max_offsets_per_trigger`), so that rows per second are what it can; with `--scale` below 1 they are as small as
where it keeps up, and what each epoch costs, however few rows it has, shows. `ratio` is the plain job's median batch
over Keyhole's (1: costs nothing; the goal is 0.85); `cpu_ratio` the same of processor time, of Spark, the state server
and Kafka together. Records that are none are dropped on both sides: keeping them in a dead-letter topic is no part of
making a state queryable.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.batches import PARTITIONS, WARM_BATCHES, ForeachBatch, plain, spread, stream, timed, write_records
from benchmarks.cluster import Cluster, cluster
from benchmarks.processes import SPARK, Processes, Usage
from benchmarks.redis_signals import aggregated_only
from jobs.fraud_detection import __main__ as fraud_detection
from jobs.fraud_detection import pipeline as fraud_pipeline
from jobs.fraud_detection import source as fraud_source
from jobs.fraud_detection.config import FraudDetectionConfig
from jobs.fraud_detection.processor import OUTPUT as FRAUD_OUTPUT
from jobs.fraud_detection.processor import PairFinder
from jobs.golden_signals import __main__ as golden_signals
from jobs.golden_signals import pipeline as golden_pipeline
from jobs.golden_signals import source as golden_source
from jobs.golden_signals.config import GoldenSignalsConfig
from jobs.temperature_monitor import __main__ as temperature_monitor
from jobs.temperature_monitor import pipeline as temperature_pipeline
from jobs.temperature_monitor import source as temperature_source
from jobs.temperature_monitor.config import TemperatureMonitorConfig
from jobs.temperature_monitor.processor import OUTPUT as TEMPERATURE_OUTPUT
from jobs.temperature_monitor.processor import Sensors
from jobs.tweet_impressions import __main__ as tweet_impressions
from jobs.tweet_impressions import pipeline as tweet_pipeline
from jobs.tweet_impressions import source as tweet_source
from jobs.tweet_impressions.config import TweetImpressionsConfig
from jobs.tweet_impressions.top_tweets import Ranked, TopTweets
from jobs.vital_signs import __main__ as vital_signs
from jobs.vital_signs import pipeline as vital_pipeline
from jobs.vital_signs import source as vital_source
from jobs.vital_signs.config import VitalSignsConfig
from jobs.vital_signs.processor import OUTPUT as VITAL_OUTPUT
from jobs.vital_signs.processor import VitalSigns
from keyhole.config import JobConfig, TopicJobConfig
from keyhole.spark import queryable
from keyhole.spark.running import ROCKSDB
from keyhole.spark.session import local_settings, start_session
from keyhole.spark.worker.stage import written

FILES_PER_BATCH = 2
BEGIN_MS = 1_795_219_200_000
_BLOB_US = 60_000_000  # the job's default


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
        config: Of the job's process, which says how many rows its batches have at most.
        records: Of its source, without end.
        keyhole, without: Made anew for each turn. They get a folder for the job's own files.
        settings: Of Spark's, beside the usual ones.
    """

    query: str
    config: type[TopicJobConfig]
    records: Callable[[], Iterable[bytes]]
    keyhole: Callable[[JobConfig, Path], Side]
    without: Callable[[Path], Side]
    mode: str = "update"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Of a batch, where there are as many."""
        (most,) = (of.default for of in dataclasses.fields(self.config) if of.name == "max_offsets_per_trigger")
        assert isinstance(most, int)
        return most


def _all_of(*sinks: ForeachBatch) -> ForeachBatch:
    """One after the other, of a batch that is computed once."""

    def run(batch: DataFrame, batch_id: int) -> None:
        batch = batch.persist()
        try:
            for sink in sinks:
                sink(batch, batch_id)
        finally:
            batch.unpersist()

    return run


def _golden_records() -> Iterator[bytes]:
    requests = golden_source.requests(1, BEGIN_MS, golden_source.Shape(per_second=1000))
    return map(golden_source.record, requests)


def _tweet_records() -> Iterator[bytes]:
    return map(tweet_source.record, tweet_source.events(1, tweet_source.BEGIN_MS, tweet_source.Shape()))


def _tweet_hours(records: DataFrame) -> DataFrame:
    return tweet_pipeline.tweet_hours(tweet_pipeline.events(records))


def _tweet_without(_: Path) -> Side:
    """The hours' counts, and the best tweets of each hour as far as a batch knows them."""

    def best(batch: DataFrame, batch_id: int) -> None:
        rows = batch.select(tweet_pipeline.TOP_TWEETS_KEY, *Ranked._fields)
        placed = rows.repartition(PARTITIONS, tweet_pipeline.TOP_TWEETS_KEY)
        placed.mapInArrow(_best_tweets, "hours bigint").collect()

    return Side(_tweet_hours, _all_of(plain, best))


def _best_tweets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    best, of_hours = TopTweets(), {}
    for batch in batches:
        for hour, *row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            of_hours[hour] = best.add(of_hours.get(hour, best.create()), Ranked(*row))
    results = [best.result(of) for of in of_hours.values()]
    yield pa.record_batch({"hours": pa.array([len(results)], pa.int64())})


def _vital_records() -> Iterator[bytes]:
    seconds = vital_source.chunks(1, vital_source.BEGIN_US, vital_source.Shape(patients=100))
    return map(vital_source.record, itertools.chain.from_iterable(seconds))


def _vital_keyhole(config: JobConfig, files: Path) -> Side:
    processor = vital_pipeline.exposing(_BLOB_US)
    return Side(
        lambda records: vital_pipeline.monitored(vital_pipeline.chunks(records), processor),
        vital_signs.states(processor, config, files),
    )


def _vital_without(files: Path) -> Side:
    """The processor as it is, without a QueryableProcessor around it, and the files of closed blobs."""

    def monitored(records: DataFrame) -> DataFrame:
        chunks = vital_pipeline.chunks(records).withWatermark("time", vital_pipeline.DELAY)
        return chunks.groupBy(*vital_pipeline.KEY).transformWithState(
            VitalSigns(_BLOB_US), VITAL_OUTPUT, "Update", "eventTime"
        )

    def write(batch: DataFrame, batch_id: int) -> None:
        task = functools.partial(written, functools.partial(vital_signs.write_files, files))
        batch.mapInArrow(task, "nothing int").collect()

    return Side(monitored, write)


def _fraud_records() -> Iterator[bytes]:
    payments = fraud_source.payments(1, fraud_source.BEGIN_MS, fraud_source.Shape(per_second=200))
    return map(fraud_source.payment_record, payments)


def _fraud_tables() -> tuple[DataFrame, DataFrame]:
    """A few rules and aggregations, as from their topics."""
    rules = map(fraud_source.rule_record, itertools.islice(fraud_source.rules(fraud_source.BEGIN_MS), 4))
    to = itertools.islice(fraud_source.aggregations(fraud_source.BEGIN_MS), 4)
    totals = [fraud_source.aggregation_record(each) for each in to if each.by in ("account", "merchant")]
    spark = SparkSession.active()
    both = [
        spark.createDataFrame([(value, number) for number, value in enumerate(values)], "value binary, offset long")
        for values in (rules, totals)
    ]
    return fraud_pipeline.rules(both[0]), fraud_pipeline.aggregations(both[1])


def _fraud_keyhole(config: JobConfig, _: Path) -> Side:
    """Rules and aggregations are broadcast before, and read by each batch. What is spent has a query of its own, which
    neither side runs."""
    names = (
        (fraud_pipeline.RULES, fraud_pipeline.RULES_KEY),
        (fraud_pipeline.AGGREGATIONS, fraud_pipeline.AGGREGATIONS_KEY),
    )
    for (name, key), rows in zip(names, _fraud_tables(), strict=True):
        queryable.broadcast(name, key=key, order_by=fraud_pipeline.PUBLISHED, query=name, config=config).bootstrap(rows)
    processor = fraud_pipeline.exposing()
    return Side(
        lambda records: fraud_pipeline.paired(fraud_pipeline.payments(records), processor),
        fraud_detection.states(processor, config),
    )


def _fraud_without(_: Path) -> Side:
    """The processor as it is, and alerts and what adds up to totals, by tables that stay the same."""
    rules, aggregations = _fraud_tables()

    def paired(records: DataFrame) -> DataFrame:
        payments = fraud_pipeline.payments(records).withWatermark("time", fraud_pipeline.DELAY).drop("time")
        return payments.groupBy(fraud_pipeline.KEY).transformWithState(
            PairFinder(), FRAUD_OUTPUT, "Update", "eventTime"
        )

    def alerts(batch: DataFrame, batch_id: int) -> None:
        plain(fraud_pipeline.alerts(batch, rules), batch_id)

    def totals(batch: DataFrame, batch_id: int) -> None:
        plain(fraud_pipeline.contributions(fraud_pipeline.arrived(batch), aggregations), batch_id)

    return Side(paired, _all_of(alerts, totals))


def _temperature_records() -> Iterator[bytes]:
    begin = datetime.fromtimestamp(BEGIN_MS / 1000, UTC)
    for number, reading in enumerate(temperature_source.fleet(1000)):
        yield temperature_source.record(reading, begin + timedelta(milliseconds=number))


def _thresholds() -> DataFrame:
    updates = itertools.islice(temperature_source.updates(), len(temperature_source.WATCHED))
    return SparkSession.active().createDataFrame(list(updates), temperature_pipeline.THRESHOLD_SCHEMA)


def _temperature_keyhole(config: JobConfig, _: Path) -> Side:
    """Thresholds are broadcast before, and read by each batch."""
    name = temperature_pipeline.THRESHOLDS
    queryable.broadcast(name, key=temperature_pipeline.KEY, query=name, config=config).bootstrap(_thresholds())
    processor = temperature_pipeline.exposing()
    return Side(
        lambda records: temperature_pipeline.tracked(temperature_pipeline.readings(records), processor),
        temperature_monitor.states(processor, config),
    )


def _temperature_without(_: Path) -> Side:
    """The processor as it is, and alerts by thresholds that stay the same."""
    thresholds = _thresholds()

    def tracked(records: DataFrame) -> DataFrame:
        readings = temperature_pipeline.readings(records).withWatermark("time", temperature_pipeline.DELAY)
        return readings.groupBy(temperature_pipeline.KEY).transformWithState(
            Sensors(), TEMPERATURE_OUTPUT, "Update", "eventTime"
        )

    return Side(tracked, lambda batch, batch_id: plain(temperature_pipeline.alerts(batch, thresholds), batch_id))


JOBS: dict[str, Job] = {
    "temperature_monitor": Job(
        query=temperature_pipeline.STATE,
        config=TemperatureMonitorConfig,
        records=_temperature_records,
        keyhole=_temperature_keyhole,
        without=_temperature_without,
        settings=ROCKSDB,
    ),
    "golden_signals": Job(
        query=golden_pipeline.STATE,
        config=GoldenSignalsConfig,
        records=_golden_records,
        keyhole=lambda config, _: Side(golden_pipeline.measurements, golden_signals.state(config, lambda epoch: None)),
        without=lambda _: Side(golden_pipeline.measurements, aggregated_only),
        mode="append",
    ),
    "tweet_impressions": Job(
        query=tweet_pipeline.QUERY,
        config=TweetImpressionsConfig,
        records=_tweet_records,
        keyhole=lambda config, _: Side(_tweet_hours, tweet_impressions.states(config)),
        without=_tweet_without,
    ),
    "vital_signs": Job(
        query=vital_pipeline.QUERY,
        config=VitalSignsConfig,
        records=_vital_records,
        keyhole=_vital_keyhole,
        without=_vital_without,
        settings=ROCKSDB,
    ),
    "fraud_detection": Job(
        query=fraud_pipeline.QUERY,
        config=FraudDetectionConfig,
        records=_fraud_records,
        keyhole=_fraud_keyhole,
        without=_fraud_without,
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
        settings = local_settings([], Path(directory) / "spark", partitions=PARTITIONS, quick=False) | {
            "spark.log.level": "ERROR"
        }
        spark = start_session("jobs", settings)
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
        config = JobConfig(
            f"{name.replace('_', '-')}-{turn}", running.servers, running.bootstrap_servers, proxy=running.proxy
        )
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

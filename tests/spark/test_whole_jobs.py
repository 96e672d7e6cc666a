"""Jobs with their sources and their recounts, on the Spark, the Kafka and the services that tests share.

What `keyhole job NAME --verify` runs, but for the processes that are the same for every job:
tests/processes/test_jobs.py has these, with jobs of which it tests more. Any other job is run here.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keyhole import Client, logs
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.demo import batch_logs
from keyhole.demo.described_jobs import described, job_names
from keyhole.demo.recount import RecountVerdict, VerifiedJob, entries_by_state, topic_ends
from keyhole.local.processes import Child
from tests.support.micro_batches import session_settings
from tests.support.pipeline import PATIENCE_SECONDS
from tests.support.streams import Service
from tests.support.waiting import LONG_SECONDS

# Jobs whose tests need more than what tests share, and the files of these tests.
ELSEWHERE = {
    "fraud_detection": "tests/processes/test_jobs.py",
    "temperature_monitor": "tests/smoke/test_demo.py",
    "vital_signs": "tests/processes/test_jobs.py",
}
# Of the tweets, hours close, and some events are hours late.
FEW = {"KEYHOLE_TWEETS_EVENTS_PER_HOUR": "100", "KEYHOLE_TWEETS_TOO_LATE": "0.02"}
RECORDS, PER_BATCH = 1500, 250


def run(name: str, spark: SparkSession, service: Service, directory: Path) -> tuple[RecountVerdict, dict[str, int]]:
    """A job that takes all that its source has sent before; what its recount says, and how many entries it has."""
    job, checkpoint, copies = described(name), directory / "checkpoint", directory / "logs"
    of_job = {"SHUFFLE_PARTITIONS": "2", "MAX_OFFSETS_PER_TRIGGER": str(PER_BATCH)}
    of_source = {"MALFORMED": "0.02", "RATE": "1000"}
    given = FEW | {job.prefix + name: value for name, value in of_job.items()}
    given |= {job.source_prefix + name: value for name, value in of_source.items()}
    spec = job.spec(directory, checkpoint, "", given)
    make_topics(service.bootstrap_servers, spec.topics, LONG_SECONDS)
    to_source = {f"{job.source_prefix}BOOTSTRAP_SERVERS": service.bootstrap_servers}
    to_job = {"KEYHOLE_JOB_SERVERS": service.server, "KEYHOLE_JOB_BOOTSTRAP_SERVERS": service.bootstrap_servers}
    start = importlib.import_module(f"{job.module}.__main__").start
    command = [sys.executable, "-P", "-m", spec.source]
    source = Child("source", command, directory / "source.log", {**os.environ, **spec.source_environ, **to_source})
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while sum(topic_ends(service.bootstrap_servers, job.topic).values()) < RECORDS:
            assert source.exit_code is None, source.output()
            assert time.monotonic() < until
            time.sleep(0.2)
    finally:
        source.terminate()
    query = start({**spec.job_environ, **to_job})
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    batch_logs.keep(checkpoint, copies)
    check = importlib.import_module(job.verify).check
    state, key = job.probe
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        epoch = client.get(job.application, state, key).epoch
        verified = VerifiedJob(service.bootstrap_servers, job.topic, epoch, checkpoint, copies, "")
        return check(verified, client), entries_by_state(client, job.application)


@pytest.mark.parametrize("name", sorted({*job_names()} - {*ELSEWHERE}))
def test_a_job_agrees_with_its_recount_and_keeps_what_it_cant_take(
    name: str, spark: SparkSession, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "configure", lambda level: None)  # those of this process stay
    job = described(name)
    try:
        with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
            verdict, entries = run(name, spark, service, tmp_path)
    finally:
        service.retire(job.application)
    assert verdict.keys == verdict.agreed > 0
    assert verdict.mismatches == 0
    assert verdict.events >= RECORDS
    assert verdict.epoch >= RECORDS // PER_BATCH
    assert set(verdict.rejected) == {job.topic, *job.more_topics.values()}
    assert all(verdict.rejected.values())
    assert sorted(entries) == list(job.states)
    assert all(entries.values()), entries
    if name == "tweet_impressions":
        assert entries["top_tweets"] > 3, "several hours, of which all but the last ones are closed"
        assert verdict.late > 0, verdict


@pytest.mark.core
def test_a_job_that_is_not_run_here_is_run_elsewhere() -> None:
    assert ELSEWHERE.keys() < {*job_names()}
    root = Path(__file__).resolve().parents[2]
    assert not [name for name, file in ELSEWHERE.items() if f'"{name}"' not in (root / file).read_text()]

"""Kafka goes away while a job runs: reads go on, epochs wait, and nothing is lost or counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole import Client
from keyhole.errors import Unconfirmed
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.types import Answer
from tests.support.counting_job import STATE
from tests.support.pipeline import PATIENCE_SECONDS, Pipeline, counted
from tests.support.waiting import LONG_SECONDS

# Kafka may be away for as long as a busy machine takes to start it again.
PATIENT = {
    "KEYHOLE_JOB_KAFKA_DEADLINE_SECONDS": str(PATIENCE_SECONDS),
    "KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS": str(PATIENCE_SECONDS),
}


def ask(pipeline: Pipeline, stale: str) -> list[Answer]:
    """For all keys."""
    with Client(pipeline.address, timeout=LONG_SECONDS) as client:
        return client.get_many(pipeline.application, STATE, sorted(pipeline.expected), stale=stale)


def confirmed(pipeline: Pipeline) -> bool:
    """Whether the owner answers as one that its driver has confirmed."""
    try:
        return not any(answer.source.unconfirmed for answer in ask(pipeline, "never"))
    except Unconfirmed:
        return False


def test_while_kafka_is_away_owners_answer_unconfirmed_and_the_job_goes_on_when_it_is_back(
    jars: list[Path], spark_jars: list[Path], java: Java, tmp_path: Path
) -> None:
    """The driver can't know whether it was replaced: who asks for a confirmed owner is told so; others get answers."""
    with LocalKafka(tmp_path / "kafka", jars, java) as kafka:
        pipeline = Pipeline(tmp_path, kafka.bootstrap_servers, spark_jars)
        try:
            pipeline.produce(1000)
            pipeline.start_server()
            driver = pipeline.start_driver(PATIENT)
            pipeline.await_(lambda: len(pipeline.answers()[0]) > 0, "first answers")
            kafka.kill()
            before, _ = pipeline.answers()
            during, _ = pipeline.answers()
            assert all(during[key] >= value for key, value in before.items())
            kafka.start()
            pipeline.await_recount()

            # Once the query is idle. After its commit an epoch goes on for a moment, and keeps the leases meanwhile.
            pipeline.await_(lambda: confirmed(pipeline), "a confirmed owner")
            kafka.kill()
            pipeline.await_(lambda: not confirmed(pipeline), "end of the lease")
            for _ in range(3):
                answers = ask(pipeline, "when_needed")
                assert counted(sorted(pipeline.expected), answers) == pipeline.expected
                assert all(answer.source.unconfirmed for answer in answers)
                with pytest.raises(Unconfirmed):
                    ask(pipeline, "never")
            kafka.start()
            pipeline.await_(lambda: confirmed(pipeline), "an owner that is confirmed again")
            pipeline.produce(200, seed=8)
            pipeline.await_recount()
            assert driver.exit_code is None
        finally:
            pipeline.close()

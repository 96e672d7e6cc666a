"""Kafka goes away while a job runs: reads go on, epochs wait, and nothing is lost or counted twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.errors import Unconfirmed
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from tests.support.counting_job import STATE
from tests.support.pipeline import Pipeline


@pytest.mark.thorough("reads and the job's going on run always")
def test_while_kafka_is_away_owners_answer_but_nobody_can_confirm_them(
    jars: list[Path], spark_jars: list[Path], java: Java, tmp_path: Path
) -> None:
    """The driver can't know whether it was replaced: who asks for a confirmed owner is told so; others get answers."""
    with LocalKafka(tmp_path / "kafka", jars, java) as kafka:
        pipeline = Pipeline(tmp_path, kafka.bootstrap_servers, spark_jars)
        try:
            pipeline.produce(100)
            pipeline.start_server()
            pipeline.start_driver(per_trigger=100)
            pipeline.await_recount()
            time.sleep(5)  # after its commit an epoch goes on for a moment, and keeps the leases meanwhile
            kafka.kill()
            time.sleep(5)
            keys = sorted(pipeline.expected)
            with Client(pipeline.address) as client:
                for _ in range(20):
                    answers = client.get_many(pipeline.application, STATE, keys)
                    assert all(answer.found and answer.source.unconfirmed for answer in answers)
                    with pytest.raises(Unconfirmed):
                        client.get_many(pipeline.application, STATE, keys, stale="never", timeout=1.0)
                    time.sleep(0.2)
        finally:
            pipeline.close()


def test_reads_go_on_while_kafka_is_away_and_the_job_goes_on_when_it_is_back(
    jars: list[Path], spark_jars: list[Path], java: Java, tmp_path: Path
) -> None:
    with LocalKafka(tmp_path / "kafka", jars, java) as kafka:
        pipeline = Pipeline(tmp_path, kafka.bootstrap_servers, spark_jars)
        try:
            pipeline.produce(3000)
            pipeline.start_server()
            driver = pipeline.start_driver(per_trigger=100)
            pipeline.await_(lambda: len(pipeline.answers()[0]) > 0, "first answers")
            kafka.kill()
            before, _ = pipeline.answers()
            time.sleep(3)
            during, _ = pipeline.answers()
            assert before.keys() <= during.keys()
            kafka.start()
            pipeline.await_recount()
            assert driver.exit_code is None
        finally:
            pipeline.close()

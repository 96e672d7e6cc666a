"""Kafka goes away while a job runs: reads go on, epochs wait, and nothing is lost or counted twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from tests.support.pipeline import Pipeline

pytestmark = pytest.mark.integration


def test_reads_go_on_while_kafka_is_away_and_the_job_goes_on_when_it_is_back(
    jars: list[Path], spark_jars: list[Path], java: Java, tmp_path: Path
) -> None:
    with LocalKafka(tmp_path / "kafka", jars, java) as kafka:
        pipeline = Pipeline(tmp_path, kafka.bootstrap_servers, spark_jars)
        try:
            pipeline.produce(3000)
            pipeline.start_server()
            driver = pipeline.start_driver(per_trigger=100)
            pipeline.await_(lambda: len(pipeline.answers()[0]) > 0, 90, "first answers")
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

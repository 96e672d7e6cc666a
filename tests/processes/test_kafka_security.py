"""Kafka that takes only who has a password, over TLS: a job reads it, and its changelog is kept there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.changelog.kafka.brokers import client_settings
from keyhole.changelog.kafka.record_topics import await_topic, make_topics
from keyhole.config import JobConfig, TopicJobConfig
from keyhole.errors import InvalidConfiguration
from keyhole.local.java import Java
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.spark import queryable
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.running import records
from tests.support.secured_kafka import secured_kafka
from tests.support.streams import RunQuery
from tests.support.waiting import LONG_SECONDS

_PASSWORD = "the-right-one"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, jars: Sequence[Path], java: Java) -> Iterator[str]:
    """The address, with the file of settings that opens it."""
    directory = tmp_path_factory.mktemp("secured")
    with secured_kafka(directory, jars, java, _PASSWORD) as address:
        settings = (directory / "kafka.properties").read_text()
        (directory / "wrong.properties").write_text(settings.replace(_PASSWORD, "wrong"))
        yield address


def test_a_job_reads_from_it_and_its_state_is_kept_there(
    spark: SparkSession, run_query: RunQuery, secured: str, application: str, tmp_path: Path
) -> None:
    make_topics(secured, {application: 1}, LONG_SECONDS)
    producer = Producer(client_settings(secured))
    producer.produce(application, json.dumps({"k": "k0", "v": 7}))
    assert producer.flush(LONG_SECONDS) == 0
    server, proxy = free_ports(2)
    environ = dict(os.environ)
    with ExitStack() as ending:
        started = start_state_server("secured", server, bootstrap_servers=secured, directory=tmp_path, environ=environ)
        ending.callback(started.terminate)
        started = start_client_proxy(
            "proxy", proxy, servers=[f"127.0.0.1:{server}"], directory=tmp_path, environ=environ
        )
        ending.callback(started.terminate)
        job = JobConfig(application=application, servers=(f"127.0.0.1:{server}",), bootstrap_servers=secured)
        config = TopicJobConfig(topic=application, checkpoint=str(tmp_path / "checked"), directory=tmp_path)
        parsed = F.from_json(F.col("value").cast("string"), "k string, v long").alias("of")
        rows = records(spark, secured, config).select(parsed).select("of.*")
        # Which Spark's page shows, and which ends a query's error.
        assert _PASSWORD not in classic(rows)._jdf.queryExecution().toString()
        run_query(rows, "append", queryable.value("last", key="k", config=job))
        with Client(f"127.0.0.1:{proxy}", timeout=LONG_SECONDS) as client:
            assert client.get(application, "last", "k0").value.v == 7


def test_a_wrong_password_is_told_as_such(secured: str) -> None:
    wrong = secured.replace("kafka.properties", "wrong.properties")
    with pytest.raises(InvalidConfiguration, match=r"(?i)authentication"):
        await_topic(wrong, "any", LONG_SECONDS)

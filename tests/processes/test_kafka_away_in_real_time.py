"""Kafka is away under a real-time query for longer than Spark waits: it ends by name, and the next start goes on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from keyhole import Client
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.config import JobConfig
from keyhole.errors import KafkaUnreachable, KeyholeError
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.spark import queryable
from keyhole.spark.queryable import RealTimeQuery
from tests.support.waiting import LONG_SECONDS, until

STATE = "sums"


@pytest.fixture
def broker(tmp_path: Path, jars: list[Path], java: Java) -> Iterator[LocalKafka]:
    """A broker of this test's own: it is killed."""
    with LocalKafka(tmp_path / "kafka", jars, java) as started:
        yield started


def rows_of(spark: SparkSession, kafka: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "startingOffsets": "earliest"}
    # As long as by default, it would take Spark three minutes to give up.
    short = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
    rows = spark.readStream.format("kafka").options(**options, **short).load()
    return rows.selectExpr("partition", "offset", "'a' AS k", "bigint(string(value)) AS n")


def test_spark_ends_the_query_by_name_readers_go_on_and_the_next_start_counts_each_row_once(
    spark: SparkSession, broker: LocalKafka, tmp_path: Path
) -> None:
    kafka, application = broker.bootstrap_servers, f"app-{uuid.uuid4().hex[:8]}"
    topic = f"{application}-events"
    server_port, proxy_port = free_ports(2)
    address = f"127.0.0.1:{server_port}"
    config = JobConfig(application, (address,), kafka, epoch_deadline_seconds=5 * LONG_SECONDS)

    def start() -> RealTimeQuery:
        sink = queryable.reducing(STATE, key="k", reducers={"n": "sum"}, key_groups=2, config=config)
        place = str(tmp_path / "checkpoint")
        return queryable.realtime(rows_of(spark, kafka, topic), sink, checkpoint=place, batch="5 seconds")

    with ExitStack() as ending:
        environ = dict(os.environ)
        server = start_state_server(
            "server-0", server_port, bootstrap_servers=kafka, directory=tmp_path, environ=environ
        )
        ending.callback(server.kill)
        proxy = start_client_proxy("proxy", proxy_port, servers=[address], directory=tmp_path, environ=environ)
        ending.callback(proxy.kill)
        client = ending.enter_context(Client(f"127.0.0.1:{proxy_port}", timeout=LONG_SECONDS / 2))
        make_topics(kafka, {topic: 1}, LONG_SECONDS)
        producer = Producer({"bootstrap.servers": kafka})

        def send(*values: int) -> None:
            for value in values:
                producer.produce(topic, str(value))
            assert producer.flush(LONG_SECONDS) == 0

        def total() -> int | None:
            with suppress(KeyholeError):
                found = client.get(application, STATE, "a")
                return found.value.n if found.found else None
            return None

        query = start()
        send(1, 2)
        until(lambda: total() == 3, LONG_SECONDS, 0.2)
        broker.kill()
        with pytest.raises(KafkaUnreachable, match="start it again with the checkpoint that it has"):
            assert query.awaitTermination(5 * LONG_SECONDS)
        assert total() == 3, "readers go on"
        broker.start()
        send(10)
        query = start()
        until(lambda: total() == 13, LONG_SECONDS, 0.2)
        query.stop()

"""What a job is refused, by name, with nothing lost: changed states, foreign topics, a Kafka that is not there.

One query runs all of it: a batch whose sink is refused raises the sink's error, and the query goes on. That the error
ends a query that doesn't look after it is shown with one of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import keyhole
from keyhole.config import JobConfig
from keyhole.errors import (
    EpochFailed,
    KafkaUnreachable,
    KeyTooLong,
    NullKey,
    StateChanged,
    StateConflict,
    TopicMismatch,
)
from keyhole.local.ports import free_ports
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.micro_batches import MicroBatches
from tests.support.streams import Service
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS

ROWS = [{"k": "a", "v": 1}]


@pytest.fixture(scope="module")
def batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroBatches]:
    with MicroBatches(spark, tmp_path_factory.mktemp("job"), "k string, v bigint") as batches:
        yield batches


def last(config: JobConfig, *, query: str = "", key_groups: int = 4) -> Sink:
    """The state `last`, of a query of its application's own name."""
    return queryable.value("last", key="k", query=query or config.application, key_groups=key_groups, config=config)


def value(service: Service, application: str) -> int:
    """Of the key a."""
    with keyhole.Client(service.proxy, timeout=LONG_SECONDS) as client:
        found: int = client.get(application, "last", "a").value.v
    return found


def test_a_second_state_under_the_same_name_is_refused(
    batches: MicroBatches, service: Service, application: str
) -> None:
    """F02."""
    batches.run(ROWS, last(service.config(application)))
    other = last(service.config(application), query="other")
    with pytest.raises(StateConflict, match="fed by query") as refused:
        batches.run([{"k": "a", "v": 9}], other)
    assert other.failure is refused.value
    assert value(service, application) == 1


def test_a_topic_of_another_making_is_refused_with_the_difference(
    batches: MicroBatches, service: Service, application: str
) -> None:
    make_topic(service.bootstrap_servers, f"keyhole.{application}.last", 3)
    with pytest.raises(TopicMismatch, match="partitions") as refused:
        batches.run(ROWS, last(service.config(application)))
    assert "cleanup.policy" in refused.value.message


def test_a_null_key_is_refused_by_its_column_and_nothing_of_the_epoch_is_there(
    batches: MicroBatches, service: Service, application: str
) -> None:
    sink = last(service.config(application))
    batches.run(ROWS, sink)
    with pytest.raises(NullKey, match="null"):
        batches.run([{"k": "a", "v": 2}, {"v": 3}], sink)
    assert value(service, application) == 1


def test_a_key_longer_than_the_store_takes_is_refused_with_the_limit(
    batches: MicroBatches, service: Service, application: str
) -> None:
    sink = last(service.config(application))
    batches.run(ROWS, sink)
    with pytest.raises(KeyTooLong, match="511"):
        batches.run([{"k": "x" * 600, "v": 2}], sink)
    assert value(service, application) == 1


def test_a_kafka_that_is_not_there_is_named(batches: MicroBatches, service: Service, application: str) -> None:
    (port,) = free_ports(1)
    config = JobConfig(application, (service.server,), f"127.0.0.1:{port}", kafka_deadline_seconds=3)
    with pytest.raises(KafkaUnreachable, match=f"127.0.0.1:{port}"):
        batches.run(ROWS, last(config))


def test_state_servers_that_are_not_there_are_named(batches: MicroBatches, service: Service, application: str) -> None:
    (port,) = free_ports(1)
    config = JobConfig(application, (f"127.0.0.1:{port}",), service.bootstrap_servers, epoch_deadline_seconds=3)
    with pytest.raises(EpochFailed, match=f"127.0.0.1:{port}"):
        batches.run(ROWS, last(config))


def test_a_state_that_is_declared_otherwise_ends_the_query_with_the_difference(
    batches: MicroBatches, service: Service, application: str
) -> None:
    batches.run(ROWS, last(service.config(application)))
    batches.stop()
    otherwise = last(service.config(application), key_groups=8)
    with pytest.raises(StreamingQueryException, match="key_groups was 4, is 8"):
        batches.fail([{"k": "a", "v": 2}], otherwise)
    assert isinstance(otherwise.failure, StateChanged)
    assert value(service, application) == 1


def test_spark_reads_why_a_query_ended_out_of_any_text(spark: SparkSession) -> None:
    """By an expression as in StreamExecution (Spark 4.2): of a cancelled job's text it had overflowed the stack."""
    assert spark._jvm is not None
    text = "py4j.protocol.Py4JJavaError: " + "\tat org.apache.spark.A.b(A.scala:1)\n" * 600
    pattern = r"py4j.protocol.Py4JJavaError(.|\r\n|\r|\n)*(java.lang.InterruptedException)"
    found = spark._jvm.java.util.regex.Pattern.compile(pattern).matcher(text).find()
    assert not found

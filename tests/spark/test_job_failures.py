"""What a job is refused, by name, with nothing lost: changed states, foreign topics, a Kafka that is not there."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

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
from tests.support.streams import RunQuery, Service, Stream

SCHEMA = "k string, v bigint"
ROWS = [[{"k": "a", "v": 1}]]


def value(service: Service, application: str, key: str = "a") -> int | None:
    with keyhole.Client(service.proxy) as client:
        answer = client.get(application, "last", key)
    return answer.value.v if answer.found else None


def refused(run_query: RunQuery, sink: Sink, rows: object, match: str, **options: str) -> BaseException:
    """Runs the query, which must end with an error that says `match`; returns the sink's own."""
    with pytest.raises(Exception, match=match):
        run_query(rows, "append", sink, **options)
    assert sink.failure is not None
    return sink.failure


@pytest.fixture
def ran(stream: Stream, run_query: RunQuery, service: Service, application: str) -> None:
    """One epoch of the state `last`, by the query `last`."""
    run_query(stream(SCHEMA, ROWS), "append", queryable.value("last", key="k", config=service.config(application)))


@pytest.mark.usefixtures("ran")
def test_a_second_state_under_the_same_name_is_refused(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """F02."""
    other = queryable.value("last", key="k", query="other", config=service.config(application))
    error = refused(run_query, other, stream(SCHEMA, [[{"k": "a", "v": 9}]]), "fed by query", checkpoint="other")
    assert isinstance(error, StateConflict)
    assert value(service, application) == 1


@pytest.mark.usefixtures("ran")
@pytest.mark.parametrize(
    ("schema", "declaration", "difference"),
    [
        (SCHEMA, {"key_groups": 32}, "key_groups was 64, is 32"),
        ("k string, v double", {}, "field 'v' was bigint and is double"),
        ("k bigint, v bigint", {}, "key was k string, is k bigint"),
        (SCHEMA, {"order_by": "v"}, "order_by was none, is v"),
    ],
)
def test_a_state_that_is_declared_otherwise_is_refused_with_the_difference(
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    schema: str,
    declaration: dict[str, object],
    difference: str,
) -> None:
    sink = queryable.value("last", key="k", config=service.config(application), **declaration)  # type: ignore[arg-type]
    rows = stream(schema, [*ROWS, [{"k": 5, "v": 2}]])
    assert isinstance(refused(run_query, sink, rows, difference), StateChanged)
    assert value(service, application) == 1


def test_a_topic_of_another_making_is_refused_with_the_difference(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    topic = f"keyhole.{application}.last"
    admin = AdminClient({"bootstrap.servers": service.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    sink = queryable.value("last", key="k", config=service.config(application))
    error = refused(run_query, sink, stream(SCHEMA, ROWS), "partitions")
    assert isinstance(error, TopicMismatch)
    assert "cleanup.policy" in error.message


def test_a_null_key_is_refused_by_its_column_and_nothing_of_the_epoch_is_there(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.value("last", key="k", config=service.config(application))
    rows = stream(SCHEMA, [ROWS[0], [{"k": "a", "v": 2}, {"v": 3}]])
    assert isinstance(refused(run_query, sink, rows, "null"), NullKey)
    assert value(service, application) == 1


def test_a_key_longer_than_the_store_takes_is_refused_with_the_limit(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.value("last", key="k", config=service.config(application))
    rows = stream(SCHEMA, [ROWS[0], [{"k": "x" * 600, "v": 2}]])
    assert isinstance(refused(run_query, sink, rows, "511"), KeyTooLong)
    assert value(service, application) == 1


def test_a_kafka_that_is_not_there_is_named(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    (port,) = free_ports(1)
    config = JobConfig(application, (service.server,), f"127.0.0.1:{port}", kafka_deadline_seconds=3)
    sink = queryable.value("last", key="k", config=config)
    assert isinstance(refused(run_query, sink, stream(SCHEMA, ROWS), f"127.0.0.1:{port}"), KafkaUnreachable)


def test_state_servers_that_are_not_there_are_named(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    (port,) = free_ports(1)
    config = JobConfig(application, (f"127.0.0.1:{port}",), service.bootstrap_servers, epoch_deadline_seconds=3)
    sink = queryable.value("last", key="k", config=config)
    assert isinstance(refused(run_query, sink, stream(SCHEMA, ROWS), f"127.0.0.1:{port}"), EpochFailed)

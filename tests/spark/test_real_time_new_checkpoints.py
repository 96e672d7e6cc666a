"""A real-time query with a new checkpoint, of whose topic Kafka has deleted what no batch has read: refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import DataFrame

from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.settings import updates_topic_name
from keyhole.errors import ChangelogRecreated, KeyholeError
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.protocol.updates import BoundaryRecord, decode
from keyhole.spark import queryable
from keyhole.spark.driver.query_tasks import QueryTasks
from keyhole.spark.queryable import RealTimeQuery
from keyhole.spark.write_path import real_time
from keyhole.spark.write_path.batch_boundaries import write_boundaries
from tests.support.scenario import Scenario, Scenarios
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS, until

STATE = "sums"


class Killed(BaseException):
    """The driver is gone, in the middle of its start."""


def rows_of(scenario: Scenario, topic: str, key: str = "'a'") -> DataFrame:
    kafka = scenario.service.bootstrap_servers
    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "startingOffsets": "earliest"}
    rows = scenario.spark.readStream.format("kafka").options(**options).load()
    return rows.selectExpr("partition", "offset", f"{key} AS k", "bigint(string(value)) AS n")


def started(
    scenario: Scenario, topic: str, checkpoint: str, *, key: str = "'a'", batch: str = "5 seconds", **options: bool
) -> RealTimeQuery:
    sink = queryable.reducing(STATE, key="k", reducers={"n": "sum"}, key_groups=2, config=scenario.config)
    place = str(scenario.directory / checkpoint)
    return queryable.realtime(rows_of(scenario, topic, key), sink, checkpoint=place, batch=batch, **options)


def delete_below(kafka: str, topic: str, offset: int) -> None:
    with closing(Admin(kafka)) as admin:
        place = TopicPartition(topic, 0, offset)
        answer(admin.client.delete_records([place])[place], LONG_SECONDS)


def bounded(scenario: Scenario) -> int:
    """Up to where batches have read, as the updates topic says."""
    topic = updates_topic_name(scenario.application, STATE)
    with closing(KafkaUpdates(scenario.service.bootstrap_servers, topic)) as updates:
        log = list(map(decode, (value or b"" for value in updates.read(0, *updates.bounds(0)))))
    return max(record.ends.get(0, 0) for record in log if isinstance(record, BoundaryRecord))


def sum_of_a(scenario: Scenario) -> int | None:
    with suppress(KeyholeError):
        found = scenario.client.get(scenario.application, STATE, "a")
        return found.value.n if found.found else None
    return None


def made_source(scenario: Scenario) -> tuple[str, Callable[[Iterable[int]], None]]:
    """A topic of one partition, and what sends values to it: it returns once Kafka has them."""
    kafka, topic = scenario.service.bootstrap_servers, f"{scenario.application}-events"
    make_topic(kafka, topic, 1)
    producer = Producer({"bootstrap.servers": kafka})

    def send(values: Iterable[int]) -> None:
        for value in values:
            producer.produce(topic, str(value))
        assert producer.flush(LONG_SECONDS) == 0

    return topic, send


def test_a_new_checkpoint_passes_over_no_record_that_is_gone_unread(scenarios: Scenarios) -> None:
    scenario = scenarios()
    kafka = scenario.service.bootstrap_servers
    topic, send = made_source(scenario)

    # What is gone before a first start is missed by nobody.
    send([1000, 2000])
    delete_below(kafka, topic, 1)
    query = started(scenario, topic, "first")
    assert bounded(scenario) == 1, "where it begins is on record before its first row"
    send([1, 2])
    until(lambda: sum_of_a(scenario) == 2003 and bounded(scenario) == 4, LONG_SECONDS, 0.2)
    query.stop()

    send([10, 20])
    delete_below(kafka, topic, 5)
    with pytest.raises(ChangelogRecreated, match="offset 4 of partition 0 is next, and it begins at 5"):
        started(scenario, topic, "second")
    assert sum_of_a(scenario) == 2003, "and nobody was disturbed"
    query = started(scenario, topic, "third", from_earliest=True)
    until(lambda: sum_of_a(scenario) == 2023, LONG_SECONDS, 0.2)
    query.stop()


def test_what_an_earlier_checkpoint_has_read_may_be_gone_though_a_later_one_died_as_it_began(
    scenarios: Scenarios, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = scenarios()
    kafka, keys = scenario.service.bootstrap_servers, 50
    topic, send = made_source(scenario)
    key = f"string(bigint(string(value)) % {keys})"

    def total() -> int:
        with suppress(KeyholeError):
            found = scenario.client.get_many(scenario.application, STATE, list(map(str, range(keys))))
            return sum(answer.value.n for answer in found if answer.found)
        return 0

    send(range(100))
    query = started(scenario, topic, "first", key=key)
    until(lambda: bounded(scenario) == 100, LONG_SECONDS, 0.2)
    query.stop()
    # More than a first look back takes, in a batch that never ends.
    query = started(scenario, topic, "first", key=key, batch="10 minutes")
    send(range(100, 5_000))
    until(lambda: total() == sum(range(5_000)), LONG_SECONDS, 0.2)
    query.stop()

    def killed(*arguments: Any) -> None:
        write_boundaries(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(real_time, "write_boundaries", killed)
        with pytest.raises(Killed):
            started(scenario, topic, "second", key=key)
    delete_below(kafka, topic, 100)
    query = started(scenario, topic, "third", key=key)
    send(range(5_000, 5_100))
    until(lambda: total() == sum(range(5_100)), LONG_SECONDS, 0.2)
    query.stop()


def test_a_query_that_has_stopped_sends_nothing_any_more(scenarios: Scenarios) -> None:
    scenario = scenarios()
    topic, send = made_source(scenario)
    # Spark can't interrupt it: a row of value n has n steps.
    key = "if(size(filter(sequence(1, int(string(value))), x -> x % 7 = 0)) < 0, 'b', 'a')"

    query = started(scenario, topic, "first", key=key, batch="10 minutes")
    send([1])
    until(lambda: sum_of_a(scenario) == 1, LONG_SECONDS, 0.05)
    tasks = QueryTasks(scenario.spark.sparkContext, query.query)
    assert tasks() == 1
    send([1_000_000] * 20)
    query.stop()
    assert tasks() == 0

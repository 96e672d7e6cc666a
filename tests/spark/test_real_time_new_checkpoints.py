"""A real-time query with a new checkpoint, of whose topic Kafka has deleted what no batch has read: refused by name."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import DataFrame

from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.settings import updates_topic_name
from keyhole.errors import ChangelogRecreated, KeyholeError
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.protocol.updates import BoundaryRecord, decode
from keyhole.spark import queryable
from keyhole.spark.queryable import RealTimeQuery
from tests.support.scenario import Scenario, Scenarios
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS, until

STATE = "sums"


def rows_of(scenario: Scenario, topic: str) -> DataFrame:
    kafka = scenario.service.bootstrap_servers
    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "startingOffsets": "earliest"}
    rows = scenario.spark.readStream.format("kafka").options(**options).load()
    return rows.selectExpr("partition", "offset", "'a' AS k", "bigint(string(value)) AS n")


def started(scenario: Scenario, topic: str, checkpoint: str, **options: bool) -> RealTimeQuery:
    sink = queryable.reducing(STATE, key="k", reducers={"n": "sum"}, key_groups=2, config=scenario.config)
    place = str(scenario.directory / checkpoint)
    return queryable.realtime(rows_of(scenario, topic), sink, checkpoint=place, batch="5 seconds", **options)


def test_a_new_checkpoint_passes_over_no_record_that_is_gone_unread(scenarios: Scenarios) -> None:
    scenario = scenarios()
    kafka, topic = scenario.service.bootstrap_servers, f"{scenario.application}-events"
    make_topic(kafka, topic, 1)
    producer = Producer({"bootstrap.servers": kafka})

    def send(*values: int) -> None:
        for value in values:
            producer.produce(topic, str(value))
        assert producer.flush(LONG_SECONDS) == 0

    def delete_below(offset: int) -> None:
        with closing(Admin(kafka)) as admin:
            place = TopicPartition(topic, 0, offset)
            answer(admin.client.delete_records([place])[place], LONG_SECONDS)

    def total() -> int | None:
        with suppress(KeyholeError):
            found = scenario.client.get(scenario.application, STATE, "a")
            return found.value.n if found.found else None
        return None

    def bounded() -> int:
        """Up to where batches have read, as the updates topic says."""
        with closing(KafkaUpdates(kafka, updates_topic_name(scenario.application, STATE))) as updates:
            log = list(map(decode, (value or b"" for value in updates.read(0, *updates.bounds(0)))))
        return max(record.ends.get(0, 0) for record in log if isinstance(record, BoundaryRecord))

    # What is gone before a first start is missed by nobody.
    send(1000, 2000)
    delete_below(1)
    query = started(scenario, topic, "first")
    assert bounded() == 1, "where it begins is on record before its first row"
    send(1, 2)
    until(lambda: total() == 2003 and bounded() == 4, LONG_SECONDS, 0.2)
    query.stop()

    send(10, 20)
    delete_below(5)
    with pytest.raises(ChangelogRecreated, match="offset 4 of partition 0 is next, and it begins at 5"):
        started(scenario, topic, "second")
    assert total() == 2003, "and nobody was disturbed"
    query = started(scenario, topic, "third", from_earliest=True)
    until(lambda: total() == 2023, LONG_SECONDS, 0.2)
    query.stop()

"""A sum that micro-batches began goes on in real time, by a savepoint: by a real-time query, and by `keyhole feed`."""

from __future__ import annotations

import io
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.cli.main import main
from keyhole.clock import SystemClock
from keyhole.coordinator.feed_run import FeedRun
from keyhole.errors import KeyholeError
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, reduced_columns
from keyhole.feed.process import FeedProcess
from keyhole.feed.topic_feed import TopicFeed
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.scenario import Scenario, Scenarios
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS, until

STATE = QUERY = "sums"
KEY_GROUPS = 4


class Source:
    """A topic of events, summed as they are sent."""

    def __init__(self, kafka: str, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self.sums: Counter[str] = Counter()
        self._draw = random.Random(topic)
        make_topic(kafka, topic, 2)

    def send(self, events: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(events):
            key, value = f"key-{self._draw.randrange(20)}", self._draw.randrange(1000)
            producer.produce(self.topic, json.dumps({"k": key, "v": value}), partition=number % 2)
            self.sums[key] += value
        assert producer.flush(LONG_SECONDS) == 0


def events(scenario: Scenario, source: Source) -> DataFrame:
    options = {"kafka.bootstrap.servers": source.kafka, "subscribe": source.topic, "startingOffsets": "earliest"}
    rows = scenario.spark.readStream.format("kafka").options(**options).load()
    rows = rows.selectExpr("partition", "offset", "from_json(string(value), 'k string, v bigint') AS event")
    return rows.select("partition", "offset", "event.*")


def sums(scenario: Scenario, application: str) -> Sink:
    config = scenario.service.config(application)
    return queryable.reducing(STATE, key="k", reducers={"v": "sum"}, key_groups=KEY_GROUPS, config=config)


@contextmanager
def by_real_time_query(scenario: Scenario, source: Source, application: str) -> Iterator[None]:
    checkpoint = str(scenario.directory / "real-time")
    query = queryable.realtime(events(scenario, source), sums(scenario, application), checkpoint=checkpoint)
    try:
        yield
    finally:
        query.stop()


@contextmanager
def by_feed(scenario: Scenario, source: Source, application: str) -> Iterator[None]:
    config, clock = scenario.service.config(application), SystemClock()
    fields, reducers = reduced_columns(["v:bigint=sum"])
    declared = describe(FeedOptions(application, STATE, key_columns(["k"]), fields, reducers, key_groups=KEY_GROUPS))
    run = FeedRun(config, QUERY, KafkaChangelog(config.bootstrap_servers, application), clock)
    process = FeedProcess(
        run,
        declared,
        0,
        lambda of, topic_id: TopicFeed(
            config.bootstrap_servers, of, source.topic, RecordFormat.JSON, clock, topic_id=topic_id
        ),
        clock,
    )
    process.start()
    stop = threading.Event()
    feeding = threading.Thread(target=process.feed, args=(stop, lambda _: None))
    feeding.start()
    try:
        yield
    finally:
        stop.set()
        feeding.join()
        process.close()


def done(*words: str) -> list[dict[str, object]]:
    said = io.StringIO()
    with redirect_stdout(said):
        assert main(["savepoint", *words, "--json"]) == 0
    return json.loads(said.getvalue())  # type: ignore[no-any-return]  # rows


@pytest.mark.parametrize("going_on", [by_real_time_query, by_feed])
def test_a_sum_goes_on_in_the_other_lane_and_no_row_counts_twice(scenarios: Scenarios, going_on: object) -> None:
    scenario = scenarios()
    service, application = scenario.service, scenario.application
    source = Source(service.bootstrap_servers, f"events-{application}")
    copy, kafka = f"{application}-live", ["--bootstrap-servers", service.bootstrap_servers]
    source.send(300)
    batches = events(scenario, source).drop("partition", "offset").writeStream.queryName(QUERY).outputMode("update")
    batches = batches.option("checkpointLocation", str(scenario.directory / "batches"))
    query = batches.foreachBatch(sums(scenario, application)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    path = str(scenario.directory / "savepoint")
    done("create", application, "--to", path, *kafka)
    source.send(100)
    (restored,) = done("restore", path, "--application", copy, "--real-time", QUERY, *kafka)
    assert (restored["next_epoch"], restored["next_batch"], restored["checkpoint"]) == (1, None, None)

    def agrees() -> bool:
        with suppress(KeyholeError):
            answers = scenario.client.get_many(copy, STATE, list(source.sums))
            found = {key: of.value.v for key, of in zip(source.sums, answers, strict=True) if of.found}
            return found == source.sums
        return False

    with going_on(scenario, source, copy):  # type: ignore[operator]  # one of those above
        until(agrees, LONG_SECONDS)
        source.send(100)
        until(agrees, LONG_SECONDS)

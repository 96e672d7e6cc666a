"""Records that a job can't take: in a topic of their own, as they were, and with where they came from."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole.cli.verify import records_before, topic_ends
from keyhole.config import JobConfig
from keyhole.coordinator.stats import stats_of
from keyhole.spark.dead_letters import DeadLetters, first_broken
from tests.support import figures
from tests.support.streams import RunQuery

RULES = {"number is not null": "no number", "number < 100": "too high"}
RECORDS: Sequence[tuple[bytes | None, bytes | None]] = [
    (b"a", b'{"number": 1}'),
    (b"b", b"\xff\x00 no JSON"),
    (None, b'{"number": 2}'),
    (None, None),
    (b"c", b'{"number": 100}'),
    (None, b'{"number": 3}'),
]
BAD = {1: "no number", 3: "no number", 4: "too high"}


def make(kafka: str, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)


@pytest.fixture
def topic(kafka: str) -> str:
    """The records above, in one partition, by their places; a batch of three takes half of them."""
    name = f"numbers-{uuid.uuid4().hex[:8]}"
    make(kafka, name)
    producer = Producer({"bootstrap.servers": kafka})
    for key, value in RECORDS:
        producer.produce(name, value, key)
    assert producer.flush(30) == 0
    return name


def numbers(spark: SparkSession, kafka: str, dead_letters: DeadLetters, topic: str) -> DataFrame:
    records = (
        spark.readStream.format("kafka")
        .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="3")
        .option("kafka.bootstrap.servers", kafka)
        .load()
    )
    parsed = records.withColumn("record", F.from_json(F.col("value").cast("string"), "number int"))
    return dead_letters.accept(parsed.select("*", "record.*").drop("record"), first_broken(RULES))


def letters(kafka: str, topic: str) -> list[Message]:
    return list(records_before(kafka, topic, topic_ends(kafka, topic)))


def test_they_are_kept_byte_for_byte_with_their_place_and_a_reason_before_the_batch_is_done(
    spark: SparkSession, kafka: str, topic: str, run_query: RunQuery
) -> None:
    dead_letters = DeadLetters(spark, kafka, topic)
    taken: list[int] = []
    kept: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        taken.extend(sorted(row.number for row in batch.collect()))
        kept.append(len(letters(kafka, dead_letters.topic)))

    run_query(numbers(spark, kafka, dead_letters, topic), "append", take)
    assert taken == [1, 2, 3]
    assert kept == [1, 3]
    found = letters(kafka, f"{topic}.dead-letter")
    assert [(message.key(), message.value()) for message in found] == [RECORDS[place] for place in BAD]
    assert [dict(message.headers() or ()) for message in found] == [
        {"topic": topic.encode(), "partition": b"0", "offset": str(place).encode(), "reason": reason.encode()}
        for place, reason in BAD.items()
    ]
    assert dead_letters.sent == len(BAD)


def test_of_an_aggregated_stream_too_and_again_where_a_batch_is_run_again(
    spark: SparkSession, kafka: str, topic: str, run_query: RunQuery
) -> None:
    dead_letters = DeadLetters(spark, kafka, topic)
    totals: list[int] = []

    def fail_once(batch: DataFrame, _: int) -> None:
        totals.extend(row.total for row in batch.collect())
        if len(totals) == 1:
            raise ValueError("the batch is to be run again")

    total = numbers(spark, kafka, dead_letters, topic).groupBy().agg(F.sum("number").alias("total"))
    with pytest.raises(Exception, match="the batch is to be run again"):
        run_query(total, "update", fail_once)
    run_query(total, "update", fail_once)
    assert totals == [3, 3, 6]
    places = [int(dict(message.headers() or ())["offset"]) for message in letters(kafka, dead_letters.topic)]
    assert places == [1, 1, 3, 4]


def test_they_are_logged_and_counted_by_topic_once_their_epoch_is_told_and_there_is_a_0_before(
    spark: SparkSession, kafka: str, topic: str, run_query: RunQuery, caplog: pytest.LogCaptureFixture
) -> None:
    config = JobConfig(application=topic, servers=("127.0.0.1:1",), bootstrap_servers=kafka)
    dead_letters = DeadLetters(spark, kafka, topic, config=config)
    counted: list[tuple[float, ...]] = []
    metrics = [f"keyhole_job_{what}_records_total" for what in ("checked", "rejected")]

    def count() -> None:
        told = asyncio.run(stats_of(config).read())
        assert not figures.beyond_the_catalogue(told)
        assert set(metrics) <= figures.names(told)
        counted.append(tuple(figures.value(told, metric, application=topic, topic=topic) for metric in metrics))

    def take(batch: DataFrame, number: int) -> None:
        batch.collect()
        count()
        dead_letters.tell(number + 1)
        count()

    with caplog.at_level(logging.WARNING, "keyhole.spark.dead_letters"):
        run_query(numbers(spark, kafka, dead_letters, topic), "append", take)
        dead_letters.tell(3)  # of none there is nothing to say
    assert counted == [(0, 0), (3, 1), (3, 1), (6, 3)]
    said = [(record.records, record.kept_in, record.epoch) for record in caplog.records]  # type: ignore[attr-defined]
    assert said == [(1, f"{topic}.dead-letter", 1), (2, f"{topic}.dead-letter", 2)]


def test_a_topic_that_is_there_is_taken_as_it_is(spark: SparkSession, kafka: str, topic: str) -> None:
    first, second = DeadLetters(spark, kafka, topic), DeadLetters(spark, kafka, topic)
    assert first.topic == second.topic == f"{topic}.dead-letter"


def test_of_one_that_is_too_large_for_the_topic_there_is_its_place_and_the_others_are_whole(
    spark: SparkSession, kafka: str, topic: str, run_query: RunQuery
) -> None:
    make(kafka, f"{topic}.dead-letter", **{"max.message.bytes": "30000"})
    producer = Producer({"bootstrap.servers": kafka})
    for value in (b"small", b"x" * 40_000, b"small again"):
        producer.produce(topic, value, b"key")
    assert producer.flush(30) == 0
    run_query(
        numbers(spark, kafka, DeadLetters(spark, kafka, topic), topic), "append", lambda batch, _: batch.collect()
    )
    found = {
        int(dict(message.headers() or ())["offset"]): message for message in letters(kafka, f"{topic}.dead-letter")
    }
    first = len(RECORDS)
    assert found.keys() == {*BAD, first, first + 1, first + 2}
    assert [found[first + more].value() for more in range(3)] == [b"small", None, b"small again"]
    assert "omitted" in dict(found[first + 1].headers() or ())
    assert found[first + 1].key() is None

"""Records that a job can't take: in a topic of their own, as they were, and with where they came from."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole.config import JobConfig
from keyhole.coordinator.stats import stats_of
from keyhole.demo.recount import records_before, topic_ends
from keyhole.spark.dead_letters import DeadLetters, first_broken
from tests.support import figures
from tests.support.scenario import logged
from tests.support.streams import RunQuery, run_to_end
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS

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
TOO_LARGE = 30_000
LARGE = [b"small", b"x" * 40_000, b"small again"]
"""They have no number either; the second one is larger than what the dead-letter topic takes."""


def filled(kafka: str, records: Sequence[tuple[bytes | None, bytes | None]]) -> str:
    """A new topic of the records, in one partition, by their places; a batch takes three of them."""
    name = f"numbers-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, name)
    producer = Producer({"bootstrap.servers": kafka})
    for key, value in records:
        producer.produce(name, value, key)
    assert producer.flush(LONG_SECONDS) == 0
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


def headers(message: Message) -> Mapping[str, bytes]:
    return dict(message.headers() or ())  # type: ignore[arg-type]  # they have values


@dataclass(frozen=True)
class Ran:
    """A query that has taken all records, those that are too large included.

    Attributes:
        taken: The numbers that it got.
        kept: How many letters there were at each batch's end.
        counted: How many records were checked and rejected, at each batch's end and once its epoch was told.
        letters: By their places.
        sent: How many letters it says it has sent.
        said: What it logged.
    """

    topic: str
    taken: Sequence[int]
    kept: Sequence[int]
    counted: Sequence[tuple[float, ...]]
    letters: Mapping[int, Message]
    sent: int
    said: Sequence[logging.LogRecord]


@pytest.fixture(scope="module")
def ran(spark: SparkSession, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    topic = filled(kafka, [*RECORDS, *((b"key", value) for value in LARGE)])
    make_topic(kafka, f"{topic}.dead-letter", settings={"max.message.bytes": str(TOO_LARGE)})
    config = JobConfig(application=topic, servers=("127.0.0.1:1",), bootstrap_servers=kafka)
    dead_letters = DeadLetters(spark, kafka, topic, config=config)
    taken: list[int] = []
    kept: list[int] = []
    counted: list[tuple[float, ...]] = []
    metrics = [f"keyhole_job_{what}_records_total" for what in ("checked", "rejected")]

    def count() -> None:
        read = asyncio.run(stats_of(config).read())
        assert not figures.beyond_the_catalogue(read)
        assert set(metrics) <= figures.names(read)
        counted.append(tuple(figures.value(read, metric, application=topic, topic=topic) for metric in metrics))

    def take(batch: DataFrame, number: int) -> None:
        taken.extend(sorted(row.number for row in batch.collect()))
        kept.append(len(letters(kafka, dead_letters.topic)))
        count()
        dead_letters.tell(number + 1)
        count()

    with logged("keyhole.spark.dead_letters") as said:
        run_to_end(numbers(spark, kafka, dead_letters, topic), "append", take, tmp_path_factory.mktemp("checkpoint"))
        dead_letters.tell(len(kept) + 1)  # of none there is nothing to say
    found = {int(headers(message)["offset"]): message for message in letters(kafka, f"{topic}.dead-letter")}
    return Ran(topic, taken, kept, counted, found, dead_letters.sent, said)


def test_they_are_kept_byte_for_byte_with_their_place_and_a_reason(ran: Ran) -> None:
    found = [ran.letters[place] for place in BAD]
    assert [(message.key(), message.value()) for message in found] == [RECORDS[place] for place in BAD]
    assert [headers(message) for message in found] == [
        {"topic": ran.topic.encode(), "partition": b"0", "offset": str(place).encode(), "reason": reason.encode()}
        for place, reason in BAD.items()
    ]


def test_they_are_kept_before_the_batch_is_done_which_has_the_others(ran: Ran) -> None:
    assert ran.taken == [1, 2, 3]
    assert ran.kept == [1, 3, 6]
    assert ran.sent == len(ran.letters) == 6


def test_they_are_counted_by_topic_once_their_epoch_is_told_and_there_is_a_0_before(ran: Ran) -> None:
    assert ran.counted == [(0, 0), (3, 1), (3, 1), (6, 3), (6, 3), (9, 6)]


def test_they_are_logged_once_their_epoch_is_told(ran: Ran) -> None:
    said = [(of.records, of.kept_in, of.epoch) for of in ran.said]  # type: ignore[attr-defined]
    assert said == [(number, f"{ran.topic}.dead-letter", number) for number in (1, 2, 3)]


def test_of_one_that_is_too_large_for_the_topic_there_is_its_place_and_the_others_are_whole(ran: Ran) -> None:
    first = len(RECORDS)
    assert ran.letters.keys() == {*BAD, first, first + 1, first + 2}
    assert [ran.letters[first + more].value() for more in range(3)] == [b"small", None, b"small again"]
    assert "omitted" in headers(ran.letters[first + 1])
    assert ran.letters[first + 1].key() is None


def test_of_an_aggregated_stream_too_and_again_where_a_batch_is_run_again(
    spark: SparkSession, kafka: str, run_query: RunQuery
) -> None:
    topic = filled(kafka, RECORDS)
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
    places = [int(headers(message)["offset"]) for message in letters(kafka, dead_letters.topic)]
    assert places == [1, 1, 3, 4]


def test_a_topic_that_is_there_is_taken_as_it_is(spark: SparkSession, kafka: str) -> None:
    topic = filled(kafka, RECORDS)
    first, second = DeadLetters(spark, kafka, topic), DeadLetters(spark, kafka, topic)
    assert first.topic == second.topic == f"{topic}.dead-letter"

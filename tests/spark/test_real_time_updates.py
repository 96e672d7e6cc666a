"""A query in real-time mode feeds a state: rows are read in mid-batch, and each counts once over stops and starts."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from keyhole import AsyncClient
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.settings import updates_topic_name
from keyhole.clock import SystemClock
from keyhole.config import JobConfig, StateServerConfig
from keyhole.coordinator.feed_run import FeedRun
from keyhole.errors import (
    ChangelogRecreated,
    CheckpointMismatch,
    Fenced,
    InvalidConfiguration,
    StateConflict,
    ValueMismatch,
)
from keyhole.feed.feed_options import RecordFormat
from keyhole.feed.kafka.recorded import recorded_state
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.feed.process import FeedProcess
from keyhole.feed.topic_feed import TopicFeed
from keyhole.model.state import StateDescriptor
from keyhole.protocol.failpoints import NoObserver
from keyhole.protocol.updates import NO_UPDATE, BoundaryRecord, Record, UpdateRecord, decode
from keyhole.spark import queryable
from keyhole.spark.queryable import RealTimeQuery
from keyhole.spark.sink import Sink
from keyhole.spark.write_path import real_time_topics
from keyhole.stores.memory import MemoryEngine
from services.state_server.app import StateServer
from tests.support.proxies import proxy_of
from tests.support.topics import grow_topic, make_topic
from tests.support.waiting import LONG_SECONDS

# No batch ends while the test waits for rows; and the shortest that Spark takes.
LONG_BATCH, SHORT_BATCH = "10 minutes", "5 seconds"
STATE = "sums"


def rows_of(spark: SparkSession, kafka: str, topic: str) -> DataFrame:
    """Each record has several rows: "a:1,b:10". Of key "huge" no record of Kafka can carry the update."""
    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**options).load()
    rows = rows.selectExpr("partition", "offset", "posexplode(split(string(value), ',')) AS (pos, row)")
    named = "replace(split(row, ':')[0], 'huge', repeat('x', 17000000)) AS k", "bigint(split(row, ':')[1]) AS n"
    return rows.selectExpr("partition", "offset", "pos", *named).filter("n <> 0")


def sums(application: str, kafka: str, *servers: str) -> Sink:
    config = JobConfig(application=application, servers=servers, bootstrap_servers=kafka)
    return queryable.reducing(STATE, key="k", reducers={"n": "sum"}, key_groups=2, config=config)


def late(log: list[Record]) -> list[UpdateRecord]:
    """The rows that stand for the first time behind a boundary that has said that all up to them stand before it."""
    ends: dict[tuple[str, int], int] = {}
    found, seen = [], set()
    for record in log:
        if isinstance(record, BoundaryRecord):
            ends |= {(record.source, partition): end for partition, end in record.ends.items()}
        elif isinstance(record, UpdateRecord):
            if record.row not in seen and record.offset < ends.get((record.source, record.partition), 0):
                found.append(record)
            seen.add(record.row)
    return found


def records(topic: KafkaUpdates, partition: int) -> list[Record]:
    found = []
    for value in topic.read(partition, *topic.bounds(partition)):
        with suppress(ValueMismatch):
            found.append(decode(value))
    return found


def declared(kafka: str, application: str) -> StateDescriptor:
    """The state as a run declares it."""
    recorded = recorded_state(kafka, application, STATE)
    return msgspec.structs.replace(recorded, topic_id="", updates_topic_id="")


async def test_rows_are_read_in_mid_batch_and_count_once_over_stops_starts_and_batches(
    spark: SparkSession, kafka: str, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"{application}-source"
    make_topic(kafka, source, 2)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})

    def send(*values: int) -> None:
        """Each record has two rows, of "a" and of "b"."""
        for value in values:
            producer.produce(source, f"a:{value},b:{10 * value}", partition=value % 2)
        assert producer.flush(LONG_SECONDS) == 0

    config = StateServerConfig(bootstrap_servers=kafka, id="a", port=0)
    server = StateServer(config, MemoryEngine(), lambda name: KafkaChangelog(kafka, name), SystemClock(), NoObserver())
    await server.start()
    queries: list[RealTimeQuery] = []
    job = JobConfig(application=application, servers=(server.address,), bootstrap_servers=kafka)
    newer = FeedRun(job, STATE, KafkaChangelog(kafka, application), SystemClock())

    async def start(batch: str, name: str = STATE, checkpoint: str = "first") -> RealTimeQuery:
        rows = {name: rows_of(spark, kafka, source)}
        of = sums(application, kafka, server.address)
        place = str(tmp_path / checkpoint)
        query = await asyncio.to_thread(queryable.realtime, rows, of, checkpoint=place, sub="pos", batch=batch)
        queries.append(query)
        return query

    def feed() -> None:
        """`keyhole feed` of the same topic, which takes the state from whoever has it."""

        def feed_of(of: StateDescriptor, topic_id: str) -> TopicFeed:
            return TopicFeed(kafka, of, source, RecordFormat.JSON, SystemClock(), topic_id=topic_id)

        run = FeedRun(job, STATE, KafkaChangelog(kafka, application), SystemClock())
        process = FeedProcess(run, declared(kafka, application), 0, feed_of, SystemClock(), take_over=True)
        with closing(process):
            process.start()

    def look_for_earlier() -> None:
        """As `keyhole feed` does where an earlier release has recorded the state."""
        of = recorded_state(kafka, application, STATE)
        TopicFeed(kafka, of, source, RecordFormat.JSON, SystemClock()).check(())

    async def read(client: AsyncClient, total: int) -> None:
        """Returns once the sums are these. They never are above."""
        async with asyncio.timeout(LONG_SECONDS):
            for key, expected in {"a": total, "b": 10 * total}.items():
                found = None
                while found != expected:
                    answer = await client.get(application, STATE, key, timeout=LONG_SECONDS)
                    found = answer.value.n if answer.found else None
                    assert found is None or found <= expected
                    await asyncio.sleep(0.02)

    def updates() -> list[list[Record]]:
        """All records of the updates topic, by its partition."""
        with closing(KafkaUpdates(kafka, updates_topic_name(application, STATE))) as topic:
            return [records(topic, partition) for partition in range(topic.partitions)]

    def dead_letters() -> list[bytes | None]:
        with closing(KafkaUpdates(kafka, f"{updates_topic_name(application, STATE)}.dead-letter")) as topic:
            return list(topic.read(0, *topic.bounds(0)))

    def boundaries() -> list[BoundaryRecord]:
        """The last one of each partition."""
        of = [[record for record in log if isinstance(record, BoundaryRecord)] for log in updates()]
        return [log[-1] for log in of if log]

    try:
        await asyncio.to_thread(send, 0, 1, 2, 3)
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            query = await start(LONG_BATCH)
            await read(client, 6)
            # Were it sent as it is, Kafka would refuse it, and each start of the query end there.
            producer.produce(source, "huge:1", partition=0)
            await asyncio.to_thread(send, 4)
            await read(client, 10)
            assert query.isActive
            assert not [batch for batch in query.query.recentProgress if batch.numInputRows]
            # Of no batch yet, but of where the query has begun.
            assert [of.ends for of in await asyncio.to_thread(boundaries)] == [{0: 0, 1: 0}] * 2
            await asyncio.to_thread(query.stop)
            assert not query.isActive

            await asyncio.to_thread(send, 5)
            query = await start(SHORT_BATCH)
            await read(client, 15)
            async with asyncio.timeout(LONG_SECONDS):
                ends: list[dict[int, int]] = []
                while ends != [{0: 4, 1: 3}] * 2:
                    await asyncio.sleep(0.2)
                    ends = [of.ends for of in await asyncio.to_thread(boundaries)]
            assert query.isActive
            await asyncio.to_thread(query.stop)
            logs = await asyncio.to_thread(updates)
            # The second start has sent once more what the first had sent, and no boundary passes a row. Spark may have
            # tried a task again.
            sent = Counter(record.row for log in logs for record in log if isinstance(record, UpdateRecord))
            assert len(sent) == 2 * 5
            assert sum(times > 1 for times in sent.values()) >= 2 * 4
            assert [late(log) for log in logs] == [[], []]
            letter, *_ = await asyncio.to_thread(dead_letters)
            assert f'.{STATE}",0,2,0,{NO_UPDATE},1,"the update takes 170000'.encode() in (letter or b"")

            with pytest.raises(ChangelogRecreated, match="the names or the order"):
                await start(LONG_BATCH, "another")
            # By a new checkpoint neither: all rows would count once more.
            with pytest.raises(StateConflict, match="as the rows 'sums': by a real-time query, as the rows 'another'"):
                await start(LONG_BATCH, "another", "second")
            await asyncio.to_thread(send, 6, 7)
            query = await start(LONG_BATCH)
            await read(client, 28)
            for other in (feed, look_for_earlier):
                with pytest.raises(StateConflict, match="as the rows 'sums': by keyhole feed each of its records"):
                    await asyncio.to_thread(other)
            assert query.isActive
            await asyncio.to_thread(newer.start, {declared(kafka, application): 0})
            with pytest.raises(Fenced):
                await asyncio.to_thread(query.awaitTermination, LONG_SECONDS)
            assert not query.query.isActive

            # Spark would read those partitions that it has cores for, and no others.
            monkeypatch.setattr(real_time_topics, "LOOK_SECONDS", 0.5)
            monkeypatch.setattr(real_time_topics, "LACK_SECONDS", 1.0)
            query = await start(LONG_BATCH)
            await asyncio.to_thread(send, 8)
            await read(client, 36)
            await asyncio.to_thread(grow_topic, kafka, source, 100)
            with pytest.raises(InvalidConfiguration, match=r"reads 100 partitions at once .* local\[100\]"):
                await asyncio.to_thread(query.awaitTermination, LONG_SECONDS)
            assert not query.query.isActive
    finally:
        for query in queries:
            await asyncio.to_thread(query.stop)
        await asyncio.to_thread(newer.close)
        await server.stop()


@pytest.fixture
def wide(spark: SparkSession, kafka: str, application: str) -> DataFrame:
    topic = f"{application}-wide"
    make_topic(kafka, topic, 100)
    return rows_of(spark, kafka, topic)


def test_more_partitions_than_cores_are_refused_at_the_start(
    wide: DataFrame, kafka: str, application: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfiguration, match=r"reads 100 partitions at once .* local\[100\]"):
        queryable.realtime(wide, sums(application, kafka, "a:1"), checkpoint=str(tmp_path), sub="pos")


def test_the_checkpoint_of_another_query_is_refused(
    spark: SparkSession, kafka: str, application: str, tmp_path: Path
) -> None:
    make_topic(kafka, application, 1)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    with pytest.raises(CheckpointMismatch, match="is another query's"):
        queryable.realtime(
            rows_of(spark, kafka, application), sums(application, kafka, "a:1"), checkpoint=str(tmp_path), sub="pos"
        )

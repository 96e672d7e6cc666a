"""A query in real-time mode feeds a state by updates that SQL makes: they are read in mid-batch, and counted once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from keyhole import AsyncClient
from keyhole.changelog.base import Partition
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.settings import updates_topic_name
from keyhole.clock import SystemClock
from keyhole.config import JobConfig, StateServerConfig
from keyhole.coordinator.feed_run import FeedRun
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.failpoints import NoObserver
from keyhole.spark.driver.real_time_plan import check_real_time
from keyhole.spark.write_path.update_records import update_columns
from keyhole.stores.memory import MemoryEngine
from services.state_server.app import StateServer
from tests.support.proxies import proxy_of
from tests.support.states import descriptor
from tests.support.waiting import LONG_SECONDS

VALUE = ValueSchema(1, (ValueField("n", "bigint"),))
# No batch ends while the test runs.
LONG_BATCH = "10 minutes"


async def test_rows_are_read_in_mid_batch_and_counted_once_when_the_query_is_started_again(
    spark: SparkSession, kafka: str, application: str, tmp_path: Path
) -> None:
    of = descriptor(application=application, key_groups=2, kind=StateKind.REDUCING, reducers=("sum",), value=VALUE)
    source, sink = f"{application}-source", updates_topic_name(application, of.state)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(source, 2, 1)])[source].result(LONG_SECONDS)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})

    def send(*values: int) -> None:
        """Each record has two rows, of "a" and of "b"."""
        for value in values:
            producer.produce(source, f"a:{value},b:{10 * value}", partition=value % 2)
        assert producer.flush(LONG_SECONDS) == 0

    def start() -> StreamingQuery:
        options = {"kafka.bootstrap.servers": kafka, "subscribe": source, "startingOffsets": "earliest"}
        rows = spark.readStream.format("kafka").options(**options).load()
        rows = rows.selectExpr("partition", "offset", "posexplode(split(string(value), ','))")
        rows = rows.selectExpr(
            "partition", "offset", "pos", "split(col, ':')[0] AS k", "bigint(split(col, ':')[1]) AS n"
        ).filter("n <> 0")
        check_real_time(rows)
        written = rows.selectExpr(*update_columns(of, "id", sub="pos")).writeStream.format("kafka")
        written = written.options(**{"kafka.bootstrap.servers": kafka, "topic": sink})
        written = written.option("checkpointLocation", str(tmp_path)).outputMode("update")
        return written.trigger(realTime=LONG_BATCH).start()  # type: ignore[call-overload]  # PySpark's types lack it

    config = StateServerConfig(bootstrap_servers=kafka, id="a", port=0)
    server = StateServer(config, MemoryEngine(), lambda name: KafkaChangelog(kafka, name), SystemClock(), NoObserver())
    await server.start()
    changelog = KafkaChangelog(kafka, application)
    job = JobConfig(application=application, servers=(server.address,), bootstrap_servers=kafka)
    run = FeedRun(job, of.query, changelog, SystemClock())
    queries: list[StreamingQuery] = []

    async def read(client: AsyncClient, **totals: int) -> None:
        """Returns once the sums are these. They never are above."""
        async with asyncio.timeout(60):
            for key, total in totals.items():
                found = None
                while found != total:
                    answer = await client.get(application, of.state, key, timeout=LONG_SECONDS)
                    found = answer.value.n if answer.found else None
                    assert found is None or found <= total
                    await asyncio.sleep(0.02)

    try:
        await asyncio.to_thread(run.start, {of: 0})
        await asyncio.to_thread(send, 0, 1, 2, 3)
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address) as client:
            queries.append(await asyncio.to_thread(start))
            await read(client, a=6, b=60)
            await asyncio.to_thread(send, 4)
            await read(client, a=10, b=100)
            assert queries[0].isActive
            assert not [batch for batch in queries[0].recentProgress if batch.numInputRows]
            await asyncio.to_thread(queries[0].stop)
            await asyncio.to_thread(send, 5)
            queries.append(await asyncio.to_thread(start))
            await read(client, a=15, b=150)
            await asyncio.to_thread(send, 6, 7)
            await read(client, a=28, b=280)
        topics = changelog.updates_topics()
        extents = topics.extents({of.state: range(of.key_groups)}, LONG_SECONDS)
        topics.close()
        # 14 rows, of which the second start has sent the first 8 again; and rules.
        sent = {partition: extent.end for partition, extent in extents.items()}
        assert sum(sent.values()) == 14 + 8 + of.key_groups, sent
        assert sent[Partition(of.state, group_of(StateCodec(of).storage_key("a")))] >= 7 + 4 + 1
    finally:
        for query in queries:
            await asyncio.to_thread(query.stop)
        await asyncio.to_thread(run.close)
        await server.stop()

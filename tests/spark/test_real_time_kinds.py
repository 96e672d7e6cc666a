"""Each kind of state through Spark's real-time mode, and what a query may be made of: a union, a broadcast join.

Each query is stopped and started again from its checkpoint, so that Spark sends all of its rows once more: what is
read is what the rows make once, in their order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyhole import AsyncClient
from keyhole.changelog.kafka.record_topics import await_topic
from keyhole.changelog.settings import updates_topic_name
from keyhole.errors import ValueMismatch
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.http_values import plain
from tests.support.streams import Service
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS, until

LONG_BATCH = "10 minutes"
ROW = "k string, m bigint, n bigint, op string"


class Feed:
    """One application, and a client of it."""

    def __init__(self, spark: SparkSession, service: Service, application: str, client: AsyncClient) -> None:
        self.spark, self.kafka, self.application, self.client = spark, service.bootstrap_servers, application, client
        self.config = service.config(application)
        # It outlives the broker, and would say so.
        self._producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 0, "log_level": 0})

    def topic(self, name: str) -> str:
        """Makes one of one partition: its records come in their order."""
        topic = f"{self.application}-{name}"
        make_topic(self.kafka, topic)
        return topic

    def rows(self, topic: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.kafka, "subscribe": topic, "startingOffsets": "earliest"}
        read = self.spark.readStream.format("kafka").options(**options).load()
        read = read.select("partition", "offset", f.from_json(f.col("value").cast("string"), ROW).alias("row"))
        return read.select("partition", "offset", "row.*")

    async def send(self, topic: str, *rows: Mapping[str, Any]) -> None:
        def sent() -> None:
            for row in rows:
                self._producer.produce(topic, json.dumps(row))
            assert self._producer.flush(LONG_SECONDS) == 0

        await asyncio.to_thread(sent)

    async def fed(
        self,
        rows: DataFrame | Mapping[str, DataFrame],
        state: Sink,
        checkpoint: Path,
        shown: Callable[[], Awaitable[Any]],
        expected: Any,
        sub: str | None = None,
    ) -> None:
        """Runs the query until readers are shown this."""
        query = await asyncio.to_thread(
            queryable.realtime, rows, state, checkpoint=str(checkpoint), batch=LONG_BATCH, sub=sub
        )
        try:
            found = None
            async with asyncio.timeout(LONG_SECONDS):
                while (found := await shown()) != expected:
                    assert query.isActive, query.failure
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{found} is shown, and not {expected}") from None
        finally:
            await asyncio.to_thread(query.stop)

    async def entries(self, state: str) -> dict[Any, Any]:
        """All of a state: by key, or by key and map key, what the value has as `n`."""
        found = {}
        async with self.client.scan_all(self.application, state) as entries:
            async for entry in entries:
                key = entry.key if entry.map_key is None else (entry.key, entry.map_key)
                found[key] = entry.value.n
        return found


@pytest.fixture
async def feed(spark: SparkSession, service: Service, application: str) -> AsyncIterator[Feed]:
    async with AsyncClient(service.proxy, timeout=LONG_SECONDS) as client:
        yield Feed(spark, service, application, client)


def row(k: str, n: int | None, m: int = 0, op: str | None = None) -> dict[str, Any]:
    return {"k": k, "m": m, "n": n, "op": op}


async def test_a_value_is_the_last_one_and_goes_where_a_row_deletes_it(feed: Feed, tmp_path: Path) -> None:
    topic = await asyncio.to_thread(feed.topic, "values")
    state = queryable.value("values", key="k", value="n", delete_when="op = 'gone'", config=feed.config, key_groups=2)

    async def run(expected: dict[str, int]) -> None:
        await feed.fed(feed.rows(topic), state, tmp_path, lambda: feed.entries("values"), expected)

    await feed.send(topic, row("a", 1), row("b", 2), row("a", 3))
    await run({"a": 3, "b": 2})
    await feed.send(topic, row("b", None, op="gone"), row("c", 4), row("a", 5))
    await run({"a": 5, "c": 4})


async def test_entries_of_a_map_come_and_go_alone_or_with_their_key(feed: Feed, tmp_path: Path) -> None:
    topic = await asyncio.to_thread(feed.topic, "maps")
    state = queryable.map("maps", key="k", map_key="m", value="n", op="op", config=feed.config, key_groups=2)

    async def run(expected: dict[tuple[str, int], int]) -> None:
        await feed.fed(feed.rows(topic), state, tmp_path, lambda: feed.entries("maps"), expected)

    await feed.send(topic, row("a", 1, 1), row("a", 2, 2), row("b", 3, 1), row("a", 4, 1))
    await run({("a", 1): 4, ("a", 2): 2, ("b", 1): 3})
    await feed.send(topic, row("a", None, 2, op="delete"), row("b", 5, 7))
    await run({("a", 1): 4, ("b", 1): 3, ("b", 7): 5})


async def test_a_list_keeps_the_last_elements_in_the_order_of_the_topic(feed: Feed, tmp_path: Path) -> None:
    topic = await asyncio.to_thread(feed.topic, "lists")
    state = queryable.list("lists", key="k", value="n", max_length=3, config=feed.config, key_groups=2)

    async def shown() -> list[list[int]]:
        scans = [await feed.client.scan(feed.application, "lists", key) for key in ("a", "b")]
        return [[entry.value.n for entry in scan] for scan in scans]

    async def run(expected: list[list[int]]) -> None:
        await feed.fed(feed.rows(topic), state, tmp_path, shown, expected)

    await feed.send(topic, *[row("a", n) for n in range(5)], row("b", 9))
    await run([[2, 3, 4], [9]])
    await feed.send(topic, row("a", 5), row("b", 10))
    await run([[3, 4, 5], [9, 10]])


async def test_a_broadcast_state_is_fed_as_a_value(feed: Feed, tmp_path: Path) -> None:
    topic = await asyncio.to_thread(feed.topic, "rules")
    state = queryable.broadcast("rules", key="k", value="n", delete_when="n is null", config=feed.config)

    async def run(expected: dict[str, int]) -> None:
        await feed.fed(feed.rows(topic), state, tmp_path, lambda: feed.entries("rules"), expected)

    await feed.send(topic, row("a", 1), row("b", 2))
    await run({"a": 1, "b": 2})
    await feed.send(topic, row("a", None), row("b", 3))
    await run({"b": 3})


async def test_rows_of_two_topics_that_are_joined_with_a_table_and_exploded_are_summed(
    feed: Feed, tmp_path: Path
) -> None:
    """Each row counts as often as the table has it; what stands in one topic is no row of the other."""
    one, other = [await asyncio.to_thread(feed.topic, name) for name in ("web", "shop")]
    cities = feed.spark.createDataFrame([("a", "Bern"), ("b", "Basel")], "k string, city string")

    def of(topic: str) -> DataFrame:
        joined = feed.rows(topic).join(f.broadcast(cities), "k")
        return joined.select("partition", "offset", "city", "n", f.expr("posexplode(array(1, 10)) AS (pos, times)"))

    def summed(topic: str) -> DataFrame:
        return of(topic).withColumn("n", f.expr("n * times"))

    rows = {"web": summed(one), "shop": summed(other)}
    state = queryable.reducing("cities", key="city", reducers={"n": "sum"}, config=feed.config, key_groups=2)

    async def run(expected: dict[str, int]) -> None:
        await feed.fed(rows, state, tmp_path, lambda: feed.entries("cities"), expected, sub="pos")

    await feed.send(one, row("a", 1), row("b", 2), row("nowhere", 100))
    await feed.send(other, row("a", 3))
    await run({"Bern": 44, "Basel": 22})
    await feed.send(other, row("b", 1), row("b", 1))
    await run({"Bern": 44, "Basel": 44})


async def test_a_record_that_spark_can_not_compute_ends_the_query_with_what_to_do_and_then_is_a_dead_letter(
    feed: Feed, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(feed.topic, "keys")
    state = queryable.value("numbers", key="id", value="n", config=feed.config, key_groups=1)
    await feed.send(topic, row("1", 5), row("x", 6))
    query = await asyncio.to_thread(
        queryable.realtime,
        feed.rows(topic).selectExpr("partition", "offset", "bigint(k) AS id", "n"),
        state,
        checkpoint=str(tmp_path),
        batch=LONG_BATCH,
    )
    with pytest.raises(ValueMismatch, match=r"\(CAST_INVALID_INPUT\).* try_cast") as ended:
        assert await asyncio.to_thread(query.awaitTermination, LONG_SECONDS)
    assert "'x'" not in str(ended.value)
    await feed.send(topic, row("3", 7))
    rows = feed.rows(topic).selectExpr("partition", "offset", "try_cast(k AS bigint) AS id", "n")
    await feed.fed(rows, state, tmp_path, lambda: feed.entries("numbers"), {1: 5, 3: 7})
    letters = f"{updates_topic_name(feed.application, 'numbers')}.dead-letter"
    # Its owner puts it there beside what it applies.
    await asyncio.to_thread(await_topic, feed.kafka, letters, LONG_SECONDS)
    with closing(KafkaUpdates(feed.kafka, letters)) as refused:
        await asyncio.to_thread(until, lambda: refused.bounds(0) == (0, 1), LONG_SECONDS)


async def test_columns_fields_states_and_queries_of_any_name_are_fed(feed: Feed, tmp_path: Path) -> None:
    """Each column is part of the key, of the map key or of the value. The rows are called as their struct is, which
    has fields of the columns' names."""
    topic = await asyncio.to_thread(feed.topic, "names")
    key, map_key = ["type", "_", "self", "a`b", "日本", "id"], ["count", "keys", "None", "a.b", "'", "\\"]
    value = ["__class__", "index", "items", "class", "x" * 200, '"', "*", "", "keyhole_deletes"]
    numbers = {name: number for number, name in enumerate([*key, *map_key, *value])}
    fields = {name: number for number, name in enumerate(["type", "__class__", "index", "id", "ID", "${x}"])}
    struct = f.struct(*(f.lit(number).alias(name) for name, number in fields.items()))
    columns = [(f.lit(n) + f.col("n") if name in value else f.lit(n)).alias(name) for name, n in numbers.items()]
    rows = feed.rows(topic).select("partition", "offset", "op", struct.alias("the struct"), *columns)
    of_state = {"key": key, "map_key": map_key, "value": [*value, "the struct"], "delete_when": "op = 'gone'"}
    state = queryable.map("__class__", query="None", config=feed.config, key_groups=2, **of_state)

    async def shown() -> list[Any]:
        async with feed.client.scan_all(feed.application, "__class__") as entries:
            return [(entry.key, entry.map_key, plain(entry.value)) async for entry in entries]

    async def run(*expected: Any) -> None:
        await feed.fed(rows.alias("the struct"), state, tmp_path, shown, [*expected])

    entry = (tuple(map(numbers.__getitem__, key)), tuple(map(numbers.__getitem__, map_key)))
    await feed.send(topic, row("a", 1), row("a", 100))
    await run((*entry, {name: numbers[name] + 100 for name in value} | {"the struct": fields}))
    await feed.send(topic, row("a", 0, op="gone"))
    await run()

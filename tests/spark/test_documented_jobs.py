"""What the pages for authors of jobs show in Python runs, word for word but for addresses and folders: README,
docs/backfill.md, docs/joins.md, docs/realtime.md, docs/spark.md, docs/spark-reading.md, docs/windows.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from keyhole import Client
from keyhole.spark import json_records, queryable
from keyhole.spark.dead_letters import DeadLetters, first_broken
from keyhole.spark.session import FILE_CHECKPOINTS
from tests.support.documented_jobs import MONDAY, TUESDAY, Scene, minute
from tests.support.micro_batches import MicroBatches
from tests.support.snippets import blocks
from tests.support.streams import Service, new_application
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS, until

PAGES = (
    "docs/backfill.md",
    "docs/joins.md",
    "docs/realtime.md",
    "docs/spark-reading.md",
    "docs/spark.md",
    "docs/windows.md",
)
SHOWN = [(page, blocks(page)) for page in PAGES]
CELSIUS = [{"sensor": "a", "celsius": 3.5}, {"sensor": "a", "celsius": 7.5}, {"sensor": "b", "celsius": 1.5}]


@pytest.fixture(scope="module")
def batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroBatches]:
    columns = "sensor string, celsius double, customer string, amount long, k string, v long, time timestamp"
    with MicroBatches(spark, tmp_path_factory.mktemp("fed"), columns) as batches:
        yield batches


@pytest.fixture
def scene(
    spark: SparkSession, service: Service, batches: MicroBatches, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        yield Scene(spark, service, client, batches, new_application(), tmp_path_factory.mktemp("scene"))


def the(page: str, holding: str) -> str:
    """The block of a page that has this in it, as no other one has."""
    (code,) = (code for code in blocks(page) if holding in code)
    return code


def readings(scene: Scene, column: str = "celsius") -> DataFrame:
    rows = [{"sensor": row["sensor"], column: row["celsius"]} for row in CELSIUS]
    return scene.stream(f"sensor string, {column} double", [rows])


def test_the_first_lines_of_the_readme_and_of_the_page(scene: Scene) -> None:
    scene.run(the("README.md", "maxima = "), readings=readings(scene, "temperature"))
    assert [value.temperature for value in scene.values("max_temperature", ["a", "b"])] == [7.5, 1.5]
    again = Scene(scene.spark, scene.service, scene.client, scene.batches, new_application(), scene.directory / "2")
    again.directory.mkdir()
    again.run(the("docs/spark.md", 'queryName("max-temperature")'), readings=readings(again))
    assert [value.max_celsius for value in again.values("max_temperature", ["a", "b"])] == [7.5, 1.5]


def test_sums_that_servers_keep(scene: Scene) -> None:
    sink = scene.run(the("docs/spark.md", '"largest": max("amount")'))["sink"]
    scene.feed(
        sink, [{"customer": "c1", "amount": 3}, {"customer": "c1", "amount": 4}], [{"customer": "c1", "amount": 1}]
    )
    (value,) = scene.values("spent", ["c1"])
    assert (value.orders, value.spent, value.largest) == (3, 8, 4)


def test_the_value_of_the_newest(scene: Scene) -> None:
    reductions = {
        name: getattr(__import__("keyhole.spark.reductions").spark.reductions, name) for name in ("max", "max_by")
    }
    sink = scene.run(the("docs/spark.md", '"reading": max_by('), **reductions)["sink"]
    scene.feed(
        sink, [{"sensor": "a", "celsius": 9.5, "time": minute(1)}, {"sensor": "a", "celsius": 2.5, "time": minute(2)}]
    )
    assert [value.reading for value in scene.values("latest", ["a"])] == [2.5]


ALERTS = """
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class Alerts(StatefulProcessor):
    def init(self, handle):
        self.last = handle.getValueState("last", "at timestamp, celsius double")
        self.alerts = handle.getListState("alerts", "celsius double")
        self.hours = handle.getMapState("hours", "hour timestamp", "readings bigint")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.last.update((row.at, row.celsius))
            hour = (row.at.replace(minute=0),)
            self.hours.updateValue(hour, ((self.hours.getValue(hour) or (0,))[0] + 1,))
            if row.celsius > 30:
                self.alerts.appendValue((row.celsius,))
                yield Row(sensor=key[0], celsius=row.celsius)
"""


def test_the_states_of_a_processor(scene: Scene) -> None:
    sent: list[Any] = []
    rows = [{"sensor": "a", "at": minute(n), "celsius": 29.5 + n} for n in range(3)]
    alerts = scene.run(ALERTS)["Alerts"]
    scene.run(
        the("docs/spark.md", "Alerts(),"),
        Alerts=alerts,
        readings=scene.stream("sensor string, at timestamp, celsius double", [rows[:1], rows[1:2], rows[2:]]),
        send_alerts=lambda own, batch_id: sent.extend(row.celsius for row in own.collect()),
    )
    assert [value.celsius for value in scene.values("last", ["a"])] == [31.5]
    assert [value.celsius for value in scene.entries("alerts", "a").values()] == [30.5, 31.5]
    assert [value.readings for value in scene.entries("hours", "a").values()] == [3]
    assert sent == [30.5, 31.5]


def test_another_sink_beside_it(scene: Scene) -> None:
    counted: list[int] = []
    defined = scene.run(
        the("docs/spark.md", "write_elsewhere("), write_elsewhere=lambda batch, _: counted.append(batch.count())
    )
    scene.feed(defined["both"], [CELSIUS[0], CELSIUS[2]])
    assert [value.celsius for value in scene.values("max_temperature", ["a", "b"])] == [3.5, 1.5]
    assert counted == [2]


def test_what_is_called_when_an_epoch_is_complete(scene: Scene) -> None:
    written, published = scene.directory / "written", scene.directory / "published"
    published.mkdir()
    defined = scene.run(the("docs/spark.md", "on_commit=lambda epoch"), written=written, published=published)
    scene.feed(defined["both"], [{"k": "a", "v": 1}, {"k": "a", "v": 2}])
    assert [value.v for value in scene.values("sums", ["a"])] == [3]
    assert [(path.name, path.read_text()) for path in published.iterdir()] == [("1", "2")]


def test_records_that_the_job_cannot_take(scene: Scene, kafka: str) -> None:
    code = the("docs/spark.md", "dead_letters.tell)")
    topic = f"{scene.application}-readings"
    make_topic(kafka, topic)
    send(kafka, topic, (None, b'{"sensor": "a", "celsius": 3.5}'), (None, b'{"celsius": 3.5}'), (None, b"none"))
    names = {
        "DeadLetters": DeadLetters,
        "json_records": json_records,
        "first_broken": first_broken,
        "config": scene.service.config(scene.application),
        "records": stream_of(scene.spark, kafka, topic),
    }
    defined = scene.run(code.replace('"kafka:9092", "readings"', f'"{kafka}", "{topic}"'), **names)
    query = defined["good"].writeStream.option("checkpointLocation", str(scene.directory / "good"))
    started = query.foreachBatch(lambda batch, of: defined["sink"](batch.select("sensor", "celsius"), of)).start()
    try:
        started.processAllAvailable()
    finally:
        started.stop()
    assert [value.celsius for value in scene.values("last", ["a"])] == [3.5]


def test_a_checkpoint_in_an_object_store(scene: Scene, monkeypatch: pytest.MonkeyPatch, s3_jars: list[Path]) -> None:
    """But for the session itself: there is one in a process."""
    given: list[dict[str, str]] = []
    monkeypatch.setattr("keyhole.spark.session.start_session", lambda _, settings: given.append(settings))
    exec(compile(the("docs/spark.md", "s3a://checkpoints"), "docs/spark.md", "exec"), {})
    ((settings),) = given
    assert settings["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert all(jar.name in str(settings) for jar in s3_jars)


def test_a_session_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the session itself, likewise."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda builder: builder)
    defined = dict[str, Any]()
    exec(compile(the("docs/spark.md", "queryable.configure("), "docs/spark.md", "exec"), defined)
    settings = defined["spark"]._options
    assert settings["spark.python.daemon.module"] == "keyhole.spark.daemon"
    assert settings.keys() >= FILE_CHECKPOINTS.keys()


def send(kafka: str, topic: str, *records: tuple[bytes | None, bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(LONG_SECONDS) == 0


def stream_of(spark: SparkSession, kafka: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**options).load()


def test_rows_in_real_time(scene: Scene, kafka: str) -> None:
    (code,) = blocks("docs/realtime.md")
    topic = f"orders-{uuid.uuid4().hex}"
    make_topic(kafka, topic)
    send(kafka, topic, (b"c1", b"2.5"), (b"c2", b"1"), (b"c1", b"30"))
    end = "query.awaitTermination()\n"
    assert code.endswith(end)
    code = code.removesuffix(end).replace("kafka:9092", kafka).replace('"orders"', f'"{topic}"')
    query = scene.run(code)["query"]
    try:

        def spent() -> list[float]:
            return [
                answer.value.amount
                for answer in scene.client.get_many(scene.application, "spent", ["c1", "c2"])
                if answer.found
            ]

        until(lambda: spent() == [32.5, 1.0], LONG_SECONDS, 0.2, lambda: query.failure)
    finally:
        query.stop()


def test_a_state_as_a_data_frame(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/spark-reading.md")
    config = scene.service.config(scene.application)
    orders = [("o1", "c1", 150.0), ("o2", "c2", 20.0)]
    sink = queryable.value("orders", key="order", query="orders", config=config)
    assert sink.bootstrap(scene.spark.createDataFrame(orders, "order string, customer string, spent double"))
    customers = scene.spark.createDataFrame([("c1", "Ada"), ("c2", "Alan")], "customer string, name string")
    scene.run(code.replace('"shop/', f'"{scene.application}/'), customers=customers)
    printed = capsys.readouterr().out
    assert "Ada" in printed
    assert "Alan" not in printed


def test_the_state_of_a_window(scene: Scene) -> None:
    views = [{"page": "cart", "at": minute(25 * n)} for n in range(10)]
    scene.run(the("docs/windows.md", "F.window("), views=scene.stream("page string, at timestamp", [views]))
    code = the("docs/windows.md", "newest = ").replace('"shop"', f'"{scene.application}"')
    found = scene.run(code, client=scene.client, monday=MONDAY, tuesday=TUESDAY)
    assert [(hour.hour, value.views) for hour, value in found["day"]] == [(0, 3), (1, 2), (2, 3), (3, 2)]
    assert [hour.hour for hour, _ in found["newest"]] == [3]
    assert found["first"].value.views == 3


def test_hours_that_the_servers_add_up(scene: Scene) -> None:
    """A row of hours ago counts, too."""
    views = [{"page": "cart", "at": minute(25 * n)} for n in range(10)]
    stream = scene.stream("page string, at timestamp", [views, [{"page": "cart", "at": minute(1)}]])
    scene.run(the("docs/windows.md", "reductions import count"), views=stream)
    assert [value.views for value in scene.entries("all_views", "cart").values()] == [4, 2, 3, 2]


def test_the_state_of_two_streams(scene: Scene) -> None:
    impressions = scene.stream("ad string, shown timestamp", [[{"ad": "ad-1", "shown": minute(0)}]], "impressions")
    events = [{"clicked": "ad-1", "at": minute(m), "page": f"p{m}"} for m in (20, 30, 90)]
    clicks = scene.stream("clicked string, at timestamp, page string", [events], "clicks")
    scene.run(the("docs/joins.md", "pairs = "), impressions=impressions, clicks=clicks)
    printed: list[Any] = []
    code = the("docs/joins.md", "client.scan(").replace('"shop"', f'"{scene.application}"')
    scene.run(code, client=scene.client, print=lambda *words: printed.append(words))
    assert printed == [(timedelta(minutes=20), "p20"), (timedelta(minutes=30), "p30")]


def test_a_stream_and_a_table_that_changes(scene: Scene) -> None:
    rows = scene.spark.createDataFrame([("c1", "gold"), ("c2", "plain")], "customer string, tier string")
    rows.write.parquet(str(scene.directory / "tables" / "tiers"))
    scene.run(the("docs/joins.md", "tiers.bootstrap("))
    orders = [{"customer": "c1", "amount": 3}, {"customer": "c2", "amount": 4}, {"customer": "c1", "amount": 5}]
    scene.run(
        the("docs/joins.md", "def by_tier(").replace('"shop/', f'"{scene.application}/'),
        orders=scene.stream("customer string, amount long", [orders]),
    )
    assert [value.amount for value in scene.values("spent_by_tier", ["gold", "plain"])] == [8, 4]


def test_a_state_that_is_backfilled_and_once_more(scene: Scene) -> None:
    schema = "customer string, amount long, at timestamp"
    for folder, amount in (("orders", 3), ("corrected", 2)):
        old = scene.spark.createDataFrame([("c1", amount, MONDAY), ("c2", 1, MONDAY)], schema)
        old.write.parquet(str(scene.directory / "history" / folder))
    new = [{"customer": "c1", "amount": 40, "at": "2026-11-02T00:00:00Z"}]
    orders = scene.stream(schema, [[{"customer": "c1", "amount": 9, "at": minute(0)}, *new]])
    defined = scene.run(the("docs/backfill.md", "/history/orders"), orders=orders)
    assert [value.amount for value in scene.values("spent", ["c1", "c2"])] == [43, 1]
    scene.run(the("docs/backfill.md", "/history/corrected"), new=defined["new"])
    assert [value.amount for value in scene.values("spent", ["c1", "c2"])] == [42, 1]


def test_each_block_of_the_pages_is_in_one_of_these() -> None:
    own = Path(__file__).read_text()
    counted = {page: own.count(f'the("{page}", ') + (f'blocks("{page}")' in own) for page in PAGES}
    assert counted == {page: len(found) for page, found in SHOWN}

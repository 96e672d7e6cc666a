"""What Spark's real-time mode can't do is refused by name before the query starts, with what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it

from keyhole.errors import InvalidConfiguration, Unsupported
from keyhole.spark.driver.real_time_plan import check_real_time
from keyhole.spark.driver.real_time_session import check_session, check_sub
from keyhole.spark.driver.real_time_source import source_of


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


OPTIONS = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "events", "startingOffsets": "earliest"}

REFUSED: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], str]] = {
    "groupBy": (lambda events, _: events.groupBy("k").count(), "groupBy and agg: the state keeps .* kind reducing"),
    "dropDuplicates": (lambda events, _: events.dropDuplicates(["k"]), "dropDuplicates: the state keeps"),
    "within": (
        lambda events, _: events.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["k"]),
        "dropDuplicatesWithinWatermark: use a job by micro-batches",
    ),
    "repartition": (lambda events, _: events.repartition(2), "repartition and coalesce: leave it out"),
    "by": (lambda events, _: events.repartition(2, "k"), "repartition: leave it out"),
    "limit": (lambda events, _: events.limit(2), "limit: use a job by micro-batches"),
    "udf": (
        lambda events, _: events.filter(F.udf(str, "string", useArrow=False)("k") != "a"),
        r"Python \(str\) in the query: use SQL's functions",
    ),
    "mapInArrow": (
        lambda events, _: events.select("k").mapInArrow(nothing, "k string"),
        "Python .* in the query: use SQL's functions",
    ),
    "chance": (
        lambda events, _: events.selectExpr("k", "concat(k, string(uuid())) AS u"),
        r"uuid\(\), which makes other rows of the same records",
    ),
    "streams": (lambda events, _: events.join(events.select("k"), "k"), "join of two streams: let each feed a state"),
    "unhinted": (lambda events, table: events.join(table, "k"), "join without broadcast"),
    "unequal": (
        lambda events, table: events.join(F.broadcast(table.withColumnRenamed("k", "l")), F.expr("k < l")),
        "join without broadcast",
    ),
    "rate": (
        lambda events, _: events.sparkSession.readStream.format("rate").load(),
        "source of format rate: read from Kafka",
    ),
    "table": (lambda _, table: table, "rows that are no stream"),
}


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    """Of a Kafka that nobody asks: a query that has not started has no broker."""
    return spark.readStream.format("kafka").options(**OPTIONS).load().withColumn("k", F.col("value").cast("string"))


@pytest.fixture
def table(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr("string(id) AS k", "id AS n")


@pytest.mark.parametrize("name", REFUSED)
def test_what_real_time_mode_can_not_do_is_refused_by_name(events: DataFrame, table: DataFrame, name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(Unsupported, match=f"Spark's real-time mode has no {message}"):
        check_real_time(change(events, table))


def test_what_it_can_do_is_taken(events: DataFrame, table: DataFrame) -> None:
    rows = events.withWatermark("timestamp", "1 minute").filter("k <> ''").selectExpr("*", "posexplode(split(k, ','))")
    rows = rows.join(F.broadcast(table).alias("t"), F.expr("col = t.k"), "left").select("col", "pos", "n")
    check_real_time(rows.union(events.selectExpr("k", "0", "bigint(1)")))


def loaded(events: DataFrame, **options: str) -> DataFrame:
    """The events, by other options of the source; an empty one is left out."""
    given = {name: value for name, value in (OPTIONS | options).items() if value}
    return events.sparkSession.readStream.format("kafka").options(**given).load()


UNNUMBERED: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], str]] = {
    "dropped": (lambda events, _: events.select("k", "offset"), "not the column 'partition' of topic events"),
    "changed": (
        lambda events, _: events.selectExpr("k", "partition", "offset + 1 AS offset"),
        "not the column 'offset'",
    ),
    "another, secured": (
        lambda events, _: loaded(events, **{"kafka.security.protocol": "SASL_SSL"}),
        r"from Kafka at localhost:1, by kafka.security.protocol SASL_SSL: .* which is kafka:9092\. Name",
    ),
    "twice": (
        lambda events, _: events.selectExpr("k", "partition", "offset", "timestamp AS offset"),
        "not the column 'offset'",
    ),
    "union": (
        lambda events, _: events.union(
            events.sparkSession.readStream.format("kafka").options(**OPTIONS).load().withColumn("k", F.lit("a"))
        ),
        "come from 2 sources",
    ),
    "explode": (lambda events, _: events.withColumn("one", F.explode(F.split("k", ","))), "by an explode .* sub="),
    "join": (lambda events, table: events.join(F.broadcast(table), "k"), "by a join .* sub='0'"),
    "limited": (
        lambda events, _: loaded(events, maxOffsetsPerTrigger="9"),
        "refuses option maxOffsetsPerTrigger of topic events",
    ),
    "topics": (lambda events, _: loaded(events, subscribe="a,b"), "reads one topic by its name"),
    "no start": (
        lambda events, _: loaded(events, startingOffsets=""),
        "events is read from latest: .* what came since",
    ),
    "latest": (lambda events, _: loaded(events, startingOffsets="latest"), "is read from latest"),
    "offsets": (
        lambda events, _: loaded(events, startingOffsets='{"events":{"0":7}}'),
        r"is read from \{.*7\}\}: .* a filter on the rows",
    ),
    "a time": (
        lambda events, _: loaded(events, startingTimestamp="1000"),
        r'is read from startingTimestamp: .* option\("startingOffsets", "earliest"\) alone',
    ),
    "times": (
        lambda events, _: loaded(events, startingOffsetsByTimestamp='{"events":{"0":1000}}'),
        "is read from startingOffsetsByTimestamp",
    ),
    "alike": (
        lambda events, _: events.withColumnRenamed("topic", "Partition"),
        "columns 'partition' and 'Partition', which are one name to Spark .*; rename or drop the other",
    ),
    "lossy": (lambda events, _: loaded(events, failOnDataLoss="false"), "failOnDataLoss of topic events is not true"),
}


@pytest.mark.parametrize("name", UNNUMBERED)
def test_rows_that_have_not_their_records_numbers_are_refused(events: DataFrame, table: DataFrame, name: str) -> None:
    change, message = UNNUMBERED[name]
    with pytest.raises(InvalidConfiguration, match=message):
        source_of(change(events, table), None, "kafka:9092")


def test_rows_with_their_records_numbers_are_taken(events: DataFrame, table: DataFrame) -> None:
    rows = events.withWatermark("timestamp", "1 minute").selectExpr("*", "posexplode(split(k, ','))")
    rows = rows.filter("k <> ''").join(F.broadcast(table).alias("t"), F.expr("col = t.k"), "left")
    assert source_of(rows.select("t.k", "n", "pos", "offset", "partition"), "pos")[:2] == ("events", "localhost:1")
    assert source_of(events.select("offset", "partition", "k"), None).topic == "events"
    records = loaded(events, startingOffsets=" Earliest", failOnDataLoss="TRUE")
    assert source_of(records, None).topic == "events"


@pytest.mark.parametrize(
    ("query", "batch", "settings", "message"),
    [
        ("q", "soon", {}, "batch is 'soon', and must be a length of time"),
        ("q", "1 second", {}, "must be 5000 ms or more"),
        ("q", "1 minute", {"spark.sql.streaming.offsetLog.formatVersion": "2"}, "formatVersion is 2"),
    ],
)
def test_what_spark_would_refuse_is_refused_before_anybody_is_disturbed(
    spark: SparkSession, query: str, batch: str, settings: dict[str, str], message: str
) -> None:
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    with pytest.raises(InvalidConfiguration, match=message):
        check_session(session, query, batch)
    check_session(spark, query, "5 seconds")


def test_rows_of_a_record_are_numbered_by_whole_numbers_that_are_always_the_same(events: DataFrame) -> None:
    rows = events.selectExpr("*", "posexplode(split(k, ','))")
    check_sub(rows, "pos")
    with pytest.raises(InvalidConfiguration, match="sub is 'pos / 2', of type double"):
        check_sub(rows, "pos / 2")
    with pytest.raises(Unsupported, match="no monotonically_increasing_id"):
        check_sub(rows, "monotonically_increasing_id()")

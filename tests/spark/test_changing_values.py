"""What comes to another value when a record is read again is refused by its name, before anything is started."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it

from keyhole.errors import Unsupported
from keyhole.spark.driver.changing_values import changing
from keyhole.spark.driver.plan_nodes import each
from keyhole.spark.driver.real_time_plan import check_real_time
from keyhole.spark.driver.real_time_session import check_sub

AGAIN = "which makes other rows of the same records when they are read again"
TIME, LITERAL, RECORD = (
    "use the record's own time",
    "write a literal",
    "make keys, values and numbers of the record alone",
)

CHANGING = {
    "current_date()": (r"current_date\(\)", TIME),
    "curdate()": (r"current_date\(\)", TIME),
    "concat(k, current_timestamp)": (r"current_timestamp\(\)", TIME),
    "date_trunc('day', now())": (r"now\(\)", TIME),
    "localtimestamp()": (r"localtimestamp\(\)", TIME),
    "current_time(3)": (r"current_time\(\)", TIME),
    "unix_timestamp()": (r"unix_timestamp\(\)", TIME),
    "timestamp > 'yesterday'": ("'yesterday' as a time", TIME),
    "to_date(' Today UTC')": ("' Today UTC' as a time", TIME),
    "try_to_timestamp('now')": ("'now' as a time", TIME),
    "transform(split(k, ','), one -> concat(one, current_date()))": (r"current_date\(\)", TIME),
    "(SELECT max(now()) FROM range(2))": (r"now\(\)", TIME),
    "k IN (SELECT string(rand()) FROM range(2))": (r"rand\(\)", RECORD),
    "user()": (r"(current_)?user\(\)", LITERAL),
    "current_schema()": (r"current_(schema|database)\(\)", LITERAL),
    "current_catalog()": (r"current_catalog\(\)", LITERAL),
    "current_timezone()": (r"current_timezone\(\)", LITERAL),
    "version()": (r"version\(\)", LITERAL),
    "concat(k, uuid())": (r"uuid\(\)", RECORD),
    "rand(7) > 0.5": (r"rand\(\)", RECORD),
    "randn()": (r"randn\(\)", RECORD),
    "randstr(5)": (r"randstr\(\)", RECORD),
    "uniform(1, 9)": (r"uniform\(\)", RECORD),
    "shuffle(array(1, 2))": (r"shuffle\(\)", RECORD),
    "spark_partition_id()": (r"spark_partition_id\(\)", RECORD),
    "monotonically_increasing_id()": (r"monotonically_increasing_id\(\)", RECORD),
    "input_file_name()": (r"input_file_name\(\)", RECORD),
    "java_method('java.util.UUID', 'randomUUID')": (r"java_method\(\)", RECORD),
    "aes_encrypt(k, '0000111122223333')": (
        r"aes_encrypt\(\) with a vector by chance",
        "give it an initialization vector",
    ),
}

SAME = [
    *("date_trunc('day', timestamp)", "date(timestamp)", "unix_timestamp(timestamp)", "unix_timestamp(k, 'yyyy')"),
    *("to_date('2026-11-29')", "k = 'today'", "timestamp > 'epoch'", "hash(k)", "date'2026-11-29'"),
    *("aes_encrypt(k, '0000111122223333', 'ECB')", "aes_encrypt(k, repeat('0', 16), 'CBC', 'PKCS', repeat('1', 16))"),
]

# Of those functions that need no argument.
_CONSTANTS = {"pi", "e", "make_interval", "make_dt_interval", "make_ym_interval"}
_NOT_OF_A_ROW = {"agg_funcs", "window_funcs"}


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    """Of a Kafka that nobody asks."""
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "events"}
    rows = spark.readStream.format("kafka").options(**options).load()
    return rows.withColumn("k", F.col("value").cast("string"))


@pytest.mark.parametrize("sql", CHANGING)
def test_what_comes_to_another_value_when_it_is_read_again_is_refused_by_its_name(events: DataFrame, sql: str) -> None:
    name, instead = CHANGING[sql]
    with pytest.raises(Unsupported, match=f"no {name}, {AGAIN}: {instead}"):
        check_real_time(events.selectExpr("k", f"{sql} AS changing"))


def test_so_it_is_wherever_it_stands(events: DataFrame, spark: SparkSession) -> None:
    table = spark.range(3).selectExpr("string(id) AS k", "now() AS at")
    for rows in (
        events.filter("timestamp < now()"),
        events.selectExpr("k", "explode(array(now()))"),
        events.join(F.broadcast(table), "k"),
        events.selectExpr("now() AS at", "k").select("k"),
    ):
        with pytest.raises(Unsupported, match=r"no now\(\)"):
            check_real_time(rows)
    with pytest.raises(Unsupported, match=r"no unix_timestamp\(\)"):
        check_sub(events, "unix_timestamp() % 2")


def test_what_a_record_alone_says_is_taken(events: DataFrame) -> None:
    check_real_time(events.selectExpr("k", *(f"{sql} AS same{at}" for at, sql in enumerate(SAME))))


def test_of_spark_s_own_functions_without_arguments_those_that_pass_are_constants(spark: SparkSession) -> None:
    """A release of Spark that brings another clock is noticed here."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    passed, refused = set(), set()
    for identifier in each(registry.listFunction()):
        name = str(identifier.funcName())
        info = registry.lookupFunction(identifier).get()
        # Those that need an argument say so; and no real-time query has the others.
        if info.getGroup() in _NOT_OF_A_ROW or not re.search(rf"\b{re.escape(name)}\((\)|\[)", str(info.getUsage())):
            continue
        with suppress(PySparkException):
            made = registry.lookupFunction(identifier, jvm.PythonUtils.toSeq([]))
            (passed if changing(made) is None else refused).add(name)
    assert {"current_date", "now", "uuid", "version"} <= refused
    assert sorted(passed) == sorted(_CONSTANTS)

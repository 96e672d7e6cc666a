"""What a real-time query needs of the session that it is started in, looked at before anybody is disturbed."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark

from keyhole.errors import InvalidConfiguration
from keyhole.spark.driver.jvm import java_class
from keyhole.spark.driver.real_time_plan import check_real_time

_LEAST = "spark.sql.streaming.realTimeMode.minBatchDuration"
_LOG_FORMAT, _KNOWN_FORMAT = "spark.sql.streaming.offsetLog.formatVersion", "1"
_WHOLE = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)


def check_session(session: SparkSession, query: str, batch: str) -> None:
    """Whether Spark would start a query of this name, with batches of this length.

    Raises:
        InvalidConfiguration: One of the name runs. Or the length is none, or too short. Or the session writes its logs
            in a form that is not known.
    """
    if any(active.name == query for active in session.streams.active):
        raise InvalidConfiguration(
            f"query {query!r} runs in this session: stop it first, or call this one otherwise with query=", query=query
        )
    if (version := session.conf.get(_LOG_FORMAT, _KNOWN_FORMAT)) != _KNOWN_FORMAT:
        raise InvalidConfiguration(
            f"{_LOG_FORMAT} is {version}, and real-time queries read Spark's log of offsets of version "
            f"{_KNOWN_FORMAT}: leave it out"
        )
    try:
        # It has no other name in Python, and a text is all that the writer takes.
        length = int(java_class(session, "org.apache.spark.sql.streaming.Trigger").RealTime(batch).batchDurationMs())
    except PySparkException as error:
        raise InvalidConfiguration(f"batch is {batch!r}, and must be a length of time, as '1 minute'") from error
    text = session.conf.get(_LEAST)
    least = int(java_class(session, "org.apache.spark.network.util.JavaUtils").timeStringAsMs(text))
    if length < least:
        raise InvalidConfiguration(
            f"batch is {batch!r}, and must be {least} ms or more ({_LEAST}): rows are readable long before its end"
        )


def check_slots(slots: int, reading: Sequence[tuple[str, int]], taken: int) -> None:
    """Whether Spark has a core for each partition, beside those that other real-time queries have. Pure.

    Args:
        slots: How many tasks Spark runs at once.
        reading: Topics of the query, and how many partitions each has.
        taken: By the others.

    Raises:
        InvalidConfiguration: It has not.
    """
    partitions = sum(count for _, count in reading)
    if slots - taken >= partitions:
        return
    topics = ", ".join(f"{topic} has {count}" for topic, count in reading)
    others = f", of which other real-time queries have {taken}" if taken else ""
    raise InvalidConfiguration(
        f"in real-time mode Spark reads {partitions} partitions at once ({topics}), each in a task that lasts as long "
        f"as the batch, and it has {slots} cores for tasks{others}: some would not be read. Start it with "
        f"local[{partitions + taken}], or give the executors {partitions + taken} cores in all",
        slots=slots,
        partitions=partitions,
    )


def check_sub(rows: DataFrame, sub: str) -> None:
    """Whether it is SQL over the rows' columns that can number the rows of a record.

    Raises:
        InvalidConfiguration: It is no whole number.
        Unsupported: As check_real_time: it is Python, or another number when the rows are made again.
        AnalysisException: It is nothing that can be said of these columns.
    """
    numbers = rows.selectExpr(sub)
    check_real_time(numbers)
    kind = numbers.schema[0].dataType
    if not isinstance(kind, _WHOLE):
        raise InvalidConfiguration(
            f"sub is {sub!r}, of type {kind.simpleString()}: it must be a whole number from 0, as posexplode's pos"
        )

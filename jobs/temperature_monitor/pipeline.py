"""Readings in; what is kept of each sensor, its jumps and its alerts out. Pure: data frames in, data frames out."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from jobs.temperature_monitor.processor import EXPOSED, OUTPUT, SENSORS, Sensors
from keyhole.spark.dead_letters import Accept, drop, first_broken
from keyhole.spark.json_records import WELL_FORMED, parsed
from keyhole.spark.processor import QueryableProcessor

APPLICATION = "temperature-monitor"
STATE = SENSORS
ALERTS = "alerts"
ALERT_COLUMNS = ("time_ms", "last", "new", "ratio", "threshold")
THRESHOLDS = "thresholds"
THRESHOLD_SCHEMA = "sensor string, ratio double"
KEY = "sensor"
# Each that an epoch touches is a partition of its transaction in Kafka: no more than a job's servers will ever be.
KEY_GROUPS = 16

# How late a reading may come.
DELAY = "1 minute"
# Alerts kept per sensor.
ALERTS_KEPT = 100
# An update below it removes the sensor's threshold; a default below it is none.
LOWEST_THRESHOLD = 1.0
NO_THRESHOLD = 0.0

# A key of any length would end the query at the first one that the store can't take.
MAX_SENSOR_BYTES = 128
# A reading from the future would move the watermark there, and all others would be too late.
MAX_SECONDS_AHEAD = 60

_READING = {"sensor": "string", "time": "string", "temperature": "double"}
_UPDATE = {"sensor": "string", "ratio": "double"}
_TIME = r"\A(19[7-9]|20\d)\d-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?Z\z"
_HAS_SENSOR = {f"octet_length(sensor) between 1 and {MAX_SENSOR_BYTES}": "no sensor, or one that is too long"}
# In this order; the first that fails is the reason. A record that is no JSON object has none of the fields.
_READING_RULES = {
    **_HAS_SENSOR,
    "abs(temperature) < double('infinity')": "no finite temperature",
    f"__time rlike r'{_TIME}' and time is not null": "no time, as 2026-11-21T10:00:00Z",
    f"time <= timestamp + interval {MAX_SECONDS_AHEAD} seconds": "the time is ahead of the record's",
    **WELL_FORMED,
}
_UPDATE_RULES = {**_HAS_SENSOR, "abs(ratio) < double('infinity')": "no finite ratio", **WELL_FORMED}


def readings(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The readings in Kafka's records.

    Args:
        records: Kafka's columns; `value`: a JSON object of sensor (string), time (ISO 8601, UTC) and temperature
            (degrees Celsius).
        accept: What to do with records that are none.

    Returns:
        sensor: string, 1 to MAX_SENSOR_BYTES bytes; temperature: double, a finite number; time: timestamp; time_ms:
        bigint, milliseconds since 1970; kafka_partition: int and kafka_offset: bigint, where the record was.
    """
    columns = (
        parsed(records, _READING)
        .withColumnRenamed("time", "__time")
        .withColumns(
            {
                "time": f.try_to_timestamp("__time"),
                "kafka_partition": f.col("partition"),
                "kafka_offset": f.col("offset"),
            }
        )
    )
    return accept(columns, first_broken(_READING_RULES)).withColumn("time_ms", f.unix_millis("time"))


def exposing() -> QueryableProcessor:
    """The processor, with the state that readers find."""
    return QueryableProcessor(Sensors(), key=KEY, expose=EXPOSED)


def tracked(of: DataFrame, processor: QueryableProcessor) -> DataFrame:
    """Runs the processor over the readings: jumps, and what changes in its state (keyhole.spark.changes.split).

    Needs `spark.sql.streaming.stateStore.providerClass` to be RocksDB's.
    """
    return processor.transform(of.withWatermark("time", DELAY), OUTPUT, time_mode="eventTime")


def alerts(jumps: DataFrame, thresholds: DataFrame, default_threshold: float = NO_THRESHOLD) -> DataFrame:
    """The jumps that go beyond the threshold of their sensor.

    Args:
        jumps: The processor's own rows of a batch.
        thresholds: sensor, ratio: the thresholds that the batch reads.
        default_threshold: Of the sensors that are not among them; below LOWEST_THRESHOLD: they have no alerts.

    Returns:
        sensor: string; reading: bigint, the new one's number since the sensor was first seen; time_ms: bigint; last,
        new: double, degrees Celsius; ratio, threshold: double.
    """
    of = f.broadcast(thresholds.withColumnRenamed("ratio", "threshold"))
    if default_threshold < LOWEST_THRESHOLD:
        measured = jumps.join(of, KEY)
    else:
        measured = jumps.join(of, KEY, "left").fillna(default_threshold, ["threshold"])
    return measured.where("ratio > threshold").selectExpr(KEY, "reading", *ALERT_COLUMNS)


def updates(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The updates of thresholds in Kafka's records, as `readings`.

    Args:
        records: `value`: a JSON object of sensor (string) and ratio (number).

    Returns:
        sensor: string; ratio: double, finite; kafka_offset: bigint.
    """
    columns = parsed(records, _UPDATE).withColumn("kafka_offset", f.col("offset"))
    return accept(columns, first_broken(_UPDATE_RULES))


def latest(of: DataFrame) -> DataFrame:
    """Of a batch of updates, which come from one partition, the last one of each sensor: sensor, ratio."""
    return of.groupBy(KEY).agg(f.max_by("ratio", "kafka_offset").alias("ratio"))

"""Readings in, one row per sensor out. Pure: data frames in, data frames out."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

APPLICATION = "temperature-monitor"
STATE = "max_temperature"
KEY = "sensor"
KEY_GROUPS = 64
# A divisor of the key groups, so that the sink needs no shuffle of its own after the aggregation's.
SHUFFLE_PARTITIONS = 4

# A key of any length would end the query at the first one that the store can't take.
MAX_SENSOR_BYTES = 128

_READING = "sensor string, time timestamp, temperature double"
_IS_READING = f"octet_length(sensor) between 1 and {MAX_SENSOR_BYTES} and abs(temperature) < double('infinity')"


def readings(records: DataFrame) -> DataFrame:
    """The readings in Kafka's records; those that aren't any are dropped.

    Args:
        records: `value`: a JSON object of sensor (string), time (ISO 8601) and temperature (degrees Celsius).

    Returns:
        sensor: string, 1 to MAX_SENSOR_BYTES bytes; time: timestamp, null where it was none; temperature: double, a
        finite number.
    """
    parsed = records.select(f.from_json(f.col("value").cast("string"), _READING).alias("reading")).select("reading.*")
    return parsed.where(_IS_READING)  # null, and so dropped, where either is absent; NaN is beyond infinity to Spark


def max_temperature(of: DataFrame) -> DataFrame:
    """The running maximum per sensor over all readings, and how many there were.

    Returns:
        sensor: string, temperature: double (degrees Celsius), readings: bigint. In update mode.
    """
    return of.groupBy(KEY).agg(f.max("temperature").alias("temperature"), f.count("*").alias("readings"))

"""Request logs and samples of the load in, measurements by service and minute out. Pure: data frames in and out."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole.spark.dead_letters import Accept, drop, first_broken
from keyhole.spark.json_records import WELL_FORMED, parsed

APPLICATION = "golden-signals"
STATE = "golden_signals"
KEY = ("service", "minute")
# What jobs.golden_signals.signals.GoldenSignals takes: one of its rows is one of the state's.
VALUE = ("duration_us", "failed", "cpu_permille", "memory_permille")
# Each that an epoch touches is a partition of its transaction in Kafka: no more than a job's servers will ever be.
KEY_GROUPS = 16

# A service: JSON's other words are no names.
NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
NO_NAMES = ("true", "false", "null")
# A request of more than a day is a mistake in the log; the year 2100 is one of the clock.
LONGEST_US = 86_400_000_000
END_OF_TIME_MS = 4_102_444_800_000

_MINUTE_MS = 60_000
_RECORD = {
    "service": "string",
    **dict.fromkeys(("time", "duration"), "bigint"),
    **dict.fromkeys(("status", "cpu", "memory"), "int"),
}
# How long a minute can be read, from its last record on.
KEPT_FOR = timedelta(days=7)
_IS_REQUEST = f"duration between 0 and {LONGEST_US} and status between 100 and 599 and cpu is null and memory is null"
_IS_LOAD = "cpu between 0 and 1000 and memory between 0 and 1000 and duration is null and status is null"
# In this order; the first that fails is the reason. A record that is no JSON object has none of the fields.
_RULES = {
    rf"service rlike r'\A{NAME}\z' and service not in {NO_NAMES}": "service is no name",
    f"time >= 0 and time < {END_OF_TIME_MS}": "time is no number of milliseconds from 1970 to 2099",
    f"({_IS_REQUEST}) or ({_IS_LOAD})": "it is neither a request nor a sample of the load, or both",
    **WELL_FORMED,
}


def measurements(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The measurements in Kafka's records.

    A failure is what the service is to blame for: a status of 500 or more.

    Args:
        records: `value`: a JSON object of service (a name) and time (milliseconds since 1970), and of either duration
            (microseconds) and status (HTTP's), or cpu and memory (permille).
        accept: What to do with records that are none.

    Returns:
        service: string; minute: timestamp, its start; duration_us: bigint and failed: boolean, or else null;
        cpu_permille, memory_permille: int, or else null. A row each, not aggregated: the state does that.
    """
    valid = accept(parsed(records, _RECORD), first_broken(_RULES))
    return valid.select(
        "service",
        f.timestamp_millis(f.col("time") - f.col("time") % _MINUTE_MS).alias("minute"),
        f.col("duration").alias("duration_us"),
        (f.col("status") >= 500).alias("failed"),
        f.col("cpu").alias("cpu_permille"),
        f.col("memory").alias("memory_permille"),
    )

"""Payments, rules and aggregations in; alerts and what adds up to totals out. Pure: data frames in, data frames out."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from jobs.fraud_detection.processor import OUTPUT

APPLICATION = "fraud-detection"
KEY_GROUPS = 64
# A divisor of the key groups, so that alerts need no shuffle of their own after that of the grouping.
SHUFFLE_PARTITIONS = 4

ALERTS, ALERTS_KEY, ALERTS_MAP_KEY = "alerts", "account", ("time_ms", "payment")
TOTALS, TOTALS_KEY, TOTALS_MAP_KEY = "totals", ("aggregation", "of"), "window"
TOTALS_REDUCERS = {"spent_cents": "sum", "payments": "count", "highest_cents": "max"}
RULES, RULES_KEY = "rules", "rule"
AGGREGATIONS, AGGREGATIONS_KEY = "aggregations", "aggregation"

# How late a payment may come and still be half of a pair. Totals take all.
DELAY = "10 seconds"

# An account, a merchant or an aggregation: JSON's other words are no names.
NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
NO_NAMES = ("true", "false", "null")
END_OF_TIME_MS = 4_102_444_800_000  # the year 2100
MOST_CENTS = 100_000_000_000
LONGEST_WINDOW_MS = 366 * 86_400_000

_PAYMENT = "account string, payment bigint, merchant string, time bigint, cents bigint"
_RULE = "rule bigint, since bigint, small bigint, large bigint"
_AGGREGATION = "aggregation string, by string, window bigint, since bigint, until bigint"


def payments(records: DataFrame) -> DataFrame:
    """The payments in Kafka's records; those that aren't any are dropped.

    Args:
        records: `value`: a JSON object of account, merchant (names), payment (a whole number of 64 bits), time
            (milliseconds since 1970) and cents (whole, more than 0).

    Returns:
        account: string, payment: bigint, merchant: string, time_ms: bigint, cents: bigint; time: timestamp.
    """
    parsed = _parsed(records, _PAYMENT).where(f.col("payment").isNotNull())
    valid = _named(_named(parsed, "account"), "merchant").where(
        f"time >= 0 and time < {END_OF_TIME_MS} and cents between 1 and {MOST_CENTS}"
    )
    return valid.withColumnRenamed("time", "time_ms").withColumn("time", f.timestamp_millis("time_ms"))


def rules(records: DataFrame) -> DataFrame:
    """The rules in Kafka's records: rule, since_ms, small_cents, large_cents, all bigint."""
    parsed = _parsed(records, _RULE).where("rule is not null and since >= 0 and small >= 0 and small < large")
    return parsed.select(
        "rule",
        f.col("since").alias("since_ms"),
        f.col("small").alias("small_cents"),
        f.col("large").alias("large_cents"),
    )


def aggregations(records: DataFrame) -> DataFrame:
    """The aggregations in Kafka's records: aggregation and by: string; window_ms, since_ms, until_ms: bigint.

    `until_ms` is null where an aggregation goes on.
    """
    parsed = _named(_parsed(records, _AGGREGATION), "aggregation").where(
        f"by in ('account', 'merchant') and window between 1 and {LONGEST_WINDOW_MS} and since >= 0"
    )
    return parsed.select(
        "aggregation",
        "by",
        f.col("window").alias("window_ms"),
        f.col("since").alias("since_ms"),
        f.col("until").alias("until_ms"),
    )


def judged(of: DataFrame, by: DataFrame) -> DataFrame:
    """The payments, and whether each is small or large by the rule that was in force when it was made.

    Args:
        of: As `payments` gives them; may be a stream.
        by: As `rules` gives them, each once; not a stream. A batch judges by the rules that it finds: one that is
            published after payments of its time were judged changes nothing about them, unless the batch is run again.

    Returns:
        The columns of `of`; small, large: boolean.
    """
    following = f.lead("since_ms").over(Window.orderBy("since_ms", "rule"))
    in_force = f.broadcast(by.withColumn("until_ms", following))
    time = f.col("time_ms")
    within = (time >= f.col("since_ms")) & (f.col("until_ms").isNull() | (time < f.col("until_ms")))
    return of.join(in_force, within, "left").select(
        *(of[name] for name in of.columns),
        f.coalesce(f.col("cents") <= f.col("small_cents"), f.lit(False)).alias("small"),
        f.coalesce(f.col("cents") >= f.col("large_cents"), f.lit(False)).alias("large"),
    )


def alerts(of: DataFrame, processor: StatefulProcessor, *, output: str = OUTPUT, mode: str = "update") -> DataFrame:
    """Runs a FraudDetector, or a processor that wraps it, over judged payments.

    Needs `spark.sql.streaming.stateStore.providerClass` to be RocksDB's.

    Args:
        output: The schema of the processor's rows; default: alerts.
    """
    return (
        of.withWatermark("time", DELAY)
        .groupBy("account")
        .transformWithState(processor, outputStructType=output, outputMode=mode, timeMode="eventTime")
    )


def contributions(of: DataFrame, to: DataFrame) -> DataFrame:
    """What each payment brings to each aggregation: rows for a reducing state, by TOTALS_REDUCERS.

    Args:
        of: As `payments` gives them; may be a stream.
        to: As `aggregations` gives them, each once; not a stream.

    Returns:
        aggregation, of: string; window: timestamp, its start; spent_cents, payments, highest_cents: bigint.
    """
    time, window_ms = f.col("time_ms"), f.col("window_ms")
    within = (time >= f.col("since_ms")) & (f.col("until_ms").isNull() | (time < f.col("until_ms")))
    return of.join(f.broadcast(to), within).select(
        "aggregation",
        f.when(f.col("by") == "account", f.col("account")).otherwise(f.col("merchant")).alias("of"),
        f.timestamp_millis(time - time % window_ms).alias("window"),
        f.col("cents").alias("spent_cents"),
        f.lit(1).cast("bigint").alias("payments"),
        f.col("cents").alias("highest_cents"),
    )


def _parsed(records: DataFrame, schema: str) -> DataFrame:
    return records.select(f.from_json(f.col("value").cast("string"), schema).alias("record")).select("record.*")


def _named(of: DataFrame, column: str) -> DataFrame:
    return of.where(f.col(column).rlike(rf"\A{NAME}\z") & ~f.col(column).isin(*NO_NAMES))

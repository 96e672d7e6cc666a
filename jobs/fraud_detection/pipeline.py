"""Payments, rules and aggregations in; alerts and what adds up to totals out. Pure: data frames in, data frames out."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from jobs.fraud_detection.model import AMOUNTS, FIELDS, Payment
from jobs.fraud_detection.processor import EXPOSED, OUTPUT, PairFinder
from keyhole.spark.dead_letters import Accept, drop, first_broken
from keyhole.spark.json_records import WELL_FORMED, parsed
from keyhole.spark.processor import QueryableProcessor

APPLICATION = "fraud-detection"
QUERY = "fraud_detection"
KEY = "account"
# Each that an epoch touches is a partition of its transaction in Kafka: no more than a job's servers will ever be.
KEY_GROUPS = 16

ALERTS, ALERTS_MAP_KEY = "alerts", ("time_ms", "payment")
TOTALS, TOTALS_KEY, TOTALS_MAP_KEY = "totals", ("aggregation", "of"), "window"
TOTALS_REDUCERS = {"spent_cents": "sum", "payments": "count", "highest_cents": "max"}
SPENT, SPENT_REDUCERS = "spent", {"payments": "sum", "cents": "sum"}
RULES, RULES_KEY = "rules", "rule"
AGGREGATIONS, AGGREGATIONS_KEY = "aggregations", "aggregation"
# Of two records about one rule, or one aggregation, the one that was published last counts.
PUBLISHED = "published"
RULES_SCHEMA = "rule bigint, since_ms bigint, small_cents bigint, large_cents bigint, published bigint"
AGGREGATIONS_SCHEMA = (
    "aggregation string, by string, window_ms bigint, since_ms bigint, until_ms bigint, of string, published bigint"
)
# What the totals of an aggregation by nothing are of; else the values, with this between them, which is in no name.
ALL, BETWEEN = "all", ":"

# How late a payment may come and still be half of a pair. Totals take all.
DELAY = "10 seconds"

# An account, a merchant or an aggregation: JSON's other words are no names.
NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
NO_NAMES = ("true", "false", "null")
END_OF_TIME_MS = 4_102_444_800_000  # the year 2100
MOST_CENTS = 100_000_000_000
LONGEST_WINDOW_MS = 366 * 86_400_000

_PAYMENT = {name: "string" if name in ("account", "merchant") else "bigint" for name in FIELDS}
_RULE = dict.fromkeys(("rule", "since", "small", "large"), "bigint")
_AGGREGATION = {
    "aggregation": "string",
    "by": "variant",
    "of": "string",
    **dict.fromkeys(("window", "since", "until"), "bigint"),
}
# One name, or a list; null where it is neither.
_NAMES = (
    "if(schema_of_variant(by) = 'STRING', array(variant_get(by, '$', 'string')), "
    "try_variant_get(by, '$', 'array<string>'))"
)


def _is_name(column: str) -> str:
    return rf"{column} rlike r'\A{NAME}\z' and {column} not in {NO_NAMES}"


# In this order; the first that fails is the reason. A record that is no JSON object has none of the fields.
_PAYMENTS_RULES = {
    _is_name("account"): "account is no name",
    _is_name("merchant"): "merchant is no name",
    "payment is not null": "payment is no whole number of 64 bits",
    f"time >= 0 and time < {END_OF_TIME_MS}": "time is no number of milliseconds from 1970 to 2099",
    f"cents between 1 and {MOST_CENTS}": f"cents is no whole number from 1 to {MOST_CENTS}",
    f"coalesce(fee, 0) between 0 and {MOST_CENTS}": f"fee is no whole number up to {MOST_CENTS}",
    **WELL_FORMED,
}
_RULES_RULES = {
    "rule is not null": "rule is no whole number of 64 bits",
    # jobs.fraud_detection.pairs relies on it.
    "since >= 0 and since % 1000 = 0": "since is no full second, in milliseconds since 1970",
    "small >= 0 and small < large": "small and large are no amounts, the one below the other",
    **WELL_FORMED,
}
_AGGREGATIONS_RULES = {
    _is_name("aggregation"): "aggregation is no name",
    f"forall(by, each -> each in {FIELDS}) and by = array_distinct(by)": (
        f"by is neither one of {', '.join(FIELDS)}, nor a list of some of them, each once, or of none"
    ),
    f"coalesce(of, 'cents') in {AMOUNTS}": f"of is none of {', '.join(AMOUNTS)}",
    f"window between 1 and {LONGEST_WINDOW_MS}": "window is no number of milliseconds up to a year",
    "since >= 0": "since is no number of milliseconds since 1970",
    # Also of `of`, and of `until`: null is none, and it goes on.
    **WELL_FORMED,
}


def payments(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The payments in Kafka's records.

    Args:
        records: `value`: a JSON object of account, merchant (names), payment (a whole number of 64 bits), time
            (milliseconds since 1970), cents (whole, more than 0) and fee (whole; null or not there: 0).
        accept: What to do with records that are none.

    Returns:
        account: string, payment: bigint, merchant: string, time_ms, cents, fee_cents: bigint; time: timestamp.
    """
    valid = accept(parsed(records, _PAYMENT), first_broken(_PAYMENTS_RULES))
    valid = valid.withColumnsRenamed({"time": "time_ms", "fee": "fee_cents"})
    return valid.fillna(0, "fee_cents").withColumn("time", f.timestamp_millis("time_ms"))


def rules(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The rules in Kafka's records (value, offset), by RULES_SCHEMA."""
    valid = accept(_published(records, _RULE), first_broken(_RULES_RULES))
    return valid.select(
        "rule",
        f.col("since").alias("since_ms"),
        f.col("small").alias("small_cents"),
        f.col("large").alias("large_cents"),
        PUBLISHED,
    )


def aggregations(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The aggregations in Kafka's records (value, offset), by AGGREGATIONS_SCHEMA.

    `until_ms` is null where an aggregation goes on.
    """
    read = _published(records, _AGGREGATION).withColumn("by", f.expr(_NAMES))
    valid = accept(read, first_broken(_AGGREGATIONS_RULES))
    return valid.select(
        "aggregation",
        f.array_join("by", ",").alias("by"),
        f.col("window").alias("window_ms"),
        f.col("since").alias("since_ms"),
        f.col("until").alias("until_ms"),
        f.coalesce("of", f.lit("cents")).alias("of"),
        PUBLISHED,
    )


def spent(of: DataFrame) -> DataFrame:
    """What each payment brings to what its account has spent: rows for a reducing state, by SPENT_REDUCERS.

    Args:
        of: account: string, cents: a whole number; a stream or a table. For SQL it is a temporary view, which Spark
            drops again.

    Returns:
        account: string; payments, cents: bigint.
    """
    return of.sparkSession.sql("SELECT account, 1L AS payments, CAST(cents AS BIGINT) AS cents FROM {paid}", paid=of)


def exposing() -> QueryableProcessor:
    """The processor, with the state that readers find."""
    return QueryableProcessor(PairFinder(), key=KEY, expose=EXPOSED)


def paired(of: DataFrame, processor: QueryableProcessor) -> DataFrame:
    """Runs the processor over payments: its own rows, and what changes in its state (keyhole.spark.changes.split).

    Needs `spark.sql.streaming.stateStore.providerClass` to be RocksDB's.
    """
    # Without the column that the watermark is on, Spark drops no late rows in front of the processor, which knows them
    # itself: they are in no pair, but in the totals.
    return processor.transform(of.withWatermark("time", DELAY).drop("time"), OUTPUT, time_mode="eventTime")


def arrived(rows: DataFrame) -> DataFrame:
    """Of the processor's own rows, the payments as they came: each record once."""
    return rows.where("merchant is not null").drop("smalls")


def alerts(rows: DataFrame, by: DataFrame) -> DataFrame:
    """Of the processor's own rows, the payments that are large, and one before them is small, each once.

    Each of the two is judged by the rule in force when it was made.

    Args:
        by: By RULES_SCHEMA, each rule once; not a stream. All that a batch finds is judged by the rules that it is
            given, and never again.

    Returns:
        account: string; time_ms, payment, cents: bigint.
    """
    table = by.agg(f.array_agg(f.struct("since_ms", "rule", "small_cents", "large_cents")).alias("rules"))
    judged = rows.where("smalls is not null").crossJoin(f.broadcast(table))
    is_large = f.col("cents") >= _in_force(f.col("time_ms"))["large_cents"]
    found = judged.where(is_large & f.exists("smalls", _is_small))
    return found.select("account", "time_ms", "payment", "cents")


def _in_force(time_ms: Column) -> Column:
    """The rule of a moment, null where there is none: of the highest since_ms, then of the highest number."""
    return f.array_max(f.filter("rules", lambda rule: rule["since_ms"] <= time_ms))


def _is_small(payment: Column) -> Column:
    return payment["cents"] <= _in_force(payment["time_ms"])["small_cents"]


def contributions(of: DataFrame, to: DataFrame) -> DataFrame:
    """What each payment brings to each aggregation: rows for a reducing state, by TOTALS_REDUCERS.

    Args:
        of: As `payments` or `arrived` give them; may be a stream.
        to: By AGGREGATIONS_SCHEMA, each aggregation once; not a stream.

    Returns:
        aggregation, of: string; window: timestamp, its start; spent_cents, payments, highest_cents: bigint.
    """
    time, window_ms, by = f.col("time_ms"), f.col("window_ms"), f.col("by")
    within = (time >= f.col("since_ms")) & (f.col("until_ms").isNull() | (time < f.col("until_ms")))
    columns = dict(zip(FIELDS, Payment._fields, strict=True))
    texts = _by_name({name: f.col(column).cast("string") for name, column in columns.items()})
    amounts = _by_name({name: f.col(columns[name]) for name in AMOUNTS})
    values = f.array_join(f.transform(f.split(by, ","), lambda name: texts[name]), BETWEEN)
    # What was published before there was an `of` has none.
    amount = amounts[f.coalesce("of", f.lit("cents"))]
    return of.join(f.broadcast(to), within).select(
        "aggregation",
        f.when(by == "", ALL).otherwise(values).alias("of"),
        f.timestamp_millis(time - time % window_ms).alias("window"),
        amount.alias("spent_cents"),
        f.lit(1).cast("bigint").alias("payments"),
        amount.alias("highest_cents"),
    )


def _by_name(columns: Mapping[str, Column]) -> Column:
    return f.create_map(*(part for name, column in columns.items() for part in (f.lit(name), column)))


def _published(records: DataFrame, fields: Mapping[str, str]) -> DataFrame:
    return parsed(records, fields).withColumn(PUBLISHED, f.col("offset"))

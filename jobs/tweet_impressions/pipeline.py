"""Impressions and clicks in, counts per tweet and hour out. Pure: data frames in, data frames out."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from keyhole.spark.dead_letters import Accept, drop, first_broken
from keyhole.spark.json_records import WELL_FORMED, parsed

APPLICATION = "tweet-impressions"
QUERY = "tweet_impressions"
# Each that an epoch touches is a partition of its transaction in Kafka: no more than a job's servers will ever be.
KEY_GROUPS = 16

# Two states of one query: `tweet_hours` is a map, from hours to counts, per tweet; `top_tweets` the best of each hour.
TWEET_HOURS, TWEET_HOURS_KEY, TWEET_HOURS_MAP_KEY = "tweet_hours", "tweet", "hour"
TOP_TWEETS, TOP_TWEETS_KEY = "top_tweets", "hour"

HOUR = "1 hour"
# How far an event may be behind the newest one and still be counted for certain.
DELAY = "10 minutes"

# The year 2100. An event from the far future would close every hour before it: the watermark follows the newest event.
END_OF_TIME_MS = 4_102_444_800_000

_EVENT = {"tweet": "bigint", "kind": "string", "time": "bigint"}
# In this order; the first that fails is the reason. A record that is no JSON object has none of the fields.
_RULES = {
    "tweet is not null": "tweet is no whole number of 64 bits",
    "kind in ('impression', 'click')": "kind is neither impression nor click",
    f"time >= 0 and time < {END_OF_TIME_MS}": "time is no number of milliseconds from 1970 to 2099",
    **WELL_FORMED,
}


def events(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The events in Kafka's records.

    Args:
        records: `value`: a JSON object of tweet (a whole number of 64 bits), kind ("impression" or "click") and time
            (milliseconds since 1970).
        accept: What to do with records that are none.

    Returns:
        tweet: bigint; kind: string; time: timestamp.
    """
    return accept(parsed(records, _EVENT), first_broken(_RULES)).withColumn("time", f.timestamp_millis("time"))


def tweet_hours(of: DataFrame) -> DataFrame:
    """How often each tweet was shown and clicked in each hour, late events included until the hour is closed.

    Both states are fed from it: `tweet_hours` takes the rows as they are, and TopTweets the same rows, by their hour.

    Returns:
        tweet: bigint, hour: timestamp (its start), impressions: bigint, clicks: bigint. In update mode: a row that
        comes again has grown, never shrunk.
    """
    counted = (
        of.withWatermark("time", DELAY)
        .groupBy("tweet", f.window("time", HOUR))
        .agg(_how_many("impression").alias("impressions"), _how_many("click").alias("clicks"))
    )
    return counted.select("tweet", f.col("window.start").alias("hour"), "impressions", "clicks")


def _how_many(kind: str) -> Column:
    return f.count_if(f.col("kind") == kind)

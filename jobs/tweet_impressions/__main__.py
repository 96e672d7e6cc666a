"""`python -m jobs.tweet_impressions`: configured by KEYHOLE_JOB_* and KEYHOLE_TWEET_IMPRESSIONS_*."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from pyspark.sql.streaming.query import StreamingQuery

from jobs.tweet_impressions.config import TweetImpressionsConfig
from jobs.tweet_impressions.description import JOB
from jobs.tweet_impressions.pipeline import (
    APPLICATION,
    KEY_GROUPS,
    QUERY,
    TOP_TWEETS,
    TOP_TWEETS_KEY,
    TWEET_HOURS,
    TWEET_HOURS_KEY,
    TWEET_HOURS_MAP_KEY,
    events,
    tweet_hours,
)
from jobs.tweet_impressions.top_tweets import RESULT, Ranked, TopTweets
from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.dead_letters import DeadLetters
from keyhole.spark.running import configure, records, run_job, session
from keyhole.spark.sink import Sink


def states(config: JobConfig, on_commit: Callable[[int], object] | None = None) -> Sink:
    """Both states, fed with the rows of `tweet_hours`."""
    hours = queryable.map(
        TWEET_HOURS, key=TWEET_HOURS_KEY, map_key=TWEET_HOURS_MAP_KEY, key_groups=KEY_GROUPS, config=config
    )
    best = queryable.aggregating(
        TOP_TWEETS,
        key=TOP_TWEETS_KEY,
        aggregator=TopTweets(),
        result=RESULT,
        value=Ranked._fields,
        key_groups=KEY_GROUPS,
        config=config,
    )
    return queryable.together(hours, best, on_commit=on_commit)


def start(environ: Mapping[str, str]) -> StreamingQuery:
    """Starts Spark and the query."""
    job, config = configure(APPLICATION, TweetImpressionsConfig, environ, JOB.kinds)
    spark = session(APPLICATION, config)
    dead_letters = DeadLetters(spark, job.bootstrap_servers, config.topic, config=job)
    return (
        tweet_hours(events(records(spark, job.bootstrap_servers, config), dead_letters.accept))
        .writeStream.queryName(QUERY)
        .outputMode("update")
        .option("checkpointLocation", config.checkpoint)
        .foreachBatch(states(job, dead_letters.tell))
        .start()
    )


if __name__ == "__main__":
    sys.exit(run_job(APPLICATION, start))

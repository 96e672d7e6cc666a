"""The job tweet_impressions as the command line, the demo and the tests know it. Imports no Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from jobs.tweet_impressions.config import TweetImpressionsConfig, TweetsConfig
from keyhole.demo.described_jobs import JobDescription

JOB = JobDescription(
    name="tweet_impressions",
    application="tweet-impressions",
    shows=("two states of one query, late events: counts per tweet and hour as a map, and the best tweets of an hour"),
    settings=TweetImpressionsConfig,
    source_settings=TweetsConfig,
    states=("top_tweets", "tweet_hours"),
    # As the source has its beginning.
    probe=("top_tweets", datetime(2026, 11, 21, tzinfo=UTC)),
    example="get tweet-impressions/top_tweets 2026-11-21T00:00:00Z",
    path="tweet-impressions/top_tweets/2026-11-21T00:00:00Z",
    topic="tweets",
    partitions=1,
)

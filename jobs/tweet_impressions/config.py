"""The settings of the job tweet_impressions, and of its source: each beside what every job, and every source, has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from keyhole.config import PART, SourceConfig, TopicJobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TweetImpressionsConfig(TopicJobConfig):
    """The job tweet_impressions: what every job that reads one topic has, and no more."""

    PREFIX: ClassVar[str] = "KEYHOLE_TWEET_IMPRESSIONS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TweetsConfig(SourceConfig):
    """The source of the job tweet_impressions' events.

    Attributes:
        tweets: How many there are.
        events_per_hour: Of event time; at the rate of 1000, 20,000 make an hour pass in 20 s.
        too_late: Which part of the events comes 3 to 5 hours late, once 5 hours have gone by: their hour is closed.
        malformed: Which part of the records is no event.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_TWEETS_"

    tweets: int = 1000
    events_per_hour: int = 20_000
    too_late: float = field(default=0.002, metadata=PART)
    malformed: float = field(default=0.001, metadata=PART)

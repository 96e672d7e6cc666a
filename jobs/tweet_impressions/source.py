"""Made-up impressions and clicks, the same for the same seed: a few tweets have most of them, and some are late.

`python -m jobs.tweet_impressions.source` sends them to a topic; settings: KEYHOLE_TWEETS_*.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from jobs.tweet_impressions.config import TweetsConfig
from jobs.tweet_impressions.description import JOB
from keyhole.local.job_sources import Sender, due, run_source

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

# Ids of today's size: a JSON reader that takes numbers for doubles would mix them up. The first is the most popular.
FIRST_TWEET = 1_859_000_000_000_000_000

# Within the job's delay of 10 minutes with room to spare, or so far behind that the hour was closed long ago: whether
# an event counts must not hang on where Spark cuts its batches.
LATE_MS = (MINUTE_MS, 8 * MINUTE_MS)
TOO_LATE_MS = (3 * HOUR_MS, 5 * HOUR_MS)

# 2026-11-21: event time begins there in every run, and goes faster than the clock.
BEGIN_MS = 1_795_219_200_000
# Late events, and how much is certain of them, go by the topic's order: there is one, in one partition.
PARTITIONS = 1
_SEED = 20_061_115


class Event(NamedTuple):
    """Something that happened to a tweet.

    Attributes:
        kind: "impression" or "click".
        time_ms: When it happened, milliseconds since 1970; not when it is sent.
    """

    tweet: int
    kind: str
    time_ms: int


@dataclass(frozen=True)
class Shape:
    """What the events are like.

    Attributes:
        tweets: How many there are.
        exponent: Of Zipf's law: the tweet of rank k has 1/k**exponent of what the first has.
        events_per_hour: Of event time.
        clicks, late, too_late: Which part of the events is of the kind, or comes after newer ones.
    """

    tweets: int = 1_000
    exponent: float = 1.1
    events_per_hour: int = 20_000
    clicks: float = 0.05
    late: float = 0.1
    too_late: float = 0.002


def events(seed: int, begin_ms: int, shape: Shape) -> Iterator[Event]:
    """Events in the order in which they are sent, without end; event time begins at `begin_ms`.

    None that is too late comes before TOO_LATE_MS of event time have gone by: there was nothing before the beginning.
    """
    draw = random.Random(seed)  # noqa: S311 - made-up tweets, no secrets
    tweets = range(FIRST_TWEET, FIRST_TWEET + shape.tweets)
    weights = list(itertools.accumulate(1 / rank**shape.exponent for rank in range(1, shape.tweets + 1)))
    for number in itertools.count():
        elapsed_ms = number * HOUR_MS // shape.events_per_hour
        (tweet,) = draw.choices(tweets, cum_weights=weights)
        kind = "click" if draw.random() < shape.clicks else "impression"
        yield Event(tweet, kind, begin_ms + elapsed_ms - _behind_ms(draw, shape, elapsed_ms))


def _behind_ms(draw: random.Random, shape: Shape, elapsed_ms: int) -> int:
    chance = draw.random()
    if chance < shape.too_late and elapsed_ms > TOO_LATE_MS[1]:
        return draw.randint(*TOO_LATE_MS)
    if chance < shape.too_late + shape.late and elapsed_ms > LATE_MS[1]:
        return draw.randint(*LATE_MS)
    return 0


def record(event: Event) -> bytes:
    """The event as the job takes it from Kafka."""
    return json.dumps({"tweet": event.tweet, "kind": event.kind, "time": event.time_ms}).encode()


def malformed(event: Event) -> bytes:
    """The event as it comes out of a broken pipe."""
    return record(event)[:-2]


def feed(config: TweetsConfig, sender: Sender, stopped: threading.Event) -> None:
    """Sends until it is stopped. Raises KafkaUnreachable."""
    draw = random.Random(_SEED)  # noqa: S311 - made-up tweets, no secrets
    shape = Shape(tweets=config.tweets, events_per_hour=config.events_per_hour, too_late=config.too_late)
    coming = events(_SEED, BEGIN_MS, shape)
    for more in due(config.rate, stopped):
        for event in itertools.islice(coming, more):
            sender.send(malformed(event) if draw.random() < config.malformed else record(event))
        sender.poll()


def topics(config: TweetsConfig) -> dict[str, int]:
    """What it sends to, and how many partitions each has."""
    return {config.topic: PARTITIONS}


if __name__ == "__main__":
    sys.exit(run_source("tweets", TweetsConfig, feed, topics, JOB.kinds))

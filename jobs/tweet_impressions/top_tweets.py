"""The tweets of an hour with the most impressions: a user-defined aggregation. Pure Python, without Spark."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

DEFAULT_SIZE = 10
RESULT = "tweets array<struct<tweet:bigint,impressions:bigint,clicks:bigint>>"


class Ranked(NamedTuple):
    """A tweet of one hour, as `tweet_hours` counts it; the hour is the key of the aggregation."""

    tweet: int
    impressions: int
    clicks: int


Best = tuple[Ranked, ...]
"""The accumulator: most impressions first; of equals, the lower tweet first. Immutable."""

_decoder = msgspec.msgpack.Decoder(Best)


class TopTweets:
    """Keeps the `size` best of the tweets that it is given.

    Running counts go in, not increments: of two rows of a tweet the higher one stands. As counts only grow, and every
    tweet whose count has changed is given again, the best of what was kept and what is new are the best of all. Rows
    may come in any order, and more than once; merging is commutative, associative and idempotent. An Aggregator, as
    keyhole.spark calls it.
    """

    commutative = True
    takes_running_results = True

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self._size = size

    def create(self) -> Best:
        return ()

    def add(self, accumulator: Best, row: Ranked) -> Best:
        """With one more row; any row that has these columns will do."""
        return self._best((*accumulator, Ranked(row.tweet, row.impressions, row.clicks)))

    def merge(self, one: Best, other: Best) -> Best:
        """What all rows of both would have given."""
        return self._best((*one, *other))

    def result(self, accumulator: Best) -> dict[str, list[dict[str, int]]]:
        """What readers get, best first; `RESULT` is its schema."""
        return {"tweets": [tweet._asdict() for tweet in accumulator]}

    def encode(self, accumulator: Best) -> bytes:
        """As MessagePack: equal accumulators have equal bytes."""
        return msgspec.msgpack.encode(accumulator)

    def decode(self, data: bytes) -> Best:
        """The accumulator that was encoded."""
        return _decoder.decode(data)

    def _best(self, rows: Iterable[Ranked]) -> Best:
        highest: dict[int, Ranked] = {}
        for row in rows:
            known = highest.get(row.tweet, row)
            highest[row.tweet] = max(known, row)  # the same tweet: by impressions, then clicks
        return tuple(heapq.nsmallest(self._size, highest.values(), key=lambda row: (-row.impressions, row.tweet)))

"""The best tweets are the best of all, however their rows come; the recount promises no more than Spark does."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from jobs.tweet_impressions import recount, source
from jobs.tweet_impressions.source import Event
from jobs.tweet_impressions.top_tweets import Best, Ranked, TopTweets

SIZE = 3
TOP = TopTweets(SIZE)
RANKED = st.builds(Ranked, st.integers(0, 7), st.integers(0, 5), st.integers(0, 3))
# Two days of events, in no order at all.
EVENTS = st.lists(
    st.builds(
        Event,
        st.integers(1, 2),
        st.sampled_from(["impression", "click"]),
        st.integers(0, 48 * 12).map((300_000).__mul__),
    ),
    max_size=40,
)


def best_of(rows: list[Ranked]) -> Best:
    best = TOP.create()
    for row in rows:
        best = TOP.add(best, row)
    return best


@given(st.lists(RANKED), st.lists(RANKED), st.lists(RANKED))
def test_merging_is_commutative_associative_idempotent_and_the_same_as_adding(
    a: list[Ranked], b: list[Ranked], c: list[Ranked]
) -> None:
    one, two, three = best_of(a), best_of(b), best_of(c)
    assert TOP.merge(one, two) == TOP.merge(two, one) == best_of(a + b)
    assert TOP.merge(TOP.merge(one, two), three) == TOP.merge(one, TOP.merge(two, three))
    assert TOP.merge(one, one) == TOP.merge(one, TOP.create()) == one
    assert TOP.decode(TOP.encode(one)) == one


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 2)), max_size=6), max_size=8))
def test_what_is_kept_of_growing_counts_is_at_every_epoch_the_best_of_all(
    epochs: list[list[tuple[int, int, int]]],
) -> None:
    counts: dict[int, tuple[int, int]] = {}
    best = TOP.create()
    for increments in epochs:
        for tweet, impressions, clicks in increments:
            before = counts.get(tweet, (0, 0))
            counts[tweet] = before[0] + impressions, before[1] + clicks
        for tweet in {tweet for tweet, _, _ in increments}:  # as Spark's update mode gives them
            best = TOP.add(best, Ranked(tweet, *counts[tweet]))
        everything = [Ranked(tweet, *count) for tweet, count in counts.items()]
        assert list(best) == sorted(everything, key=lambda row: (-row.impressions, row.tweet))[:SIZE]


@given(EVENTS, st.integers(0, 2**32))
def test_what_is_certain_for_single_records_is_certain_for_any_batches_of_them(events: list[Event], seed: int) -> None:
    draw = random.Random(seed)
    records = [source.record(event) for event in events]
    batches: list[list[bytes]] = []
    while records:
        size = draw.randint(1, 8)
        batches, records = [*batches, records[:size]], records[size:]
    single = recount.recount([value] for batch in batches for value in batch)
    for key, counted in recount.recount(batches).items():
        assert single[key].allows(counted.impressions, counted.clicks)
        all_impressions = counted.impressions + counted.doubtful_impressions
        assert all_impressions == single[key].impressions + single[key].doubtful_impressions

"""The source's events, what an event is to the recount, and what it says of late ones."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from jobs.tweet_impressions import pipeline, recount, source
from jobs.tweet_impressions.recount import Counted, event_of
from jobs.tweet_impressions.source import FIRST_TWEET, HOUR_MS, MINUTE_MS, Event, Shape
from jobs.tweet_impressions.top_tweets import Ranked, TopTweets
from jobs.tweet_impressions.verify import as_ranges
from keyhole import Client
from keyhole.model.read import Entry
from keyhole.spark.worker.aggregating import Aggregator
from tests.support.odd_records import NO_OBJECTS

BEGIN_MS = 1_795_219_200_000  # 2026-11-21, on the hour
SHAPE = Shape(tweets=50, events_per_hour=2_000)


def sent(count: int, seed: int = 1, shape: Shape = SHAPE) -> list[Event]:
    return list(itertools.islice(source.events(seed, BEGIN_MS, shape), count))


def at(minutes: float, *, tweet: int = 1, kind: str = "impression") -> bytes:
    return source.record(Event(tweet, kind, BEGIN_MS + round(minutes * MINUTE_MS)))


def record(**fields: object) -> bytes:
    return json.dumps({"tweet": 1, "kind": "click", "time": BEGIN_MS} | fields).encode()


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    assert sent(500) == sent(500)
    assert sent(500) != sent(500, seed=2)


def test_the_first_tweet_has_the_most_events_and_the_last_ones_few() -> None:
    counts = Counter(event.tweet for event in sent(20_000))
    assert set(counts) <= set(range(FIRST_TWEET, FIRST_TWEET + SHAPE.tweets))
    assert counts.most_common(1)[0][0] == FIRST_TWEET
    assert counts[FIRST_TWEET] > 10 * counts[FIRST_TWEET + SHAPE.tweets - 1]


def test_some_events_are_clicks_some_late_and_some_too_late() -> None:
    events = sent(40_000)
    newest = list(itertools.accumulate((event.time_ms for event in events), max))
    behind = [now - event.time_ms for now, event in zip(newest, events, strict=True)]
    assert 0.04 < sum(event.kind == "click" for event in events) / len(events) < 0.06
    late = [ms for ms in behind if ms > source.MINUTE_MS / 2]
    assert {ms < 8 * MINUTE_MS or 2 * HOUR_MS < ms <= 5 * HOUR_MS for ms in late} == {True}
    assert any(ms > 2 * HOUR_MS for ms in late)
    assert min(event.time_ms for event in events) >= BEGIN_MS


def test_what_the_source_sends_too_late_is_in_doubt_and_nothing_else_is() -> None:
    events = sent(40_000)
    counted = recount.recount([source.record(event)] for event in events)
    doubtful = sum(item.doubtful_impressions + item.doubtful_clicks for item in counted.values())
    newest = itertools.accumulate((event.time_ms for event in events), max)
    assert doubtful == sum(now - event.time_ms > 2 * HOUR_MS for now, event in zip(newest, events, strict=True))
    assert 0 < doubtful < 200
    certain = sum(item.impressions + item.clicks for item in counted.values())
    assert certain + doubtful == len(events)


def test_what_the_source_sends_is_an_event_with_all_its_digits() -> None:
    event = Event(FIRST_TWEET + 7, "click", BEGIN_MS + 1)
    assert event_of(source.record(event)) == tuple(event)


@pytest.mark.parametrize(
    "value",
    [
        *NO_OBJECTS,
        record(tweet=None),
        record(tweet="1"),
        record(tweet=1.0),
        record(tweet=True),
        record(tweet=1 << 63),
        record(kind="view"),
        record(kind=None),
        record(kind=["click"]),
        record(time=-1),
        record(time="now"),
        record(time=1.5),
        record(time=4_102_444_800_000),
    ],
)
def test_what_is_no_event_is_not_counted(value: bytes | None) -> None:
    assert event_of(value) is None
    assert recount.recount([[value]]) == {}


def test_events_are_counted_by_tweet_hour_and_kind() -> None:
    counted = recount.recount([[at(0), at(59.9), at(60), at(1, kind="click"), at(2, tweet=2)]])
    assert counted == {
        (1, BEGIN_MS): Counted(impressions=2, clicks=1),
        (1, BEGIN_MS + HOUR_MS): Counted(impressions=1),
        (2, BEGIN_MS): Counted(impressions=1),
    }


def test_an_hour_takes_events_until_the_newest_one_is_ten_minutes_past_its_end() -> None:
    in_time = recount.recount([[at(69.999)], [at(30)]])
    assert in_time[1, BEGIN_MS] == Counted(impressions=1)
    after = recount.recount([[at(70)], [at(30)], [at(31, kind="click")]])
    assert after[1, BEGIN_MS] == Counted(doubtful_impressions=1, doubtful_clicks=1)


def test_what_comes_in_the_same_batch_as_newer_events_is_never_in_doubt() -> None:
    assert recount.recount([[at(600), at(30)]])[1, BEGIN_MS] == Counted(impressions=1)


def test_an_answer_is_right_between_what_is_certain_and_what_is_in_doubt() -> None:
    counted = Counted(impressions=5, clicks=1, doubtful_impressions=2)
    assert [counted.allows(impressions, 1) for impressions in (4, 5, 7, 8)] == [False, True, True, False]
    assert not counted.allows(5, 2)
    assert not counted.may_be_absent
    assert Counted(doubtful_clicks=1).may_be_absent


def test_what_an_answer_leaves_out_came_late() -> None:
    counted = Counted(impressions=5, clicks=1, doubtful_impressions=2, doubtful_clicks=1)
    assert [counted.left_out(5, 1), counted.left_out(7, 1), counted.left_out(7, 2)] == [3, 1, 0]


HOURS = [Entry(datetime(2026, 11, 21, hour, tzinfo=UTC), hour) for hour in (0, 1, 5, 6)]


class Ranges:
    """What a client tells of a tweet's hours, right but for what `wrong` makes of it."""

    def __init__(self, hours: list[Entry], wrong: Callable[[list[Entry]], list[Entry]] = list) -> None:
        self._hours, self._wrong = hours, wrong

    def scan(self, *_: object, start: datetime, stop: datetime, min_epoch: int) -> list[Entry]:
        return self._wrong([entry for entry in self._hours if start <= entry.map_key < stop])


@pytest.mark.parametrize("hours", [HOURS, HOURS[1:], HOURS[:1]], ids=len)
def test_two_ranges_of_a_tweets_hours_are_all_of_them(hours: list[Entry]) -> None:
    client = cast(Client, Ranges(hours))
    assert as_ranges(client, 1, [entry.map_key for entry in hours], 1) == hours


@pytest.mark.parametrize(
    "wrong",
    [
        lambda found: found[::-1],
        lambda found: found[1:],
        lambda found: found[:-1],
        lambda found: [*found, Entry(found[-1].map_key + timedelta(hours=1), 0)],
        lambda found: [entry._replace(value=-1) for entry in found],
    ],
    ids=["in another order", "from one too late", "to one too early", "to one too late", "of other values"],
)
def test_a_range_that_is_told_wrong_is_found(wrong: Callable[[list[Entry]], list[Entry]]) -> None:
    client = cast(Client, Ranges(HOURS, wrong))
    assert as_ranges(client, 1, [entry.map_key for entry in HOURS], 1) != HOURS


def test_the_recount_knows_the_job_by_what_its_readme_says() -> None:
    """It imports nothing of the job, so it says it again."""
    assert pipeline.DELAY == "10 minutes"
    assert pipeline.HOUR == "1 hour"


def test_the_best_come_first_and_of_equals_the_lower_tweet() -> None:
    top = TopTweets(3)
    assert isinstance(top, Aggregator)
    best = top.create()
    for row in (Ranked(4, 5, 0), Ranked(2, 9, 0), Ranked(3, 5, 4), Ranked(1, 1, 1)):
        best = top.add(best, row)
    assert best == (Ranked(2, 9, 0), Ranked(3, 5, 4), Ranked(4, 5, 0))
    assert top.result(best)["tweets"][0] == {"tweet": 2, "impressions": 9, "clicks": 0}


def test_of_two_rows_of_a_tweet_the_higher_one_stands_whichever_came_last() -> None:
    top = TopTweets(3)
    rows = [Ranked(1, 5, 1), Ranked(1, 6, 1), Ranked(1, 6, 0)]
    for order in itertools.permutations(rows):
        best = top.create()
        for row in order:
            best = top.add(best, row)
        assert best == (Ranked(1, 6, 1),)

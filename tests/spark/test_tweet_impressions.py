"""The job's pipeline on real Spark: what it takes for an event, its counts, and what it does with late ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from datetime import datetime

from pyspark.sql import DataFrame, Row, SparkSession

from jobs.tweet_impressions import recount, source
from jobs.tweet_impressions.pipeline import events, tweet_hours
from jobs.tweet_impressions.recount import Counted, event_of
from jobs.tweet_impressions.source import FIRST_TWEET, HOUR_MS, MINUTE_MS, Event, Shape
from jobs.tweet_impressions.top_tweets import RESULT, Ranked, TopTweets
from tests.support.micro_batches import session_settings
from tests.support.odd_records import NO_OBJECTS, odd_records
from tests.support.streams import RunQuery, Stream

BEGIN_MS = 1_795_219_200_000
Hours = dict[recount.TweetHour, tuple[int, int]]


def record(**fields: object) -> bytes:
    return json.dumps({"tweet": 1, "kind": "click", "time": BEGIN_MS} | fields).encode()


BAD: list[bytes | None] = [
    *NO_OBJECTS,
    b'{"tweet": 1, "kind": "click", "time": 179521',
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
    record(time="1795219200000"),
    record(time=1.5),
    record(time=4_102_444_800_000),
    record() + b"xyz",
    record() * 2,
    record().replace(b'"', b"'"),
    record(unknown=float("nan")),
    record().decode().encode("utf-16"),
]
GOOD: list[bytes | None] = [
    record(),
    record(kind="impression", time=0),
    record(tweet=-(1 << 63)),
    record(tweet=(1 << 63) - 1, time=BEGIN_MS + 1),
    record(tweet=FIRST_TWEET + 1, time=4_102_444_799_999, unknown=[1, 2]),
]


def milliseconds(time: datetime) -> int:
    return round(time.astimezone().timestamp() * 1000)


def hours_of(rows: Iterable[Row]) -> Hours:
    return {(row.tweet, milliseconds(row.hour)): (row.impressions, row.clicks) for row in rows}


def test_what_is_an_event_to_spark_is_one_to_the_recount(spark: SparkSession) -> None:
    records = spark.createDataFrame([(value,) for value in GOOD + BAD], "value binary").coalesce(1)
    found = [(row.tweet, row.kind, milliseconds(row.time)) for row in events(records).collect()]
    assert found == [event for event in map(event_of, GOOD + BAD) if event is not None]
    assert len(found) == len(GOOD)


def test_of_records_with_any_fault_spark_takes_what_the_recount_takes_as_it_takes_it(spark: SparkSession) -> None:
    odd = odd_records({"tweet": 1, "kind": "click", "time": BEGIN_MS})
    records = spark.createDataFrame([(value,) for value in odd], "value binary").coalesce(1)
    expected = [event for event in map(event_of, odd) if event is not None]
    assert [(row.tweet, row.kind, milliseconds(row.time)) for row in events(records).collect()] == expected
    assert 10 < len(expected) < len(odd) / 2


def test_every_event_is_counted_once_in_its_hour(spark: SparkSession) -> None:
    sent = itertools.islice(source.events(7, BEGIN_MS, Shape(tweets=20, events_per_hour=300)), 1_500)
    values = [source.record(event) for event in sent]
    counted = recount.recount([[*values, *BAD]])
    records = spark.createDataFrame([(value,) for value in [*values, *BAD]], "value binary")
    rows = tweet_hours(events(records)).collect()
    assert hours_of(rows) == {key: (item.impressions, item.clicks) for key, item in counted.items()}
    assert len({hour for _, hour in counted}) == 5


def test_in_a_stream_late_events_count_and_those_that_are_too_late_do_not(
    spark: SparkSession, stream: Stream, run_query: RunQuery
) -> None:
    shape = Shape(tweets=10, events_per_hour=60, too_late=0.05)
    sent = list(itertools.islice(source.events(3, BEGIN_MS, shape), 60 * 8))
    # Late by hours for certain: an empty batch between them and the others lets Spark move its watermark.
    sent += [Event(FIRST_TWEET, kind, BEGIN_MS + MINUTE_MS) for kind in ("impression", "click")]
    values = [source.record(event) for event in sent]
    cuts = [0, 150, 300, 400, 480, len(values)]
    batches = [values[begin:end] for begin, end in itertools.pairwise(cuts)]
    counted = recount.recount(batches)
    state: Hours = {}
    seen: list[int] = []

    def upsert(batch: DataFrame, _: int) -> None:
        rows = hours_of(batch.collect())
        seen.append(len(rows))
        for key, counts in rows.items():
            assert counts >= state.get(key, (0, 0))
            state[key] = counts

    data = stream("value string", [[{"value": value.decode()} for value in batch] for batch in batches])
    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        run_query(tweet_hours(events(data)), "update", upsert)

    assert len([number for number in seen if number]) == 4  # the last batch had nothing to say
    assert state.keys() <= counted.keys()
    absent = counted.keys() - state.keys()
    assert all(counted[key].may_be_absent for key in absent)
    assert all(counted[key].allows(*counts) for key, counts in state.items())
    first = counted[FIRST_TWEET, BEGIN_MS]
    assert (first.doubtful_impressions, first.doubtful_clicks) >= (1, 1)
    assert state[FIRST_TWEET, BEGIN_MS] == (first.impressions, first.clicks)


def test_the_best_of_an_hour_are_a_value_that_a_state_can_hold(spark: SparkSession) -> None:
    top = TopTweets(2)
    best = top.create()
    for ranked in (Ranked(1, 5, 0), Ranked(2, 7, 1), Ranked(3, 6, 0)):
        best = top.add(best, ranked)
    (row,) = spark.createDataFrame([top.result(best)], RESULT).collect()
    assert [tuple(tweet) for tweet in row.tweets] == [(2, 7, 1), (3, 6, 0)]


def test_an_hour_begins_on_the_hour(spark: SparkSession) -> None:
    values = [record(time=BEGIN_MS + HOUR_MS - 1), record(time=BEGIN_MS + HOUR_MS)]
    rows = tweet_hours(events(spark.createDataFrame([(value,) for value in values], "value binary"))).collect()
    assert hours_of(rows) == {(1, BEGIN_MS): (0, 1), (1, BEGIN_MS + HOUR_MS): (0, 1)}
    assert Counted(clicks=1).allows(0, 1)

"""`python -m jobs.tweet_impressions.verify`: counts the topic again, and asks the proxy for every tweet's hours, one by
one and as ranges.

The best tweets of an hour are those of the hours that were answered, each of which was compared before.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter

from jobs.tweet_impressions.recount import TweetHour, event_of, recount
from keyhole import Answer, Client
from keyhole.demo.recount import RecountVerdict, VerifiedJob, asked, entries, main, records_before, unkept

# As the pipeline has it, of which nothing here may know.
APPLICATION, TWEET_HOURS, TOP_TWEETS = "tweet-impressions", "tweet_hours", "top_tweets"
BEST = 10

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check(subject: VerifiedJob, client: Client) -> RecountVerdict:
    """Every tweet and hour, the best of every hour, and that every record that is no event was kept."""
    messages = list(records_before(subject.bootstrap_servers, subject.topic, subject.ends))
    counted = recount(batches(subject, [message.value() for message in messages]))
    answers = asked(
        client,
        APPLICATION,
        TWEET_HOURS,
        {(tweet, _time(hour_ms)): key for key in counted for tweet, hour_ms in [key]},
        subject.epoch,
    )
    agreed, late, hours = 0, 0, defaultdict(list)
    for key, answer in answers.items():
        if not answer.found:
            agreed += counted[key].may_be_absent
            late += counted[key].left_out(0, 0)
            continue
        impressions, clicks = answer.value.impressions, answer.value.clicks
        agreed += counted[key].allows(impressions, clicks)
        late += counted[key].left_out(impressions, clicks)
        tweet, hour_ms = key
        hours[hour_ms].append((tweet, impressions, clicks))
    found = sum(map(len, hours.values()))
    tweets = by_tweet(answers)
    in_order = sum(as_ranges(client, tweet, [at for at, _ in of], subject.epoch) == of for tweet, of in tweets.items())
    tops = {_time(hour_ms): hour_ms for hour_ms in hours}
    for hour_ms, answer in asked(client, APPLICATION, TOP_TWEETS, tops, subject.epoch).items():
        agreed += answer.found and list(map(tuple, map(_fields, answer.value.tweets))) == best(hours[hour_ms])
    surplus = entries(client, APPLICATION, TWEET_HOURS) - found + entries(client, APPLICATION, TOP_TWEETS) - len(hours)
    rejected = {(m.partition(), m.offset()) for m in messages if event_of(m.value()) is None}
    return RecountVerdict(
        subject.epoch,
        keys=len(counted) + len(tweets) + len(hours),
        agreed=agreed + in_order,
        surplus=max(0, surplus),
        events=len(messages),
        rejected={subject.topic: len(rejected)},
        unkept=unkept(subject, rejected),
        late=late,
    )


def by_tweet(answers: Mapping[TweetHour, Answer]) -> dict[int, list[tuple[datetime, object]]]:
    """Of each tweet that has some, the hours and what was answered for them, the first hour first."""
    found = defaultdict(list)
    for (tweet, hour_ms), answer in sorted(answers.items(), key=itemgetter(0)):
        if answer.found:
            found[tweet].append((_time(hour_ms), answer.value))
    return found


def as_ranges(client: Client, tweet: int, hours: Sequence[datetime], epoch: int) -> list[tuple[datetime, object]]:
    """What two range queries give of a tweet's hours, which meet in the middle."""
    first, middle, end = hours[0], hours[len(hours) // 2], hours[-1] + timedelta(hours=1)
    answers = [
        client.scan(APPLICATION, TWEET_HOURS, tweet, start=start, stop=stop, min_epoch=epoch)
        for start, stop in ((first, middle), (middle, end))
    ]
    return [(entry.map_key, entry.value) for entries_of in answers for entry in entries_of]


def batches(subject: VerifiedJob, values: list[bytes | None]) -> Iterator[list[bytes | None]]:
    """The records as Spark took them."""
    done = 0
    for batch in range(subject.epoch):
        (end,) = subject.batches.ends(batch).values()
        yield values[done:end]
        done = end


def best(of: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Of (tweet, impressions, clicks): most impressions first; of equals, the lower tweet."""
    return sorted(of, key=lambda item: (-item[1], item[0]))[:BEST]


def _time(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def _fields(tweet: Mapping[str, int]) -> tuple[int, int, int]:
    return tweet["tweet"], tweet["impressions"], tweet["clicks"]


if __name__ == "__main__":
    sys.exit(main(check))

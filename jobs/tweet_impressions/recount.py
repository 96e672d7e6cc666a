"""Counts the records again, with a dict, to compare what readers get. Imports nothing of the job, nor Spark.

Of late events Spark promises one thing (Structured Streaming guide, "Handling Late Data and Watermarking"). With a
delay of d, an hour that ends at E takes events until (newest event time seen) - d reaches E. Later ones may be counted
or dropped. "Seen" means in a batch before, so that more is certain to who knows the batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from jobs.json_records import fields_of

_HOUR_MS = 3_600_000
_DELAY_MS = 600_000
_END_OF_TIME_MS = 4_102_444_800_000

TweetHour = tuple[int, int]
"""A tweet, and the hour's start in milliseconds since 1970."""


@dataclass
class Counted:
    """What a tweet had in an hour: for certain, and what comes to it if Spark takes everything that it may drop."""

    impressions: int = 0
    clicks: int = 0
    doubtful_impressions: int = 0
    doubtful_clicks: int = 0

    def allows(self, impressions: int, clicks: int) -> bool:
        """Whether this answer is right."""
        return (
            self.impressions <= impressions <= self.impressions + self.doubtful_impressions
            and self.clicks <= clicks <= self.clicks + self.doubtful_clicks
        )

    @property
    def may_be_absent(self) -> bool:
        """Nothing of it counts for certain."""
        return self.impressions == self.clicks == 0

    def left_out(self, impressions: int, clicks: int) -> int:
        """Of the events that came late, how many are not in this answer, which is right."""
        return self.impressions + self.doubtful_impressions - impressions + self.clicks + self.doubtful_clicks - clicks


def event_of(value: bytes | None) -> tuple[int, str, int] | None:
    """The tweet, kind and time in a record, by the job's README; None where it is no event."""
    record = fields_of(value, {"tweet": int, "kind": str, "time": int})
    if record is None or record["tweet"] is None or record["kind"] not in ("impression", "click"):
        return None
    if record["time"] is None or not 0 <= record["time"] < _END_OF_TIME_MS:
        return None
    return record["tweet"], record["kind"], record["time"]


def recount(batches: Iterable[Iterable[bytes | None]]) -> dict[TweetHour, Counted]:
    """By tweet and hour, what the state may say.

    Args:
        batches: The records as Spark took them, batch by batch; within a batch their order doesn't matter. Batches of
            one record each, in the topic's order, give what holds for any batches.
    """
    counts: defaultdict[TweetHour, Counted] = defaultdict(Counted)
    newest_ms = -1
    for batch in batches:
        watermark_ms = newest_ms - _DELAY_MS
        for value in batch:
            if (event := event_of(value)) is None:
                continue
            tweet, kind, time_ms = event
            hour_ms = time_ms - time_ms % _HOUR_MS
            newest_ms = max(newest_ms, time_ms)
            _count(counts[tweet, hour_ms], kind, certain=hour_ms + _HOUR_MS > watermark_ms)
    return dict(counts)


def _count(counted: Counted, kind: str, *, certain: bool) -> None:
    match kind, certain:
        case "impression", True:
            counted.impressions += 1
        case "impression", False:
            counted.doubtful_impressions += 1
        case "click", True:
            counted.clicks += 1
        case _:
            counted.doubtful_clicks += 1

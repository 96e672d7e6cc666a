"""Where a feeder begins to read its source: where the last boundary in the updates topic says. Pure.

    [0, "<id of orders>", 17, {"0": 991900, "1": 990012}, "orders", "<id of the updates topic>"]

A feeder's boundary names its topic too, and the updates topic that has what it speaks of. Below it all was sent. So
whoever follows a feeder that died sends from there on, and nothing else keeps a position. Where that can't be known, or
is gone from the source, a feeder refuses to begin: it passes nothing over in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from keyhole.errors import ChangelogRecreated, ConflictError
from keyhole.protocol.fed_sources import FEED_AGAIN, topic_id_of
from keyhole.protocol.updates import BoundaryRecord

_FIRST_WINDOW = 1_000
_GROWTH = 4


class SourceDescription(NamedTuple):
    """A source topic as it is now.

    Attributes:
        topic: Its name.
        topic_id: Kafka's id of it, under which its rows stand in updates.
        starts: By partition, the first offset that is still there.
    """

    topic: str
    topic_id: str
    starts: Mapping[int, int]


class FoundBoundaries(NamedTuple):
    """What an updates partition says of a source.

    Attributes:
        ends: By partition of the source, up to where all was sent; None: nothing is said.
        other_ids: The sources of the topics of that name which were fed before, the last one first: their ids, or the
            sources of real-time queries that read them.
        misplaced: The updates topic that a boundary of the source was meant for, where it is another one; else empty.
        whole: Nothing of the updates partition was deleted yet.
    """

    ends: Mapping[int, int] | None
    other_ids: Sequence[str]
    misplaced: str
    whole: bool


def windows(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Pieces of a partition, from its end to its start, each longer than the one before: (first, behind the last)."""
    size = _FIRST_WINDOW
    while start < end:
        first = max(start, end - size)
        yield first, end
        end, size = first, size * _GROWTH


class BoundarySearch:
    """Looks for the last boundary of a source, backwards, window by window.

    Args:
        topic, topic_id: Of the source.
        updates_id: Of the updates topic.
    """

    def __init__(self, topic: str, topic_id: str, updates_id: str) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._updates_id = updates_id
        self._ends: dict[int, int] | None = None
        self._other_ids: list[str] = []
        self._misplaced = ""
        self._decoder = msgspec.json.Decoder(BoundaryRecord)

    def look(self, values: Iterable[bytes | None]) -> bool:
        """Whether it has been found with the records of this window.

        Of several in the window the highest ends count: each is true, and two feeders may have written them in turn.
        """
        others: list[str] = []
        for value in values:
            try:
                found = self._decoder.decode(value or b"")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # no boundary; ValueMismatch to owners
                continue
            if found.source != self._topic_id:
                anew = topic_id_of(found.source) != self._topic_id
                if anew and found.topic == self._topic and found.updates_id == self._updates_id:
                    others.append(found.source)
            elif found.updates_id != self._updates_id:
                self._misplaced = found.updates_id or "not said"
            else:
                ends = self._ends = self._ends or {}
                for partition, end in found.ends.items():
                    ends[partition] = max(end, ends.get(partition, 0))
        # Windows go backwards: what was found in those before was written later.
        self._other_ids += [one for one in dict.fromkeys(reversed(others)) if one not in self._other_ids]
        return self._ends is not None

    def found(self, *, whole: bool) -> FoundBoundaries:
        """What was found in all windows. `whole`: see FoundBoundaries."""
        return FoundBoundaries(self._ends, tuple(self._other_ids), self._misplaced, whole)


def start_positions(
    source: SourceDescription, found: FoundBoundaries, *, from_earliest: bool = False
) -> dict[int, int]:
    """By partition, from where a feeder sends.

    A topic that was never fed is read from its earliest records. The feeder writes these positions as a boundary before
    anything else: what was deleted before is not missed later.

    Args:
        from_earliest: Go on with the earliest records there are, whatever is missing or unknown.

    Raises:
        ChangelogRecreated: The topic is not the one that was fed before. Or records were deleted before they were
            sent. Or the boundaries themselves were deleted. Or a feeder ran on while the updates topic was made anew.
    """
    if found.misplaced:
        # Not even with from_earliest: a row that is there already changes nothing when it is sent in its order.
        raise ChangelogRecreated(
            f"the updates topic has a boundary of topic {source.topic} that was meant for another one (its id is "
            f"{found.misplaced}): a feeder ran on while the updates topic was made anew, and rows of it may stand "
            f"ahead of older ones. Stop all feeders, {FEED_AGAIN}",
            topic=source.topic,
        )
    if from_earliest:
        return dict(source.starts)
    if found.ends is None:
        if found.other_ids:
            raise made_anew(source.topic, topic_id_of(found.other_ids[0]), source.topic_id)
        if not found.whole:
            raise ChangelogRecreated(
                f"how far topic {source.topic} was fed is not known: the updates topic has no boundary of it, and has "
                f"lost its first records. {_FROM_EARLIEST}",
                topic=source.topic,
            )
        return dict(source.starts)
    # A partition that no boundary names was added since, and begins at 0.
    positions = {partition: found.ends.get(partition, 0) for partition in source.starts}
    check_starts(source, positions)
    if lost := sorted(found.ends.keys() - source.starts.keys()):
        raise ConflictError(
            f"topic {source.topic} had a partition {lost[0]}, and has it no more. {_FROM_EARLIEST}", topic=source.topic
        )
    return positions


def no_lower(ends: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    """The ends of a boundary that is written behind one with the ends `before`: what was sent stays sent.

    Whoever looks for the last boundary would else find less, and miss records that were deleted after they were sent.
    """
    return {partition: max(end, before.get(partition, 0)) for partition, end in ends.items()}


def check_starts(source: SourceDescription, positions: Mapping[int, int]) -> None:
    """Raises ChangelogRecreated: records of the source were deleted before they were read."""
    for partition, position in positions.items():
        if position < source.starts[partition]:
            raise deleted_unread(source.topic, partition, position, source.starts[partition])


def deleted_unread(topic: str, partition: int, position: int, start: int | None = None) -> ChangelogRecreated:
    """The error for records that are gone before they were read; `start`: where the partition begins, if known."""
    begins = "" if start is None else f", and it begins at {start}"
    return ChangelogRecreated(
        f"records of topic {topic} were deleted before they were fed: offset {position} of partition {partition} is "
        f"next{begins}. Keep them longer. {_FROM_EARLIEST}",
        topic=topic,
        partition=partition,
    )


def made_anew(topic: str, before: str, now: str) -> ChangelogRecreated:
    """The error for a topic that has another id than the one that was fed."""
    return ChangelogRecreated(
        f"topic {topic} was deleted and made anew (its id is {now}, it was {before}), so all its records would count "
        f"once more. {_FROM_EARLIEST}",
        topic=topic,
        topic_id=now,
    )


def updates_made_anew(topic: str, before: str, now: str) -> ChangelogRecreated:
    """The error for an updates topic that has another id than the one that topic `topic` was fed into."""
    return ChangelogRecreated(
        f"the updates topic that topic {topic} is fed into was deleted and made anew (its id is {now}, it was "
        f"{before}), and what had been fed is gone with it: {FEED_AGAIN}",
        topic=topic,
        topic_id=now,
    )


_FROM_EARLIEST = (
    "Feed it from the start into a state of another name; or go on with the earliest records there are "
    "(--from-earliest), if that is what you want"
)

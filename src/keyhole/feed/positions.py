"""Where a feeder begins to read its source: where the last boundary in the updates topic says. Pure.

    [0, "<id of orders>", 17, {"0": 991900, "1": 990012}, "orders"]    a feeder's boundary names its topic, too

Below it all was sent. So whoever follows a feeder that died sends from there on, and nothing else keeps a position.
Where that can't be known, or is gone from the source, a feeder refuses to begin: it passes nothing over in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from keyhole.errors import ChangelogRecreated, ConflictError
from keyhole.hints import ready
from keyhole.protocol.updates import BoundaryRecord

_FIRST_WINDOW = 1_000
_GROWTH = 4


@ready
class FeederBoundary(BoundaryRecord, frozen=True, array_like=True, tag=0):
    """A boundary, and the name of the source's topic. To owners it is a boundary like any other."""

    topic: str = ""


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
        other_id: Of the topic of that name which was fed before; empty: none was.
        whole: Nothing of the updates partition was deleted yet.
    """

    ends: Mapping[int, int] | None
    other_id: str
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
    """

    def __init__(self, topic: str, topic_id: str) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._ends: dict[int, int] | None = None
        self._other_id = ""
        self._decoder = msgspec.json.Decoder(FeederBoundary)

    def look(self, values: Iterable[bytes | None]) -> bool:
        """Whether it has been found with the records of this window.

        Of several in the window the highest ends count: each is true, and two feeders may have written them in turn.
        """
        for value in values:
            try:
                found = self._decoder.decode(value or b"")
            except msgspec.DecodeError:  # no boundary
                continue
            if found.source == self._topic_id:
                ends = self._ends = self._ends or {}
                for partition, end in found.ends.items():
                    ends[partition] = max(end, ends.get(partition, 0))
            elif found.topic == self._topic:
                self._other_id = found.source
        return self._ends is not None

    def found(self, *, whole: bool) -> FoundBoundaries:
        """What was found in all windows. `whole`: see FoundBoundaries."""
        return FoundBoundaries(self._ends, self._other_id, whole)


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
            sent. Or the boundaries themselves were deleted.
    """
    if from_earliest:
        return dict(source.starts)
    if found.ends is None:
        if found.other_id:
            raise made_anew(source.topic, found.other_id, source.topic_id)
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


_FROM_EARLIEST = (
    "Drop the state and feed it from the start; or go on with the earliest records there are (from_earliest), if that "
    "is what you want"
)

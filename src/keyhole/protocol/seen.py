"""Which updates of a key group were applied: each row of a source counts once, however often and late it is sent. Pure.

    update  a/0 offset 7       applied
    update  a/0 offset 5       applied: it was refused when 7 was sent, and is sent again
    update  a/0 offset 7       a repetition: the batch is run again
    boundary a/0 ends at 9     7 and 5 are forgotten
    update  a/0 offset 7       a repetition, as all below 9: whoever sends it has been asleep

A job that is killed sends again what it had sent since its last batch's end, cut into other batches. And Kafka may
refuse a record and take those behind it. So the highest offset says too little: the numbers themselves are remembered,
from one boundary to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from keyhole.errors import ChangelogRecreated
from keyhole.hints import ready
from keyhole.protocol.updates import MAX_SUB, BoundaryRecord, Record, SourceRow, UpdateRecord

_SUBS = MAX_SUB + 1

MOST_NUMBERS = 1_000_000
"""How many rows above its boundary a key group remembers of one partition of a source: about 120 MB of them."""


class SeenFloor(NamedTuple):
    """All rows of a partition of a source below these two count as applied."""

    offset: int
    sub: int


@ready
class FeedPosition(msgspec.Struct, frozen=True):
    """How far a key group has applied its updates partition, and what it needs to go on from there.

    Attributes:
        topic: Kafka's id of the updates topic: of another one the offsets mean nothing.
        time_ms: The latest timestamp among the updates applied: the log's time, by which entries expire.
        next: The next offset of the updates partition to apply.
        refill: From where it is read again, to know the rows seen above the floors; `next` where there are none.
        floors: By source and partition.
    """

    topic: str = ""
    time_ms: int = 0
    next: int = 0
    refill: int = 0
    floors: dict[str, dict[int, SeenFloor]] = {}


def check_log(position: FeedPosition, topic: str, start: int) -> None:
    """Whether a key group can go on from a position, in the updates topic as it is now.

    Args:
        topic: Kafka's id of the topic.
        start: The first offset that its partition still has.

    Raises:
        ChangelogRecreated: The topic was made anew, or updates were deleted before they were applied, or before what
            was seen could be known again. Nothing is passed over in silence.
    """
    if position.topic and position.topic != topic:
        raise ChangelogRecreated(
            f"the updates topic was deleted and made anew (its id is {topic}, it was {position.topic}): drop the state "
            "and feed it from the start",
            topic_id=topic,
        )
    if position.refill < start:
        raise ChangelogRecreated(
            f"updates from offset {position.refill} on are needed, and the topic begins at {start}: they were deleted "
            "before they were applied. Keep them longer; drop the state and feed it from the start",
            start=start,
        )


class _SeenPartition:
    """Of one partition of a source.

    Attributes:
        floor: All numbers below count as seen.
        at: The offset in the updates partition at which each number above was seen, in the order of these offsets.
        assumed: How many numbers were given up for lack of room, see SeenRows.
    """

    __slots__ = ("assumed", "at", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.at: dict[int, int] = {}
        self.assumed = 0

    def raise_floor(self, floor: int) -> None:
        if floor > self.floor:
            self.floor = floor
            self.at = {number: at for number, at in self.at.items() if number >= floor}

    def make_room(self, most: int) -> None:
        """Gives up the lower half of the numbers: what is below them counts as seen, too."""
        if len(self.at) > most:
            numbers = sorted(self.at)
            self.assumed += len(numbers) // 2
            self.raise_floor(numbers[len(numbers) // 2])


class SeenRows:
    """The rows that one key group has applied. Not thread-safe.

    Where no boundary comes, memory stays bounded all the same. Above `most` numbers of a partition of a source, the
    lower half is given up, and the rows below it that were not seen yet count as seen. `assumed` says so.

    Args:
        position: Where the key group was; its numbers come back by `refill`.
        most: How many numbers are remembered of one partition of a source.
    """

    def __init__(self, position: FeedPosition | None = None, *, most: int = MOST_NUMBERS) -> None:
        self._most = most
        self._partitions: dict[tuple[str, int], _SeenPartition] = {}
        for source, floors in ({} if position is None else position.floors).items():
            for partition, (offset, sub) in floors.items():
                self._partitions[source, partition] = _SeenPartition(offset * _SUBS + sub)

    def take(self, row: SourceRow, at: int) -> bool:
        """Whether the row is seen for the first time; it counts as seen from now on.

        Args:
            at: The update's own offset, in its updates partition. Grows from call to call.
        """
        source, partition, offset, sub = row
        seen = self._partitions.get((source, partition))
        if seen is None:
            seen = self._partitions[source, partition] = _SeenPartition(0)
        number = offset * _SUBS + sub
        if number < seen.floor or number in seen.at:
            return False
        seen.at[number] = at
        if len(seen.at) > self._most:
            seen.make_room(self._most)
        return True

    def reach(self, boundary: BoundaryRecord) -> None:
        """Forgets the rows below the boundary: all of them count as seen from now on. An older one changes nothing."""
        for partition, end in boundary.ends.items():
            seen = self._partitions.get((boundary.source, partition))
            if seen is None:
                seen = self._partitions[boundary.source, partition] = _SeenPartition(0)
            seen.raise_floor(end * _SUBS)

    def refill(self, records: Iterable[tuple[int, Record]]) -> None:
        """Comes to know again what was seen above the floors.

        Args:
            records: The updates partition from the position's `refill` up to its `next`, each with its offset.
        """
        for at, record in records:
            if isinstance(record, UpdateRecord):
                self.take(record.row, at)

    def position(self, next_offset: int, *, topic: str = "", time_ms: int = 0) -> FeedPosition:
        """What to keep, in one write with the rows that were applied.

        Args:
            next_offset: Of the updates partition: all before it went through `take` and `reach`.
            topic, time_ms: See FeedPosition.
        """
        floors: dict[str, dict[int, SeenFloor]] = {}
        for (source, partition), seen in self._partitions.items():
            if seen.floor:
                floors.setdefault(source, {})[partition] = SeenFloor(*divmod(seen.floor, _SUBS))
        # Numbers stand in the order in which they were seen: the first is the oldest.
        oldest = [next(iter(seen.at.values())) for seen in self._partitions.values() if seen.at]
        return FeedPosition(topic, time_ms, next_offset, min(oldest, default=next_offset), floors)

    @property
    def remembered(self) -> int:
        """How many numbers are in memory."""
        return sum(len(seen.at) for seen in self._partitions.values())

    @property
    def assumed(self) -> Mapping[tuple[str, int], int]:
        """By source and partition, where there are any: how many numbers were given up for lack of room."""
        return {name: seen.assumed for name, seen in self._partitions.items() if seen.assumed}

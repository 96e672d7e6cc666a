"""Which updates of a key group were applied: each row of a source counts once, however often and late it is sent. Pure.

    update  a/0 offset 7       applied
    update  a/0 offset 5       applied: it was refused when 7 was sent, and is sent again
    update  a/0 offset 7       a repetition: the batch is run again
    boundary a/0 ends at 9     7 and 5 are forgotten
    update  a/0 offset 7       a repetition, as all below 9: whoever sends it has been asleep

A job that is killed sends again what it had sent since its last batch's end, cut into other batches. And Kafka may
refuse a record and take those behind it. So the highest offset says too little: the numbers themselves are remembered,
from one boundary to the next.

What is remembered, and what is given up for lack of room or for its age, depends on the log alone: whoever applies it
once more takes the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from keyhole.errors import ChangelogRecreated
from keyhole.hints import ready
from keyhole.protocol.updates import MAX_SUB, BoundaryRecord, FeedRules, Record, RulesRecord, SourceRow, UpdateRecord

_SUBS = MAX_SUB + 1
_TIME_BITS = 48
_TIMES = (1 << _TIME_BITS) - 1
_NEVER = 1 << 62


class SeenFloor(NamedTuple):
    """All rows of a partition of a source below these two count as applied."""

    offset: int
    sub: int


@ready
class FeedPosition(msgspec.Struct, frozen=True):
    """How far a key group has applied its updates partition, and what it needs to go on from there.

    Attributes:
        topic: Kafka's id of the updates topic: of another one the offsets mean nothing.
        time_ms: The latest timestamp of the log so far: its time, by which entries expire.
        next: The next offset of the updates partition to apply.
        refill: From where it is read again, to know the rows seen above the floors; `next` where there are none.
        floors: By source and partition.
        ended: By source that has ended, when, by the log's time: all rows of it count as applied.
        rules: By which updates are applied from `next` on; None: none are yet.
    """

    topic: str = ""
    time_ms: int = 0
    next: int = 0
    refill: int = 0
    floors: dict[str, dict[int, SeenFloor]] = {}
    ended: dict[str, int] = {}
    rules: RulesRecord | None = None


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
        at: Of each number above that was seen: where, the offset in the updates partition and its timestamp in one
            integer. In the order of these offsets.
        assumed: How many numbers were given up, see SeenRows.
    """

    __slots__ = ("assumed", "at", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.at: dict[int, int] = {}
        self.assumed = 0

    @property
    def oldest(self) -> int | None:
        return next(iter(self.at.values()), None)

    def raise_floor(self, floor: int) -> None:
        if floor > self.floor:
            self.floor = floor
            self.at = {number: at for number, at in self.at.items() if number >= floor}

    def give_up_half(self) -> None:
        """The lower half of the numbers: what is below them counts as seen, too."""
        numbers = sorted(self.at)
        half = max(1, len(numbers) // 2)
        self.assumed += half
        self.raise_floor(numbers[half - 1] + 1)

    def give_up_until(self, time_ms: int) -> None:
        """The numbers that were seen by then; what is below the highest of them counts as seen, too."""
        while (oldest := self.oldest) is not None and oldest & _TIMES <= time_ms:
            old = []
            for number, at in self.at.items():
                if at & _TIMES > time_ms:
                    break
                old.append(number)
            self.assumed += len(old)
            self.raise_floor(max(old) + 1)


class SeenRows:
    """The rows that one key group has applied. Not thread-safe.

    Memory is bounded also where no boundary comes. Above `most_rows` numbers the lower half of those of one partition
    is given up, and so are numbers that are older than `rows_for_ms`. The rows below what is given up that were not
    seen yet count as seen; `assumed` says so. So a source that is gone without its end holds nothing back.

    Args:
        position: Where the key group was; its numbers come back by `refill`.
    """

    def __init__(self, position: FeedPosition | None = None) -> None:
        was = FeedPosition() if position is None else position
        self._partitions: dict[tuple[str, int], _SeenPartition] = {}
        for source, floors in was.floors.items():
            for partition, (offset, sub) in floors.items():
                self._partitions[source, partition] = _SeenPartition(offset * _SUBS + sub)
        self._ended = dict(was.ended)
        self._count = 0
        self._rules = FeedRules() if was.rules is None else was.rules.rules
        self._due = 0

    def limit(self, rules: FeedRules) -> None:
        """How much is remembered from now on."""
        self._rules = rules
        self._due = 0
        self._make_room()

    def take(self, row: SourceRow, at: int, time_ms: int = 0) -> bool:
        """Whether the row is seen for the first time; it counts as seen from now on.

        Args:
            at: The update's own offset, in its updates partition. Grows from call to call.
            time_ms: Its timestamp.
        """
        if not self._add(row, at, time_ms):
            return False
        if self._count > self._rules.most_rows:
            self._make_room()
        return True

    def _add(self, row: SourceRow, at: int, time_ms: int) -> bool:
        source, partition, offset, sub = row
        if source in self._ended:
            return False
        seen = self._partitions.get((source, partition))
        if seen is None:
            seen = self._partitions[source, partition] = _SeenPartition()
        number = offset * _SUBS + sub
        if number < seen.floor or number in seen.at:
            return False
        time_ms = min(max(time_ms, 0), _TIMES)
        seen.at[number] = at << _TIME_BITS | time_ms
        self._count += 1
        self._due = min(self._due, time_ms + self._rules.rows_for_ms)
        return True

    def reach(self, boundary: BoundaryRecord) -> None:
        """Forgets the rows below the boundary: all of them count as seen from now on. An older one changes nothing."""
        if boundary.source in self._ended:
            return
        for partition, end in boundary.ends.items():
            seen = self._partitions.get((boundary.source, partition))
            if seen is None:
                seen = self._partitions[boundary.source, partition] = _SeenPartition()
            seen.raise_floor(end * _SUBS)
        self._changed()

    def end(self, source: str, time_ms: int) -> None:
        """All rows of the source count as seen from now on, and none of them is remembered.

        That is remembered for `rows_for_ms`, so that what was sent long before and comes late changes nothing.
        """
        if source not in self._ended:
            self._partitions = {name: seen for name, seen in self._partitions.items() if name[0] != source}
            self._ended[source] = time_ms
            self._changed()

    def pass_time(self, time_ms: int) -> None:
        """It is so late, by the log: numbers that are too old are given up. To be called at each record, before it."""
        if time_ms < self._due:
            return
        before = time_ms - self._rules.rows_for_ms
        for seen in self._partitions.values():
            seen.give_up_until(before)
        self._ended = {source: at for source, at in self._ended.items() if at > before}
        self._changed()

    def _make_room(self) -> None:
        while self._count > self._rules.most_rows:
            _, largest = max(self._partitions.items(), key=lambda item: (len(item[1].at), item[0]))
            largest.give_up_half()
            self._changed()

    def _changed(self) -> None:
        """Numbers are gone: which is the oldest, and when it is too old, is another."""
        self._count = sum(len(seen.at) for seen in self._partitions.values())
        times = [at & _TIMES for seen in self._partitions.values() if (at := seen.oldest) is not None]
        self._due = min([*times, *self._ended.values()], default=_NEVER) + self._rules.rows_for_ms

    def refill(self, records: Iterable[tuple[int, int, Record]]) -> None:
        """Comes to know again what was seen above the floors.

        Args:
            records: The updates partition from the position's `refill` up to its `next`, each with its offset and
                timestamp.
        """
        for at, time_ms, record in records:
            if isinstance(record, UpdateRecord):
                self._add(record.row, at, time_ms)

    def position(
        self, next_offset: int, *, topic: str = "", time_ms: int = 0, rules: RulesRecord | None = None
    ) -> FeedPosition:
        """What to keep, in one write with the rows that were applied.

        Args:
            next_offset: Of the updates partition: all before it went through `take` and `reach`.
            topic, time_ms, rules: See FeedPosition.
        """
        floors: dict[str, dict[int, SeenFloor]] = {}
        for (source, partition), seen in self._partitions.items():
            if seen.floor:
                floors.setdefault(source, {})[partition] = SeenFloor(*divmod(seen.floor, _SUBS))
        # Numbers stand in the order in which they were seen: the first is the oldest.
        oldest = [at >> _TIME_BITS for seen in self._partitions.values() if (at := seen.oldest) is not None]
        refill = min(oldest, default=next_offset)
        return FeedPosition(topic, time_ms, next_offset, refill, floors, dict(self._ended), rules)

    @property
    def remembered(self) -> int:
        """How many numbers are in memory."""
        return self._count

    @property
    def assumed(self) -> Mapping[tuple[str, int], int]:
        """By source and partition, where there are any: how many numbers were given up."""
        return {name: seen.assumed for name, seen in self._partitions.items() if seen.assumed}

"""Which updates of a key group were applied: each row of a source counts once, however often and late it is sent. Pure.

    update  a/0 offset 7       applied
    update  a/0 offset 5       applied: it was refused when 7 was sent, and is sent again
    update  a/0 offset 7       a repetition: the batch is run again
    boundary a/0 ends at 9     7 and 5 are forgotten
    update  a/0 offset 7       a repetition, as all below 9: whoever sends it has been asleep

A job that is killed sends again what it had sent since its last batch's end, cut into other batches. And Kafka may
refuse a record and take those behind it. So the highest offset says too little: the numbers themselves are remembered,
from one boundary to the next. They are one bit each, in blocks of 1,024 offsets.

What is remembered, and what is given up for lack of room or for its age, depends on the log alone: whoever applies it
once more takes the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from keyhole.errors import ChangelogRecreated
from keyhole.hints import ready
from keyhole.protocol.fed_sources import FEED_AGAIN
from keyhole.protocol.updates import MAX_SUB, BoundaryRecord, FeedRules, Record, RulesRecord, SourceRow, UpdateRecord

_SUB_BITS = MAX_SUB.bit_length()
# Key groups share a source's rows: with 64 of them a block has 16 numbers, in about 300 bytes.
_BLOCK_BITS = 10
_BLOCK = 1 << _BLOCK_BITS
# Numbers are given up segment by segment. One ends after so many updates, or after this part of `rows_for_ms`.
_SEGMENT, _SEGMENTS = 4_096, 16
_MOST_FLOORS = 1_000
_NEVER = 1 << 62


class SeenSegment(NamedTuple):
    """A part of the updates partition: from the offset `at`, when it was so late by the log, up to the next segment."""

    at: int
    time_ms: int


class HighestSeen(NamedTuple):
    """The highest number of a partition of a source that was seen in the segment at `at`."""

    at: int
    offset: int
    sub: int


class SeenPartition(NamedTuple):
    """What was seen of a partition of a source.

    Attributes:
        offset, sub: The floor: all rows below these two count as applied.
        heard_ms: When a row or a boundary of it came last, by the log's time.
        highest: By segment, ascending, where numbers above the floor were seen.
    """

    offset: int
    sub: int
    heard_ms: int
    highest: list[HighestSeen]


@ready
class FeedPosition(msgspec.Struct, frozen=True):
    """How far a key group has applied its updates partition, and what it needs to go on from there.

    Attributes:
        topic: Kafka's id of the updates topic: of another one the offsets mean nothing.
        time_ms: The latest timestamp of the log so far: its time, by which entries expire.
        next: The next offset of the updates partition to apply.
        refill: From where it is read again, to know the rows seen above the floors; `next` where there are none.
        segments: Ascending: those in which numbers were seen, and the last one.
        seen: By source and partition.
        ended: By source that has ended, when it was heard of last, by the log's time: all its rows count as applied.
        rules: By which updates are applied from `next` on; None: none are yet.
    """

    topic: str = ""
    time_ms: int = 0
    next: int = 0
    refill: int = 0
    segments: tuple[SeenSegment, ...] = ()
    seen: dict[str, dict[int, SeenPartition]] = {}
    ended: dict[str, int] = {}
    rules: RulesRecord | None = None


def resumed(position: FeedPosition, topic: str, start: int) -> FeedPosition:
    """From where a key group goes on, in the updates topic as it is now.

    Where updates were deleted that were applied, and by which what was seen would be known again, the highest number
    of their segments counts: all below it is taken for seen. Where no record came for so long, that is what the next
    one's time would come to.

    Args:
        topic: Kafka's id of the topic.
        start: The first offset that its partition still has.

    Raises:
        ChangelogRecreated: The topic was made anew, or updates were deleted before they were applied. Nothing is
            passed over in silence.
    """
    if position.topic and position.topic != topic:
        raise ChangelogRecreated(
            f"the updates topic was deleted and made anew (its id is {topic}, it was {position.topic}): {FEED_AGAIN}",
            topic_id=topic,
        )
    if position.next < start:
        raise ChangelogRecreated(
            f"updates from offset {position.next} on are needed, and the topic begins at {start}: they were deleted "
            f"before they were applied. Keep them longer; {FEED_AGAIN}",
            start=start,
        )
    if position.refill >= start:
        return position
    seen = {
        source: {partition: _without_gone(one, start) for partition, one in partitions.items()}
        for source, partitions in position.seen.items()
    }
    left = [one.highest[0].at for partitions in seen.values() for one in partitions.values() if one.highest]
    return msgspec.structs.replace(position, seen=seen, refill=min(left, default=position.next))


def _without_gone(one: SeenPartition, start: int) -> SeenPartition:
    gone = [_number(highest.offset, highest.sub) + 1 for highest in one.highest if highest.at < start]
    floor = max([_number(one.offset, one.sub), *gone])
    kept = [of for of in one.highest if of.at >= start and _number(of.offset, of.sub) >= floor]
    return SeenPartition(*_row(floor), one.heard_ms, kept)


def _number(offset: int, sub: int) -> int:
    return offset << _SUB_BITS | sub


def _row(number: int) -> tuple[int, int]:
    return number >> _SUB_BITS, number & MAX_SUB


class _SeenNumbers:
    """Of one partition of a source.

    Attributes:
        floor: All numbers below count as seen.
        heard_ms: See SeenPartition.
        blocks: The numbers above that were seen, as bits: by 1,024 offsets, and by sub.
        highest: By segment, ascending, the highest of these numbers that was seen in it.
    """

    __slots__ = ("blocks", "floor", "heard_ms", "highest")

    def __init__(self, floor: int = 0, heard_ms: int = 0) -> None:
        self.floor = floor
        self.heard_ms = heard_ms
        self.blocks: dict[int, int] = {}
        self.highest: dict[int, int] = {}

    def add(self, offset: int, sub: int) -> bool:
        """Whether the number is another one than those that were seen."""
        if _number(offset, sub) < self.floor:
            return False
        name, bit = _number(offset >> _BLOCK_BITS, sub), 1 << (offset & _BLOCK - 1)
        bits = self.blocks.get(name, 0)
        self.blocks[name] = bits | bit
        return not bits & bit

    def raise_floor(self, floor: int) -> None:
        if floor <= self.floor:
            return
        self.floor = floor
        self.highest = {at: number for at, number in self.highest.items() if number >= floor}
        self.blocks = dict(self._above(floor)) if self.highest else {}

    def _above(self, floor: int) -> Iterator[tuple[int, int]]:
        offset, sub = _row(floor)
        for name, bits in self.blocks.items():
            first, of = _row(name)
            below = offset - (first << _BLOCK_BITS) + (of < sub)
            left = bits if below <= 0 else bits >> min(below, _BLOCK) << below if below < _BLOCK else 0
            if left:
                yield name, left

    def highest_of_half(self) -> int:
        """The highest number in the lower half of the blocks."""
        names = sorted(self.blocks)
        return max(map(self._highest_in, names[: max(1, len(names) // 2)]))

    def _highest_in(self, name: int) -> int:
        first, sub = _row(name)
        return _number((first << _BLOCK_BITS) + self.blocks[name].bit_length() - 1, sub)

    @property
    def numbers(self) -> int:
        return sum(bits.bit_count() for bits in self.blocks.values())


class SeenRows:
    """The rows that one key group has applied. Not thread-safe.

    Memory is bounded also where no boundary comes. Above `most_blocks` the lower half of those of one partition is
    given up, and another's, until there is room. So are numbers of segments that are older than `rows_for_ms`. The
    rows below what is given up that were not seen yet count as seen. So a source that is gone without its end holds
    nothing back. Of more than 1,000 partitions of sources, the floors of those that were not heard of for so long are
    forgotten.

    Args:
        position: Where the key group was, as `resumed` gives it; its numbers come back by `refill`.

    Attributes:
        assumed: How many numbers were given up since this was made. It should be 0: a row that Kafka had refused, and
            that is sent again, may be below them and is lost then.
    """

    def __init__(self, position: FeedPosition | None = None) -> None:
        was = FeedPosition() if position is None else position
        self._partitions: dict[tuple[str, int], _SeenNumbers] = {}
        for source, partitions in was.seen.items():
            for partition, (offset, sub, heard_ms, highest) in partitions.items():
                seen = self._partitions[source, partition] = _SeenNumbers(_number(offset, sub), heard_ms)
                seen.highest = {one.at: _number(one.offset, one.sub) for one in highest}
        self._ended = dict(was.ended)
        self._segments = dict(was.segments)
        self._segment = was.segments[-1] if was.segments else None
        self._time_ms = was.time_ms
        self._count = 0
        self._rules = FeedRules() if was.rules is None else was.rules.rules
        self._due = 0
        self.assumed = 0

    def limit(self, rules: FeedRules) -> None:
        """How much is remembered from now on."""
        self._rules = rules
        self._due = 0
        self._make_room()

    def take(self, row: SourceRow, at: int) -> bool:
        """Whether the row is seen for the first time; it counts as seen from now on.

        Args:
            at: The update's own offset, in its updates partition. Grows from call to call.
        """
        source, partition, offset, sub = row
        if source in self._ended:
            # For as long as somebody sends its rows it is remembered; so none of them is read by `refill` later.
            self._ended[source] = self._time_ms
            return False
        seen = self._heard(source, partition)
        before = len(seen.blocks)
        if not seen.add(offset, sub):
            return False
        segment = self._segment_of(at)
        seen.highest[segment.at] = max(seen.highest.get(segment.at, 0), _number(offset, sub))
        self._due = min(self._due, segment.time_ms + self._rules.rows_for_ms)
        self._count += len(seen.blocks) - before
        if self._count > self._rules.most_blocks:
            self._make_room()
        return True

    def _heard(self, source: str, partition: int) -> _SeenNumbers:
        seen = self._partitions.get((source, partition))
        if seen is None:
            seen = self._partitions[source, partition] = _SeenNumbers()
            if len(self._partitions) == _MOST_FLOORS + 1:
                self._due = 0
        seen.heard_ms = self._time_ms
        return seen

    def _segment_of(self, at: int) -> SeenSegment:
        """The one that is open: a new one where that is long enough."""
        is_open = self._segment
        if (
            is_open is None
            or at - is_open.at >= _SEGMENT
            or (self._time_ms - is_open.time_ms) * _SEGMENTS >= self._rules.rows_for_ms
        ):
            is_open = self._segment = SeenSegment(at, self._time_ms)
            self._segments[at] = self._time_ms
        return is_open

    def reach(self, boundary: BoundaryRecord) -> None:
        """Forgets the rows below the boundary: all of them count as seen from now on. An older one changes nothing."""
        if boundary.source in self._ended:
            return
        for partition, end in boundary.ends.items():
            self._raise_floor(self._heard(boundary.source, partition), _number(end, 0))

    def end(self, source: str) -> None:
        """All rows of the source count as seen from now on, and none of them is remembered.

        That is remembered for `rows_for_ms` after its last row came, so that what was sent long before and comes late
        changes nothing.
        """
        for name in [name for name in self._partitions if name[0] == source]:
            self._count -= len(self._partitions.pop(name).blocks)
        self._ended[source] = self._time_ms
        self._due = min(self._due, self._time_ms + self._rules.rows_for_ms)

    def pass_time(self, time_ms: int) -> None:
        """It is so late, by the log: what is too old is given up. To be called at each record, before it."""
        self._time_ms = max(self._time_ms, time_ms)
        if self._time_ms < self._due:
            return
        before = self._time_ms - self._rules.rows_for_ms
        for seen in self._partitions.values():
            old = [number for at, number in seen.highest.items() if self._segments[at] <= before]
            if old:
                self._give_up(seen, max(old))
        self._ended = {source: at for source, at in self._ended.items() if at > before}
        self._forget_floors(before)
        times = [self._segments[next(iter(seen.highest))] for seen in self._partitions.values() if seen.highest]
        if len(self._partitions) > _MOST_FLOORS:
            times += [seen.heard_ms for seen in self._partitions.values() if not seen.highest]
        self._due = min([*times, *self._ended.values()], default=_NEVER) + self._rules.rows_for_ms

    def _forget_floors(self, before: int) -> None:
        """Of partitions that nobody has spoken of for long, where there are many."""
        if (excess := len(self._partitions) - _MOST_FLOORS) <= 0:
            return
        silent = [
            (seen.heard_ms, name)
            for name, seen in self._partitions.items()
            if not seen.highest and seen.heard_ms <= before
        ]
        for _, name in sorted(silent)[:excess]:
            del self._partitions[name]

    def _make_room(self) -> None:
        most = self._rules.most_blocks
        if self._count <= most:
            return
        largest = [(-len(seen.blocks), name) for name, seen in self._partitions.items() if seen.blocks]
        heapify(largest)
        while self._count > most - most // 4:
            _, name = heappop(largest)
            seen = self._partitions[name]
            self._give_up(seen, seen.highest_of_half())
            if seen.blocks:
                heappush(largest, (-len(seen.blocks), name))

    def _give_up(self, seen: _SeenNumbers, number: int) -> None:
        """What was seen up to a number."""
        numbers = seen.numbers
        self._raise_floor(seen, number + 1)
        self.assumed += numbers - seen.numbers

    def _raise_floor(self, seen: _SeenNumbers, floor: int) -> None:
        before = len(seen.blocks)
        seen.raise_floor(floor)
        self._count -= before - len(seen.blocks)
        if not seen.highest and len(self._partitions) > _MOST_FLOORS:
            self._due = min(self._due, seen.heard_ms + self._rules.rows_for_ms)

    def refill(self, records: Iterable[Record]) -> None:
        """Comes to know again what was seen above the floors.

        Args:
            records: The updates partition from the position's `refill` up to its `next`.
        """
        for record in records:
            if isinstance(record, UpdateRecord):
                seen = self._partitions.get((record.source, record.partition))
                if seen is not None and seen.highest:
                    before = len(seen.blocks)
                    seen.add(record.offset, record.sub)
                    self._count += len(seen.blocks) - before

    def position(self, next_offset: int, *, topic: str = "", rules: RulesRecord | None = None) -> FeedPosition:
        """What to keep, in one write with the rows that were applied. Also before all is refilled.

        Args:
            next_offset: Of the updates partition: all before it went through `take` and `reach`.
            topic, rules: See FeedPosition.
        """
        found: dict[str, dict[int, SeenPartition]] = {}
        used = set() if self._segment is None else {self._segment.at}
        refill = next_offset
        for (source, partition), seen in self._partitions.items():
            highest = [HighestSeen(at, *_row(number)) for at, number in seen.highest.items()]
            used |= seen.highest.keys()
            refill = min([refill, *seen.highest])
            found.setdefault(source, {})[partition] = SeenPartition(*_row(seen.floor), seen.heard_ms, highest)
        self._segments = {at: time_ms for at, time_ms in self._segments.items() if at in used}
        segments = tuple(SeenSegment(*one) for one in self._segments.items())
        return FeedPosition(topic, self._time_ms, next_offset, refill, segments, found, dict(self._ended), rules)

    @property
    def remembered(self) -> int:
        """How many blocks of numbers are in memory."""
        return self._count

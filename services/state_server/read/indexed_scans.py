"""The entries of a key group that a predicate can be true of, found by an index, in the order of a scan.

    where customer = 'a'              the index's entries of 'a' stand in the order of the rows' keys
    where total > 100                 the keys of all in the range, sorted
    what stands over a store          is not in an index: all of it is looked at

Each row is tested as any other: an index leaves out, and decides nothing. Where too many rows are in the range, all are
read one after another without it, which is faster than some one by one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from keyhole.encoding.codec import EntryRange
from keyhole.encoding.index_ranges import IndexedValues
from keyhole.encoding.storage_key import group_of
from keyhole.stores.base import Snapshot
from keyhole.stores.index_entries import keys_in, keys_of_one_value, rows_counted
from keyhole.stores.overlay import OverlaySnapshot
from keyhole.stores.rules import bounds

FoundEntries = Iterator[tuple[bytes, bytes | None]]
"""Storage key and what is stored. None: there is no row, and nothing but time has passed."""

_FIRST_PIECE, _GROWTH, _MOST_PIECE = 16, 4, 256
_PIECE_BYTES = 1 << 20
_RUN_KEYS = 4_096
_NOTHING: tuple[bytes, None] = (b"", None)


class IndexRule(NamedTuple):
    """When an index is used in a key group.

    Attributes:
        one_in: Where at most one row in so many is in the range.
        most: And no more than so many, whose keys are sorted in memory.
    """

    one_in: int = 8
    most: int = 50_000

    def most_keys(self, rows: int, limit: int) -> int:
        """The most rows in a range for which the index is used, of so many in the key group.

        Args:
            limit: How many entries are wanted; 0: all. To find the first ones by their keys, all in the range must be
                looked up, where rows in their order may be read up to the last one that is wanted.
        """
        most = min(rows // self.one_in, self.most)
        return min(most, math.isqrt(limit * rows)) if limit else most


class IndexedScan(NamedTuple):
    """What a scan asks of indexes.

    Attributes:
        asked: Of each index that could be used, those first that are to be tried first.
        limit: How many entries are wanted that pass; 0: all.
        used: Counts, by field, the scans that an index was used for.
    """

    asked: Sequence[IndexedValues]
    limit: int
    rule: IndexRule
    used: Counter[str]

    def entries(self, snapshot: Snapshot, within: EntryRange, *, descending: bool) -> FoundEntries:
        """All entries in the range that the predicate can be true of, in their order, each once, and some others."""
        group = group_of(within.prefix)
        first, end = bounds(group, within.start, within.stop)
        for asked in self.asked:
            rows, index = rows_counted(snapshot, group, asked.field.id), asked.field.id
            if rows is None:
                continue
            if asked.is_one_value:
                value = asked.ranges[0].first
                parts = [keys_of_one_value(snapshot, group, index, value, first, end, descending=descending)]
            else:
                parts = [keys_in(snapshot, group, index, part) for part in asked.ranges]
            keys: Iterable[bytes]
            if asked.is_one_value and self.limit:
                (keys,) = parts
            else:
                most = self.rule.most_keys(rows, self.limit)
                found = yield from _sorted(parts, most, first, end, descending=descending)
                if found is None:
                    continue
                keys = found
            self.used[asked.field.name] += 1
            if isinstance(snapshot, OverlaySnapshot):
                over = snapshot.keys_over(group, first, end, descending=descending)
                keys = _each_once(heapq.merge(keys, over, reverse=descending))
            yield from _rows(snapshot, keys)
            return
        yield from snapshot.items(group, within.start, within.stop, descending=descending)


def _sorted(
    parts: Iterable[Iterable[bytes]], most: int, first: bytes, end: bytes | None, *, descending: bool
) -> Generator[tuple[bytes, None], None, Iterable[bytes] | None]:
    """The keys between two storage keys, in order. None: more than so many would have to be looked at.

    Gives nothing for each that is looked at, and for each part, so that others have their turn. That is why they are
    sorted a few thousand at a time, too, and merged as they are asked for.
    """
    looked, run, runs = 0, list[bytes](), list[list[bytes]]()
    for part in parts:
        yield _NOTHING
        for key in part:
            if looked >= most:
                return None
            looked += 1
            if first <= key and (end is None or key < end):
                run.append(key)
                if len(run) >= _RUN_KEYS:
                    runs.append(sorted(run, reverse=descending))
                    run = []
            yield _NOTHING
    runs.append(sorted(run, reverse=descending))
    return runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=descending)


def _each_once(keys: Iterable[bytes]) -> Iterator[bytes]:
    return (key for key, _ in itertools.groupby(keys))


def _rows(snapshot: Snapshot, keys: Iterable[bytes]) -> FoundEntries:
    ahead, most = iter(keys), _FIRST_PIECE
    while piece := list(itertools.islice(ahead, most)):
        while piece:
            rows, _ = snapshot.get_first(piece, _PIECE_BYTES)
            yield from zip(piece, rows, strict=False)
            piece = piece[len(rows) :]
        most = min(_GROWTH * most, _MOST_PIECE)

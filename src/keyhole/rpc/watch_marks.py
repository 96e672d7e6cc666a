"""How far a watch is with its key groups behind some of the changes of a message. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from keyhole.encoding.storage_key import prefix_of
from keyhole.encoding.watch_token import WatchMark
from keyhole.v1 import query_pb2 as pb


def marks_behind(
    changes: Iterable[pb.WatchedChanges],
    given: int,
    before: Mapping[int, WatchMark],
    whole: Mapping[int, WatchMark],
    *,
    is_end: bool = True,
) -> dict[int, WatchMark]:
    """The marks of the key groups of which something is given, and by which one can go on behind that.

    Args:
        changes: All that come together.
        given: How many of them are given.
        before: How far the watch is before them.
        whole: How far it is behind all of them.
        is_end: With these changes all of an epoch has come of each of their key groups, so that `whole` holds for each.
    """
    parts = list(changes)
    left = Counter[int]()
    for part in parts:
        left[part.key_group] += len(part.keys)
    marks: dict[int, WatchMark] = {}
    last: dict[int, pb.WatchedChanges] = {}
    for part in parts:
        if given <= 0:
            break
        group, count = part.key_group, min(given, len(part.keys))
        given -= count
        left[group] -= count
        if not left[group] and is_end:
            marks[group] = whole[group]
        elif part.snapshot:
            at = whole[group]
            marks[group] = WatchMark(at.offset, at.epoch, 0, prefix_of(group) + part.keys[count - 1])
        elif part.numbers:
            at, earlier = before[group], last.get(group)
            epoch = at.epoch if earlier is None or earlier.begins == part.begins else earlier.epoch
            marks[group] = WatchMark(part.begins, epoch, part.numbers[count - 1] + 1, at.below)
        last[group] = part
    return marks

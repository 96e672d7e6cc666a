"""Where there is data: the seconds that chunks cover, merged to segments, and the gaps between them. Pure.

Segments are cut at every full hour. So none that reaches into [T1, T2) begins before the hour of T1, and those that do
are one range of map keys: `first_key(T1)` up to T2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

HOUR_US = 3_600_000_000


class Segment(NamedTuple):
    """There is data at every moment of [start_us, end_us); microseconds since 1970, start_us before end_us."""

    start_us: int
    end_us: int


class Change(NamedTuple):
    """What to do to the stored segments: `put` replaces by start, `removed` are starts that are none any more."""

    put: list[Segment]
    removed: list[int]


def covered(pieces: Iterable[Segment]) -> list[Segment]:
    """All that the pieces cover, in order. Those that touch or overlap become one, but never across a full hour."""
    merged: list[Segment] = []
    for piece in sorted(cut for whole in pieces for cut in _cut_at_hours(whole)):
        last = merged[-1] if merged else None
        if last is not None and piece.start_us <= last.end_us and first_key(last.start_us) == first_key(piece.start_us):
            merged[-1] = Segment(last.start_us, max(last.end_us, piece.end_us))
        else:
            merged.append(piece)
    return merged


def _cut_at_hours(whole: Segment) -> Iterable[Segment]:
    start = whole.start_us
    while start < whole.end_us:
        end = min(whole.end_us, first_key(start) + HOUR_US)
        yield Segment(start, end)
        start = end


def extended(known: Iterable[Segment], pieces: Iterable[Segment]) -> Change:
    """What new pieces change.

    Args:
        known: The stored segments; those that no piece touches may be left out.
    """
    before = set(known)
    after = covered([*before, *pieces])
    starts = {segment.start_us for segment in after}
    return Change(
        [segment for segment in after if segment not in before],
        sorted(segment.start_us for segment in before if segment.start_us not in starts),
    )


def applied(known: Iterable[Segment], change: Change) -> list[Segment]:
    """The stored segments after a change."""
    ends = {segment.start_us: segment.end_us for segment in known}
    for start in change.removed:
        del ends[start]
    ends.update((segment.start_us, segment.end_us) for segment in change.put)
    return [Segment(start, end) for start, end in sorted(ends.items())]


def first_key(begin_us: int) -> int:
    """Where a range of map keys begins that has every segment which reaches beyond `begin_us`."""
    return begin_us - begin_us % HOUR_US


def gaps(stored: Sequence[Segment], begin_us: int, end_us: int) -> list[Segment]:
    """The stretches of [begin_us, end_us) without data.

    Args:
        stored: The segments with keys from `first_key(begin_us)` up to `end_us`, in order.
    """
    found: list[Segment] = []
    at = begin_us
    for segment in stored:
        if segment.start_us >= end_us:
            break
        if segment.start_us > at:
            found.append(Segment(at, segment.start_us))
        at = max(at, segment.end_us)
    if at < end_us:
        found.append(Segment(at, end_us))
    return found

"""What waits together, and how it is cut into frames; coalescing.py decides when."""

from __future__ import annotations

import logging
import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from keyhole.errors import InternalError, KeyholeError, KeyTooLong
from keyhole.rpc.frames import Failure
from keyhole.v1 import query_pb2, state_pb2

_log = logging.getLogger(__name__)


class Answers(NamedTuple):
    """Columns, one entry per key of a frame or of a part of one.

    Attributes:
        values: Empty bytes: absent, or failed.
        source_of: Which of `sources` answered each key; empty: sources[0] answered all.
        failures: By index; usually empty.
        server_micros: How long the server had the frame, of a timed one; 0: it does not say.
        message: What they came as, where they are all that it has: a proxy passes it on. None: they were put together.
    """

    values: Sequence[bytes]
    sources: Sequence[state_pb2.Source]
    source_of: Sequence[int] = ()
    failures: Mapping[int, Failure] = {}
    server_micros: int = 0
    message: query_pb2.LookupResponse | None = None

    def part(self, start: int, stop: int) -> Answers:
        """The answers of keys `start` to `stop` (exclusive)."""
        if start == 0 and stop == len(self.values):
            return self
        failures = {index - start: error for index, error in self.failures.items() if start <= index < stop}
        return Answers(self.values[start:stop], self.sources, self.source_of[start:stop], failures, self.server_micros)

    def spread(self, places: Sequence[int]) -> Answers:
        """The answers of keys that were merged: `places` says for each of them which of these is its."""
        return Answers(
            [self.values[place] for place in places],
            self.sources,
            [self.source_of[place] for place in places] if self.source_of else (),
            {index: self.failures[place] for index, place in enumerate(places) if place in self.failures}
            if self.failures
            else {},
            self.server_micros,
        )


class SegmentSink(Protocol):
    """Takes the answers of one segment, in one or several parts. Must not raise, and not call the coalescer back."""

    def answered(self, start: int, answers: Answers) -> None:
        """The keys from `start` on, as many as `answers` has values."""

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        """`count` keys from `start` on have no answer."""


@dataclass(slots=True)
class Segment:
    """Keys that wait together.

    Attributes:
        keys: Storage keys, at least one. Not changed after `add`.
        deadline: On the clock of the caller's `now`, seconds.
        dropped: Set it where nobody wants the answers any more: what was not sent is not sent, and nobody gets an
            answer.
    """

    keys: Sequence[bytes]
    sink: SegmentSink
    deadline: float
    dropped: bool = False


class Part(NamedTuple):
    """Some consecutive keys of a segment, for a frame of at most so many keys."""

    segment: Segment
    start: int
    stop: int
    most: int = sys.maxsize

    def cut(self, start: int, stop: int) -> list[Part]:
        """Its keys from `start` to `stop`; none: nothing."""
        return [self._replace(start=start, stop=stop)] if start < stop else []


class _Nobody:
    """Takes the answers of a segment that has failed already, as its deadline has passed."""

    def answered(self, start: int, answers: Answers) -> None: ...

    def failed(self, start: int, count: int, error: KeyholeError) -> None: ...


GONE = Segment((), _Nobody(), math.inf)
"""In place of a segment that has its answer or error already."""


def take(waiting: deque[Part], limit: int) -> tuple[list[Part], int]:
    """Removes the first parts, at most `limit` keys in all, and cuts the last one to fit.

    Returns:
        The parts of one frame, and how many keys of dropped segments were removed beside them.
    """
    parts: list[Part] = []
    taken = dropped = 0
    while waiting:
        segment, start, stop, most = part = waiting[0]
        if segment.dropped:
            waiting.popleft()
            dropped += stop - start
            continue
        limit = min(limit, most)
        if taken >= limit:
            break
        waiting.popleft()
        if stop - start > limit - taken:
            stop = start + limit - taken
            waiting.appendleft(part._replace(start=stop))
            part = part._replace(stop=stop)
        parts.append(part)
        taken += stop - start
    return parts, dropped


def lightened(parts: Sequence[Part], most_bytes: int) -> tuple[list[Part], list[Part], list[Part]]:
    """Divides the parts of a frame whose keys are too large together.

    Returns:
        Those of the first keys, which are not; those after them; keys that are too large alone, one by one.
    """
    light: list[Part] = []
    heavy: list[Part] = []
    room = most_bytes
    for place, part in enumerate(parts):
        start = part.start
        for index in range(part.start, part.stop):
            size = len(part.segment.keys[index])
            if size > most_bytes:
                light += part.cut(start, index)
                start = index + 1
                heavy += part.cut(index, start)
            elif size > room:
                return [*light, *part.cut(start, index)], [*part.cut(index, part.stop), *parts[place + 1 :]], heavy
            else:
                room -= size
        light += part.cut(start, part.stop)
    return light, [], heavy


def key_too_long(part: Part, most_bytes: int) -> KeyTooLong:
    """Of a part of one key."""
    size = len(part.segment.keys[part.start])
    return KeyTooLong(
        f"a key takes {size:,} bytes, encoded, and no store takes one of that size, so it can't be in any",
        bytes=size,
        limit=most_bytes,
    )


def keys_of(parts: Sequence[Part]) -> Sequence[bytes]:
    """All their keys, in order."""
    if len(parts) == 1:
        segment, start, stop, _ = parts[0]
        return segment.keys if stop - start == len(segment.keys) else segment.keys[start:stop]
    keys: list[bytes] = []
    for segment, start, stop, _ in parts:
        keys += segment.keys[start:stop]
    return keys


def merged(keys: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[int] | None]:
    """Each key once, and for each of the given ones which of those it is; None: they are all different."""
    each = dict.fromkeys(keys)
    if len(each) == len(keys):
        return keys, None
    number = {key: index for index, key in enumerate(each)}
    return list(each), [number[key] for key in keys]


def gone(part: Part) -> Part:
    """Its answers are for nobody any more."""
    return part._replace(segment=GONE)


def not_handed_out(target: str) -> InternalError:
    """The error where handing a response out raises what nobody expected, which is logged here: whoever waits must hear
    of it. Call it where that was caught.
    """
    _log.exception("a response could not be handed out", extra={"address": target})
    return InternalError(f"a response of {target} could not be handed out; the log has the cause")

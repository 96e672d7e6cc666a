"""What the states and the files should say, by the records alone. Imports nothing of the job, nor Spark.

Of late chunks Spark promises one thing: with a delay of d, a chunk that begins after (newest beginning seen) - d is
taken. Later ones may be taken or dropped.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from jobs.json_records import fields_of

_SECOND_US = 1_000_000
_DELAY_US = 10 * _SECOND_US
_WINDOW_US = 60 * _SECOND_US
_HOUR_US = 3600 * _SECOND_US
_END_OF_TIME_US = 4_102_444_800_000_000
_SAMPLE_BYTES = 12
_MOST_BYTES = 500 * _SAMPLE_BYTES
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_NO_NAMES = ("true", "false", "null")

# Of an oxygen saturation a count is a tenth of a percent; of none, or more than all, no body has any.
_SAMPLE = struct.Struct("<qi")
_HIGHEST_TENTHS = 1000

PULSE, SATURATION = "pleth", "spo2"

Signal = tuple[str, str]
"""A patient, and what is measured."""

Segment = tuple[int, int]
"""There is data from the first of these microseconds since 1970 up to the second."""


@dataclass
class Recorded:
    """The chunks of one signal, by their beginnings; `doubtful`: those that may have come too late."""

    chunks: dict[int, bytes] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)

    def segments(self) -> list[Segment]:
        """Where there is data: in order, cut at full hours, neighbours made one."""
        found: list[Segment] = []
        for start, end in self._seconds():
            if found and found[-1][1] >= start and start % _HOUR_US:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((start, end))
        return found

    def _seconds(self) -> Iterator[Segment]:
        for start in sorted(self.chunks):
            end = start + _SECOND_US
            hour = end - end % _HOUR_US
            if start < hour < end:
                yield start, hour
                yield hour, end
            else:
                yield start, end

    def closed(self, blob_us: int, until_us: int) -> set[int]:
        """Which chunks, by their beginnings, are of blobs that end before that moment."""
        return {start for start in self.chunks if blob_start(start, blob_us) + blob_us < until_us}

    def last_piece(self) -> Segment:
        """The last stretch without a gap, at one rate, of the last minute."""
        starts = sorted(self.chunks)
        first = last = starts[-1]
        for start in reversed(starts[:-1]):
            follows = start + _SECOND_US == first and len(self.chunks[start]) == len(self.chunks[first])
            if not follows or start <= last - _WINDOW_US:
                break
            first = start
        return first, last + _SECOND_US

    def saturation(self) -> tuple[float | None, float | None, int]:
        """Of the last piece: mean and lowest in percent, None where no sample counts, and how many do."""
        chunks = (self.chunks[start] for start in range(*self.last_piece(), _SECOND_US))
        tenths = [count for chunk in chunks for _, count in _SAMPLE.iter_unpack(chunk) if 0 < count <= _HIGHEST_TENTHS]
        if not tenths:
            return None, None, 0
        return math.fsum(tenths) / len(tenths) / 10, min(tenths) / 10, len(tenths)


def blob_start(start: int, blob_us: int) -> int:
    """Where the blob of a chunk begins, by the chunk's beginning."""
    return start - start % blob_us


def watermark_us(recorded: Mapping[Signal, Recorded]) -> int:
    """How far Spark's watermark, in whole milliseconds, has come once it has no more to do."""
    newest = max((start for of in recorded.values() for start in of.chunks), default=_DELAY_US)
    return newest // 1000 * 1000 - _DELAY_US


def chunk_of(value: bytes | None) -> tuple[Signal, int, bytes] | None:
    """Whose it is, its beginning and its samples, by the job's README; None where it is no chunk."""
    record = fields_of(value, {"patient": str, "signal": str, "start": int, "samples": str})
    if record is None or None in record.values():
        return None
    patient, signal, start, samples = record.values()
    for name in (patient, signal):
        if not _NAME.fullmatch(name) or name in _NO_NAMES:
            return None
    if not 0 <= start < _END_OF_TIME_US:
        return None
    try:
        data = base64.b64decode(samples, validate=True)
    except ValueError:
        return None
    if base64.b64encode(data).decode() != samples:
        return None
    if not _SAMPLE_BYTES <= len(data) <= _MOST_BYTES or len(data) % _SAMPLE_BYTES:
        return None
    return (patient, signal), start, data


def recount(values: Iterable[bytes | None]) -> dict[Signal, Recorded]:
    """By signal, what was sent. Of two chunks with one beginning the later one counts.

    Args:
        values: In the topic's order, on which it depends what is in doubt.
    """
    recorded: defaultdict[Signal, Recorded] = defaultdict(Recorded)
    newest = -1
    for value in values:
        if (chunk := chunk_of(value)) is None:
            continue
        signal, start, samples = chunk
        recorded[signal].chunks[start] = samples
        if newest >= 0 and start <= newest - _DELAY_US:
            recorded[signal].doubtful.add(start)
        newest = max(newest, start)
    return dict(recorded)

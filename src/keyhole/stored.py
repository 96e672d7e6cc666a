"""What stands around a row in a store and in the changelog, in states that need more than the row. Pure.

    a state with a ttl           when the entry expires: milliseconds since 1970, 8 bytes, big-endian; 0: not known yet
    then an aggregating state    epoch (8 bytes), length of the row (4), length of the accumulator (4), length of the
                                 accumulator before plus one, or 0: there was none (4); row, accumulator, the one before
    then, or at once             the row (keyhole.codec)

docs/changelog.md tells the same to those who read a changelog in another language.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from keyhole.types import StateDescriptor, StateKind, TtlClock

STAMP_BYTES = 8
DIGEST_BYTES = 4
"""Before a staged Aggregate: of what the epoch brought, or zeros where that depends on the order of rows."""
NOT_KNOWN = bytes(STAMP_BYTES)
"""The stamp of an entry that was written before its query had a watermark: its time has not begun yet."""
_AGGREGATE = struct.Struct(">QIII")


class Moment(NamedTuple):
    """The time as of which entries are expired or not.

    Attributes:
        time_ms: By a clock, milliseconds since 1970, UTC: of the commit, or of the reader's server.
        watermark_ms: Of the epoch; 0: the query has none yet.
    """

    time_ms: int
    watermark_ms: int


class Aggregate(NamedTuple):
    """An entry of an aggregating state.

    Attributes:
        epoch: Which wrote it.
        row: The result, which readers get.
        accumulator: What the next rows are merged into.
        before: The accumulator before the epoch, which the same epoch is merged into when it is run again; None: the
            epoch was the key's first.
    """

    epoch: int
    row: bytes
    accumulator: bytes
    before: bytes | None

    def encode(self) -> bytes:
        before = 0 if self.before is None else len(self.before) + 1
        header = _AGGREGATE.pack(self.epoch, len(self.row), len(self.accumulator), before)
        return b"".join((header, self.row, self.accumulator, self.before or b""))

    def as_of(self, epoch: int) -> bytes | None:
        """The accumulator before an epoch: this entry's, or an earlier one's where the entry is of that epoch."""
        return self.before if self.epoch >= epoch else self.accumulator


def decode_aggregate(stored: bytes) -> Aggregate:
    """The inverse of Aggregate.encode."""
    epoch, row, accumulator, before = _AGGREGATE.unpack_from(stored)
    row_end = _AGGREGATE.size + row
    end = row_end + accumulator
    return Aggregate(
        epoch,
        stored[_AGGREGATE.size : row_end],
        stored[row_end:end],
        stored[end : end + before - 1] if before else None,
    )


def _aggregate_row(stored: bytes) -> bytes:
    _, row, _, _ = _AGGREGATE.unpack_from(stored)
    return stored[_AGGREGATE.size : _AGGREGATE.size + row]


@dataclass(frozen=True)
class Lifetime:
    """How long the entries of a state live after they were last written."""

    ttl_ms: int
    clock: TtlClock

    def stamp(self, now: Moment) -> bytes:
        """Of an entry that is written now."""
        by = self._time(now)
        return (by + self.ttl_ms).to_bytes(STAMP_BYTES, "big") if by else NOT_KNOWN

    def expired(self, now: Moment) -> bytes:
        """The latest stamp whose time has come: an entry has expired if its own is not above it, and is known.

        Stamps compare as bytes. Where no time is known this is NOT_KNOWN, and nothing has expired.
        """
        return self._time(now).to_bytes(STAMP_BYTES, "big")

    def _time(self, now: Moment) -> int:
        return max(0, now.watermark_ms if self.clock is TtlClock.EVENT_TIME else now.time_ms)


def lifetime(descriptor: StateDescriptor) -> Lifetime | None:
    """None: entries live until they are deleted."""
    return Lifetime(descriptor.ttl_ms, descriptor.ttl_clock) if descriptor.ttl_ms else None


Visible = Callable[[bytes], bytes | None]
"""From what is stored to the row that readers get; None: it has expired."""


def visible(descriptor: StateDescriptor) -> Callable[[Moment], Visible] | None:
    """By the moment as of which something is read; None: what is stored is the row."""
    lives = lifetime(descriptor)
    inner = _aggregate_row if descriptor.kind is StateKind.AGGREGATING else None
    if lives is not None:
        return lambda now: _visible(lives.expired(now), inner)
    return None if inner is None else lambda now: inner


def living(stored: bytes, expired: bytes) -> bytes | None:
    """What stands behind an entry's stamp; None: the entry has expired.

    Args:
        expired: See Lifetime.expired.
    """
    # Once for each row that is read: a comparison of bytes is all that it takes.
    return None if NOT_KNOWN < stored[:STAMP_BYTES] <= expired else stored[STAMP_BYTES:]


def _visible(expired: bytes, inner: Callable[[bytes], bytes] | None) -> Visible:
    if inner is None:
        return functools.partial(living, expired=expired)

    def row(stored: bytes) -> bytes | None:
        entry = living(stored, expired)
        return None if entry is None else inner(entry)

    return row

"""A writer's run, what an epoch is known by, and a key group's position in the changelog. Frozen values, pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyhole.hints import ready


class Run(msgspec.Struct, frozen=True):
    """One start of one query. A server obeys the highest generation it has seen, and one run per generation."""

    application: str
    query: str
    generation: int
    run_id: str


@ready
class EpochStamp(msgspec.Struct, frozen=True, order=True):
    """What an epoch is known by wherever it goes: in markers, complete records, and the answers of copies.

    Ordered by the epoch, and then by the fields behind it: of one epoch, a stamp with its times is greater than one
    without them.

    Attributes:
        generation: Of the run that wrote it.
        commit_time_ms: When the coordinator decided to commit it, milliseconds since 1970, UTC; 0: none.
        watermark_ms: Event-time watermark, milliseconds since 1970; 0: none.
    """

    epoch: int
    generation: int
    commit_time_ms: int
    watermark_ms: int


NO_EPOCH = EpochStamp(epoch=0, generation=0, commit_time_ms=0, watermark_ms=0)
"""Before the first epoch."""


class Position(NamedTuple):
    """How far a copy of one key group has followed its changelog partition.

    Its fields are flat, in this order: stores keep them so, those of users' own engines too.

    Attributes:
        offset: The next changelog offset to read.
        epoch: The epoch of the last marker applied; 0: none.
        generation: The generation of the run that wrote that marker.
        checksum: That marker's checksum (sum over the epoch's staged rows of crc32(storage key, value) modulo 2^64).
        commit_time_ms: That marker's, milliseconds since 1970, UTC.
        watermark_ms: That marker's; 0: none.
    """

    offset: int
    epoch: int
    generation: int
    checksum: int
    commit_time_ms: int = 0
    watermark_ms: int = 0

    @classmethod
    def after(cls, marker_offset: int, stamp: EpochStamp, checksum: int) -> Position:
        """Of a copy that has applied everything up to the marker at this offset."""
        return cls(marker_offset + 1, stamp.epoch, stamp.generation, checksum, stamp.commit_time_ms, stamp.watermark_ms)

    @property
    def stamp(self) -> EpochStamp:
        """That of the last marker applied."""
        return EpochStamp(self.epoch, self.generation, self.commit_time_ms, self.watermark_ms)


START = Position(offset=0, epoch=0, generation=0, checksum=0)

"""Where a writer is: its run, and a key group's position in the changelog. Frozen values, pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Run(msgspec.Struct, frozen=True):
    """One start of one query. A server obeys the highest generation it has seen, and one run per generation."""

    application: str
    query: str
    generation: int
    run_id: str


class Position(NamedTuple):
    """How far a copy of one key group has followed its changelog partition.

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


START = Position(offset=0, epoch=0, generation=0, checksum=0)

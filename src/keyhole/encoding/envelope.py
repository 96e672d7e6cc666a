"""What stands around a row in a store and in the changelog, in states that need more than the row. Pure.

    a state with a ttl           when the entry expires: milliseconds since 1970, 8 bytes, big-endian; 0: not known yet
    then an aggregating state    version of the accumulator less one (1 byte), of the accumulator before less one (1),
                                 epoch (6), length of the row (4), of the accumulator (4), of the accumulator before
                                 plus one, or 0: there was none (4); row, accumulator, the one before
    then, or at once             the row (codec); or, in a state with order_by, a deletion that is remembered

    a deletion                   the byte c1, with which no row begins; in a state without a ttl, when it is forgotten,
                                 as above; and its order, as it would stand in a row

docs/changelog.md has the same for those who read a changelog in another language.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from keyhole.model.state import StateDescriptor, StateKind, TtlClock

STAMP_BYTES = 8
DIGEST_BYTES = 4
"""Before a staged Aggregate: of what the epoch brought, or zeros where that depends on the order of rows."""
NOT_KNOWN = bytes(STAMP_BYTES)
"""The stamp of an entry that was written before its query had a watermark: its time has not begun yet."""
NEVER = b"\xff" * STAMP_BYTES
"""Above the stamps of all that expires."""
DELETED = b"\xc1"
"""What a deletion begins with that is remembered: MessagePack never uses the byte."""
_AFTER_DELETED = b"\xc2"
UNORDERED_DELETION = DELETED + msgspec.msgpack.encode(None)
"""One whose order is null: nothing can be older, so it need not be remembered."""
_FIRST_STAMP = (1).to_bytes(STAMP_BYTES, "big")
_AGGREGATE = struct.Struct(">QIII")
# Where the versions stand among the bytes of an epoch, which needs fewer. Of version 1 they are zero, as they were
# before there were versions.
_VERSION_AT, _VERSION_BEFORE_AT, _EPOCHS = 56, 48, 1 << 48
MOST_CLASS_VERSION = 255
"""Of a job's class (types.StateDescriptor.class_version)."""
PLAIN, WITH_DELETIONS, WITH_VERSIONS = 1, 2, 3
"""How the entries of a state are laid out (see layout_of)."""


class Moment(NamedTuple):
    """The time as of which entries are expired or not.

    Attributes:
        time_ms: By a clock, milliseconds since 1970, UTC: of the commit, or of the reader's server.
        watermark_ms: Of the epoch; 0: the query has none yet.
    """

    time_ms: int
    watermark_ms: int


class Base(NamedTuple):
    """What an epoch's rows of a key are merged into: an accumulator, and the version of the class that made it."""

    accumulator: bytes
    version: int


class Aggregate(NamedTuple):
    """An entry of an aggregating state.

    Attributes:
        epoch: Which wrote it.
        row: The result, which readers get.
        accumulator: What the next rows are merged into.
        before: The accumulator before the epoch, which the same epoch is merged into when it is run again; None: the
            epoch was the key's first.
        version: Of the class that made the accumulator, 1 to MOST_CLASS_VERSION; `version_before` likewise.
    """

    epoch: int
    row: bytes
    accumulator: bytes
    before: bytes | None
    version: int = 1
    version_before: int = 1

    def encode(self) -> bytes:
        """The bytes of an entry, as the table above has them."""
        before = 0 if self.before is None else len(self.before) + 1
        first = self.epoch
        if self.version > 1 or self.version_before > 1:
            first |= (self.version - 1) << _VERSION_AT | (self.version_before - 1) << _VERSION_BEFORE_AT
        header = _AGGREGATE.pack(first, len(self.row), len(self.accumulator), before)
        return b"".join((header, self.row, self.accumulator, self.before or b""))

    def as_of(self, epoch: int) -> Base | None:
        """The accumulator before an epoch: this entry's, or an earlier one's where the entry is of that epoch."""
        if self.epoch < epoch:
            return Base(self.accumulator, self.version)
        return None if self.before is None else Base(self.before, self.version_before)


def decode_aggregate(stored: bytes) -> Aggregate:
    """An Aggregate from the bytes that `Aggregate.encode` gave. Those that name no version are of version 1."""
    first, row, accumulator, before = _AGGREGATE.unpack_from(stored)
    row_end = _AGGREGATE.size + row
    end = row_end + accumulator
    parts = (
        stored[_AGGREGATE.size : row_end],
        stored[row_end:end],
        stored[end : end + before - 1] if before else None,
    )
    if first < _EPOCHS:  # as nearly all are
        return Aggregate(first, *parts)
    return Aggregate(first % _EPOCHS, *parts, (first >> _VERSION_AT) + 1, (first >> _VERSION_BEFORE_AT) % 256 + 1)


def layout_of(descriptor: StateDescriptor) -> int:
    """How the entries of a state are laid out, so that whoever doesn't know of it refuses them.

    WITH_DELETIONS: what stands in place of a row may be a deletion that is remembered. WITH_VERSIONS: an accumulator
    may be of another version than 1.
    """
    if descriptor.kind is StateKind.AGGREGATING and descriptor.class_version > 1:
        return WITH_VERSIONS
    return WITH_DELETIONS if descriptor.order_by else PLAIN


def _aggregate_row(stored: bytes) -> bytes:
    _, row, _, _ = _AGGREGATE.unpack_from(stored)
    return stored[_AGGREGATE.size : _AGGREGATE.size + row]


def deletion(order: Any) -> bytes:
    """A deletion that is to be remembered, as it is staged: what stands in place of a row.

    Args:
        order: As it would stand in a row (keyhole.encoding.value_types).
    """
    return DELETED + msgspec.msgpack.encode(order)


@dataclass(frozen=True)
class Lifetime:
    """How long the entries of a state live after they were last written, and the stamp by which each expires.

    Attributes:
        ttl_ms: Of rows; 0: until they are deleted.
        keep_deleted_ms: Of deletions.
    """

    ttl_ms: int
    clock: TtlClock
    keep_deleted_ms: int = 0

    def stamp(self, now: Moment) -> bytes:
        """When a row expires that is written now: STAMP_BYTES bytes."""
        return self._stamp(self.ttl_ms, now) if self.ttl_ms else NEVER

    def entries(self, now: Moment) -> Callable[[bytes], bytes]:
        """The function from a row, or a deletion as it is staged, that is written now, to its entry."""
        row, deleted = self.stamp(now), self._stamp(self.keep_deleted_ms, now)
        if self.ttl_ms:
            return lambda value: (deleted if value.startswith(DELETED) else row) + value
        placed = DELETED + deleted
        return lambda value: placed + value[1:] if value.startswith(DELETED) else value

    def bare(self, entry: bytes) -> bytes:
        """The row, or the deletion as it was staged, of an entry, expired or not."""
        if self.ttl_ms:
            return entry[STAMP_BYTES:]
        return DELETED + entry[1 + STAMP_BYTES :] if entry.startswith(DELETED) else entry

    def living(self, entries: Iterable[bytes | None], lives_from: bytes) -> list[bytes | None]:
        """`bare` of many; None: there is no entry, or it has expired.

        Args:
            lives_from: See `lives_from`.
        """
        if self.ttl_ms:
            return living(entries, lives_from)
        return [
            self._remembered(entry, lives_from) if entry is not None and DELETED <= entry < _AFTER_DELETED else entry
            for entry in entries
        ]

    def is_deletion(self, entry: bytes) -> bool:
        """Whether an entry of a state with `order_by` is a deletion that is remembered."""
        return entry.startswith(DELETED, STAMP_BYTES if self.ttl_ms else 0)

    def stamp_of(self, entry: bytes) -> bytes:
        """When an entry, or what is remembered of a deletion, expires: STAMP_BYTES bytes that sort by time."""
        if self.ttl_ms:
            return entry[:STAMP_BYTES]
        return entry[1 : 1 + STAMP_BYTES] if entry.startswith(DELETED) else NEVER

    def _remembered(self, entry: bytes, lives_from: bytes) -> bytes | None:
        return None if _FIRST_STAMP <= self.stamp_of(entry) < lives_from else self.bare(entry)

    def _stamp(self, lives_ms: int, now: Moment) -> bytes:
        by = self._time(now)
        return (by + lives_ms).to_bytes(STAMP_BYTES, "big") if by else NOT_KNOWN

    def expired(self, now: Moment) -> bytes:
        """The latest stamp whose time has come: an entry has expired if its own is not above it, and is known.

        Stamps compare as bytes. Where no time is known this is NOT_KNOWN, and nothing has expired.
        """
        return self._time(now).to_bytes(STAMP_BYTES, "big")

    def lives_from(self, now: Moment) -> bytes:
        """The first stamp whose time has not come: an entry lives if its own is not below it, or isn't known."""
        return (self._time(now) + 1).to_bytes(STAMP_BYTES, "big")

    def _time(self, now: Moment) -> int:
        return max(0, now.watermark_ms if self.clock is TtlClock.EVENT_TIME else now.time_ms)


def lifetime(descriptor: StateDescriptor) -> Lifetime | None:
    """How long entries live; None: until they are deleted, and deletions are not remembered.

    Those of a state with `order_by` may have been, also where they are not any more.
    """
    if not descriptor.ttl_ms and not descriptor.order_by:
        return None
    return Lifetime(descriptor.ttl_ms, descriptor.ttl_clock, descriptor.keep_deleted_ms)


def expiry_ms(entry: bytes) -> int:
    """When an entry of a state with a ttl expires, in milliseconds since 1970; 0: not known yet."""
    return int.from_bytes(entry[:STAMP_BYTES], "big")


class Visible:
    """What readers get of what is stored, as of one moment.

    Args:
        lives_from: See Lifetime; None: the state has no ttl.
        aggregates: Of an aggregating state.
        deletions: Some entries may be deletions that are remembered.
    """

    def __init__(self, lives_from: bytes | None, *, aggregates: bool = False, deletions: bool = False) -> None:
        self._lives_from = lives_from
        self._aggregates = aggregates
        self._deletions = deletions

    def row(self, entry: bytes) -> bytes | None:
        """The row of one entry; None: it has expired, or says that there is none."""
        if self._lives_from is not None:
            if _FIRST_STAMP <= entry < self._lives_from:
                return None
            entry = entry[STAMP_BYTES:]
        if self._deletions and entry.startswith(DELETED):
            return None
        return _aggregate_row(entry) if self._aggregates else entry

    def rows(self, entries: list[bytes | None]) -> list[bytes | None]:
        """The rows of many entries, in their order; None: it is not there, has expired, or says that there is none."""
        if self._lives_from is not None:
            entries = living(entries, self._lives_from)
        if self._deletions:
            # Compared, which takes half of what a call of startswith does; rows of less than 16 fields are below.
            entries = [None if entry is None or DELETED <= entry < _AFTER_DELETED else entry for entry in entries]
        return [entry and _aggregate_row(entry) for entry in entries] if self._aggregates else entries


def visible(descriptor: StateDescriptor) -> Callable[[Moment], Visible] | None:
    """What readers see, by the moment as of which they read; None: what is stored is the row."""
    lives = lifetime(descriptor)
    aggregates, deletions = descriptor.kind is StateKind.AGGREGATING, bool(descriptor.order_by)
    if lives is not None and lives.ttl_ms:
        return lambda now: Visible(lives.lives_from(now), aggregates=aggregates, deletions=deletions)
    if not aggregates and not deletions:
        return None
    at_any_time = Visible(None, aggregates=aggregates, deletions=deletions)
    return lambda now: at_any_time


def living(entries: Iterable[bytes | None], lives_from: bytes) -> list[bytes | None]:
    """What stands behind the entries' stamps; None: there is no entry, or it has expired.

    Args:
        lives_from: See Lifetime.
    """
    # A lookup spends here what a ttl costs it: entries are compared whole, which their stamps decide, and what lives is
    # copied once. 54 ns a row (measured); a call for each, and a copy of its stamp, made it 330.
    return [
        entry[STAMP_BYTES:] if entry is not None and (entry >= lives_from or entry < _FIRST_STAMP) else None
        for entry in entries
    ]

"""What comes to a mirror's copy: changes of epochs, which are staged until their epoch is whole, and then applied.

    message    changes of an epoch, or a part of it         they are staged, by key group
    token      says that the epoch of a key group is whole  they are applied, and seen together

A row is kept as it was sent, by the encoded key, behind the two bytes of its key group. In a state with a ttl these are
followed by when it expires, 8 bytes. So an entry takes little more than its bytes, and a read decodes one row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from keyhole.client.mirror_entries import EntriesByKey
from keyhole.client.mirror_extent import MirrorExtent
from keyhole.client.wire.watch_stream import StoredMessage, WatchOptions
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.encoding.watch_token import marks_of
from keyhole.errors import InternalError, TooLarge
from keyhole.model.epoch import NO_EPOCH, EpochStamp
from keyhole.model.read import Source
from keyhole.model.state import TtlClock
from keyhole.rpc.convert_stamps import watched_stamp
from keyhole.v1 import query_pb2 as pb

ENTRY_BYTES = 130
"""What an entry takes beside its key and its row, at most: two objects, and its place in a dict (measured)."""

EXPIRES_BYTES = 8


class MirrorLimits(NamedTuple):
    """What one copy may have; what it has staged of an epoch may be as much again."""

    entries: int
    bytes: int

    def check(self, name: str, entries: int, size: int) -> None:
        """Raises TooLarge: more than that; the message names the bound."""
        for bound, found, most in (("max_entries", entries, self.entries), ("max_bytes", size, self.bytes)):
            if found > most:
                raise TooLarge(
                    f"the mirror of {name} has {found:,} {bound[4:]}, and {bound}={most:,} allows no more: give it a "
                    f"larger {bound}, mirror fewer keys, or read by `get` of the client",
                    bound=bound,
                    limit=most,
                )


class _Staged:
    """Changes of a key group whose epoch is not whole yet.

    Attributes:
        changes: By encoded key: what is kept of the row; None: it is deleted.
        stamp: Of the last of their epochs.
    """

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}
        self.size = 0
        self.stamp = NO_EPOCH


class MirrorIntake:
    """The half of MirrorCopy that takes messages in; see the module's text. One thread does.

    Args:
        name: Of the state, for messages.
        asked: What is watched for it.
        now: Seconds since 1970, and by a clock that is never set.

    Attributes:
        messages: How many were taken in.
    """

    def __init__(
        self,
        name: str,
        asked: WatchOptions,
        limits: MirrorLimits,
        now: tuple[Callable[[], float], Callable[[], float]] = (time.time, time.monotonic),
    ) -> None:
        self._name = name
        self._extent = MirrorExtent(name, asked)
        self._limits = limits
        self._clock, self._monotonic = now
        # Reads within a signal's handler may come in the middle of others.
        self._lock = threading.RLock()
        # And what of it every read needs.
        self._codec: StateCodec | None = None
        self._encode: Callable[[Any], bytes] = self._nothing_yet
        self._decode: Callable[[bytes], Any] = self._nothing_yet
        self._rows: dict[bytes, bytes] = {}
        self._bytes = 0
        self._staged: dict[int, _Staged] = {}
        # By key group its last whole epoch, and the last one of which all key groups have all.
        self._epochs: dict[int, EpochStamp] = {}
        self._complete = NO_EPOCH
        # Of later epochs, by their number: one that is told with the changes of any key group.
        self._stamps: dict[int, EpochStamp] = {}
        self._as_of_ms = 0
        self._heard = self._monotonic()
        # Of a state whose entries expire: where its rows begin, by which clock, and how far that is.
        self._row_at = GROUP_BYTES
        self._by_watermark = False
        self._latest_ms = 0
        self._told = self._fed = False
        # Since when all rows have come.
        self._done_at: float | None = None
        self._sources: dict[int, Source] = {}
        # Made by the first scan.
        self._by_key: EntriesByKey | None = None
        self.messages = 0

    def take(self, message: StoredMessage) -> None:
        """Takes in what a watch has sent. Raises TooLarge: more than the limits allow."""
        self.messages += 1
        self._describe(message.codec)
        response = message.response
        for part in response.changes:
            self._stage(part)
        if response.token:
            # One that has none says nothing: what it tells is a part of something.
            self._settle(response)
        self._check_limits()

    def _describe(self, codec: StateCodec) -> None:
        if codec is self._codec:
            return
        descriptor = codec.descriptor
        # Whether there is a ttl, and by which clock, never changes.
        self._row_at = GROUP_BYTES + EXPIRES_BYTES if descriptor.ttl_ms else GROUP_BYTES
        self._fed = bool(descriptor.updates_topic_id)
        self._by_watermark = descriptor.ttl_clock is TtlClock.EVENT_TIME
        self._extent.describe(codec)
        # Last, and before any row of it: a read of another thread never has a row that its codec can't read.
        self._codec, self._encode, self._decode = codec, codec.encoded_key, codec.decode_row

    def _stage(self, part: pb.WatchedChanges) -> None:
        staged = self._staged.get(part.key_group)
        if staged is None:
            staged = self._staged[part.key_group] = _Staged()
        prefix, changes = prefix_of(part.key_group), staged.changes
        if self._row_at == GROUP_BYTES:
            for key, row in zip(part.keys, part.values, strict=True):
                changes[key] = prefix + row if row else None
                staged.size += len(key) + len(row)
        else:
            expires = part.expires_ms or [0] * len(part.keys)
            for key, row, at in zip(part.keys, part.values, expires, strict=True):
                changes[key] = prefix + at.to_bytes(EXPIRES_BYTES, "big") + row if row else None
                staged.size += len(key) + len(row)
        staged.stamp = self._stamps[part.epoch] = watched_stamp(part)

    def _settle(self, response: pb.WatchResponse) -> None:
        marks = marks_of(response.token)
        for group in list(self._staged):
            # While rows of it are missing nobody is shown it.
            if not marks[group].skip or marks[group].below is not None:
                self._apply(group, self._staged.pop(group))
        rows_done = all(mark.below is None for mark in marks.values())
        with self._lock:
            for group, mark in marks.items():
                if mark.epoch > self._epochs.setdefault(group, NO_EPOCH).epoch:
                    self._epochs[group] = self._known_stamp(mark.epoch)
            self._complete = max(self._complete, watched_stamp(response))
            self._stamps = (
                {} if self._fed else {of: stamp for of, stamp in self._stamps.items() if of > self._complete.epoch}
            )
            if response.as_of_ms > self._as_of_ms:
                self._as_of_ms, self._heard = response.as_of_ms, self._monotonic()
            if rows_done and self._done_at is None:
                self._done_at = self._monotonic()
            self._told = self._told or (rows_done and (response.epoch > 0 or not response.changes))
            self._sources.clear()

    def _known_stamp(self, epoch: int) -> EpochStamp:
        """Of an epoch of which nothing has come of a key group: its times are those of the others, if they are known.

        Of a state that is fed by updates each key group has epochs of its own.
        """
        stamp = None if self._fed else self._stamps.get(epoch)
        return stamp or msgspec.structs.replace(NO_EPOCH, epoch=epoch)

    def _apply(self, group: int, staged: _Staged) -> None:
        # Nobody else writes: what can be known before is, and readers wait for the rest alone.
        rows, changes = self._rows, staged.changes
        before = {key: kept for key, kept in zip(changes, map(rows.get, changes), strict=True) if kept is not None}
        puts = {key: kept for key, kept in changes.items() if kept is not None}
        gone = [key for key in before if key not in puts] if len(puts) < len(changes) else []
        with self._lock:
            rows.update(puts)
            for key in gone:
                del rows[key]
            if (by_key := self._by_key) is not None:
                by_key.change(puts.keys() - before.keys(), gone)
            self._epochs[group] = max(self._epochs.get(group, NO_EPOCH), staged.stamp)
            self._sources.pop(group, None)
            self._bytes += _size(puts) - _size(before)

    def _check_limits(self) -> None:
        staged = self._staged.values()
        entries = max(len(self._rows), sum(len(of.changes) for of in staged))
        size = max(self._bytes, sum(of.size + len(of.changes) * ENTRY_BYTES for of in staged))
        self._limits.check(self._name, entries, size)

    def _nothing_yet(self, asked: Any) -> Any:
        raise InternalError(f"the mirror of {self._name} is read before it has anything, by a bug of Keyhole's")


def _size(entries: Mapping[bytes, bytes]) -> int:
    """About what these entries take in memory, in bytes."""
    return sum(map(len, entries)) + sum(map(len, entries.values())) + len(entries) * ENTRY_BYTES

"""The rows that a mirror has, as of whole epochs of each key group. Pure, but for a lock.

    message    changes of an epoch, or a part of it        they are staged, by key group
    token      says that the epoch of a key group is whole  they are applied, and seen together

A row is kept as it was sent, behind the two bytes of its key group, by the encoded key. So an entry takes little more
than its bytes, and a read decodes one row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keyhole.client.mirror_entries import EntriesByKey
from keyhole.client.mirror_extent import MirrorExtent
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.wire.watch_stream import StoredMessage, WatchOptions
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_reading import entry_reader
from keyhole.encoding.storage_key import GROUP_BYTES, group_of, prefix_of
from keyhole.encoding.watch_token import marks_of
from keyhole.errors import InternalError, TooLarge
from keyhole.model.read import Answer, Entry, KeyedEntry, ReadBounds, Role, Source, Stale
from keyhole.rpc.convert import time_from_ms
from keyhole.rpc.scan_requests import check_has_entries
from keyhole.v1 import query_pb2 as pb

ENTRY_BYTES = 130
"""What an entry takes beside its key and its row, at most: two objects, and its place in a dict (measured)."""

_NONE = 0, 0


class MirrorLimits(NamedTuple):
    """What one copy may have; what it has staged of an epoch may be as much again."""

    entries: int
    bytes: int


class _Staged:
    """Changes of a key group whose epoch is not whole yet.

    Attributes:
        changes: By encoded key: what is kept of the row; None: it is deleted.
        of: The last of their epochs, and its commit time in milliseconds.
    """

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}
        self.size = 0
        self.of = _NONE


class MirrorCopy:
    """See the module's text. One thread takes messages in, any thread reads.

    Args:
        name: Of the state, for messages.
        asked: What is watched for it.
        now: Seconds since 1970, and by a clock that is never set.

    Attributes:
        topic_id: Of the state that its rows are of; empty: nothing was taken in.
        messages: How many were taken in.
        changed: How many epochs of key groups were applied.
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
        # By key group: its last whole epoch, and when that was committed, in milliseconds.
        self._epochs: dict[int, tuple[int, int]] = {}
        # The last one of which all key groups have all; and the last that is known with its commit time.
        self._complete = self._as_of_ms = 0
        self._heard = self._monotonic()
        self._committed = _NONE
        self._rows_done = self._told = False
        self._sources: dict[int, Source] = {}
        # Made by the first scan.
        self._by_key: EntriesByKey | None = None
        self.topic_id = ""
        self.messages = self.changed = 0

    # --- what comes ---------------------------------------------------------------------------------------------------

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
        self.topic_id = codec.descriptor.topic_id
        self._extent.describe(codec)
        # Last, and before any row of it: a read of another thread never has a row that its codec can't read.
        self._codec, self._encode, self._decode = codec, codec.encoded_key, codec.decode_row

    def _stage(self, part: pb.WatchedChanges) -> None:
        staged = self._staged.get(part.key_group)
        if staged is None:
            staged = self._staged[part.key_group] = _Staged()
        prefix, changes = prefix_of(part.key_group), staged.changes
        for key, row in zip(part.keys, part.values, strict=True):
            changes[key] = prefix + row if row else None
            staged.size += len(key) + len(row)
        staged.of = part.epoch, part.commit_time_ms

    def _settle(self, response: pb.WatchResponse) -> None:
        marks = marks_of(response.token)
        for group in list(self._staged):
            # While rows of it are missing nobody is shown it.
            if not marks[group].skip or marks[group].below is not None:
                self._apply(group, self._staged.pop(group))
        rows_done = all(mark.below is None for mark in marks.values())
        with self._lock:
            for group, mark in marks.items():
                if mark.epoch > self._epochs.setdefault(group, _NONE)[0]:
                    self._epochs[group] = mark.epoch, 0
            self._complete = max(self._complete, response.epoch)
            if response.as_of_ms > self._as_of_ms:
                self._as_of_ms, self._heard = response.as_of_ms, self._monotonic()
            self._rows_done = rows_done
            self._told = self._told or (rows_done and not response.changes)
            self._sources.clear()

    def _apply(self, group: int, staged: _Staged) -> None:
        rows, delta = self._rows, 0
        with self._lock:
            by_key = self._by_key
            for key, kept in staged.changes.items():
                before = rows.get(key)
                if before is not None:
                    delta -= len(key) + len(before) + ENTRY_BYTES
                if kept is not None:
                    delta += len(key) + len(kept) + ENTRY_BYTES
                    rows[key] = kept
                    if before is None and by_key is not None:
                        by_key.add(key)
                elif before is not None:
                    del rows[key]
                    if by_key is not None:
                        by_key.remove(key)
            self._epochs[group] = max(self._epochs.get(group, _NONE), staged.of)
            self._committed = max(self._committed, staged.of)
            self._sources.pop(group, None)
            self._bytes += delta
            self.changed += 1

    def _check_limits(self) -> None:
        staged = self._staged.values()
        entries = max(len(self._rows), sum(len(of.changes) for of in staged))
        size = max(self._bytes, sum(of.size + len(of.changes) * ENTRY_BYTES for of in staged))
        for bound, found, most in (
            ("max_entries", entries, self._limits.entries),
            ("max_bytes", size, self._limits.bytes),
        ):
            if found > most:
                raise TooLarge(
                    f"the mirror of {self._name} has {found:,} {bound[4:]}, and {bound}={most:,} allows no more: give "
                    f"it a larger {bound}, mirror fewer keys, or read by `get` of the client",
                    bound=bound,
                    limit=most,
                )

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """All rows that were there have come, and it is known up to which epoch all has."""
        return self._rows_done and (self._complete > 0 or self._told)

    @property
    def entries(self) -> int:
        """Counts the entries that it has; of map and list states all of each key."""
        return len(self._rows)

    @property
    def size(self) -> int:
        """About what its entries take, in bytes."""
        return self._bytes

    @property
    def epoch(self) -> int:
        """The last one of which all has been taken in; 0: none, or the state is fed by updates."""
        return self._complete

    @property
    def as_of_ms(self) -> int:
        """All that was committed by then has been taken in: milliseconds since 1970; 0: not known."""
        return self._as_of_ms

    @property
    def age_seconds(self) -> float:
        """How long ago that was, by whichever clock makes it longer."""
        with self._lock:
            if not self._as_of_ms:
                return float("inf")
            return max(0.0, self._monotonic() - self._heard, self._clock() - self._as_of_ms / 1000)

    def _nothing_yet(self, asked: Any) -> Any:
        raise InternalError(f"the mirror of {self._name} is read before it has anything, by a bug of Keyhole's")

    @property
    def _known(self) -> StateCodec:
        return self._codec or self._nothing_yet(None)

    def holds(self, epochs: int | Mapping[int, int]) -> bool:
        """Whether all its key groups have this epoch, or those that are named the epochs that they are named with."""
        with self._lock:
            if isinstance(epochs, Mapping):
                return all(self._epoch_of(group) >= epoch for group, epoch in epochs.items())
            return self._complete >= epochs or all(self._epoch_of(group) >= epochs for group in self._epochs)

    def reaches(self, other: MirrorCopy) -> bool:
        """Whether it is as far as another one, in each key group."""
        return all(self._epoch_of(group) >= other._epoch_of(group) for group in list(other._epochs))

    def _epoch_of(self, group: int) -> int:
        return max(self._complete, self._epochs.get(group, _NONE)[0])

    # --- reads --------------------------------------------------------------------------------------------------------

    def answer(self, key: Any) -> Answer:
        """As a lookup gives it. Raises as MirrorReads.get."""
        encoded = self._encode(key)
        with self._lock:
            kept = self._rows.get(encoded)
            if kept is None:
                return self._absent(key, encoded)
            group = kept[0] << 8 | kept[1]
            source = self._sources.get(group) or self._source(group)
        return Answer(True, self._decode(kept[GROUP_BYTES:]), source)

    def answers(self, keys: Iterable[Any]) -> list[Answer]:
        """Of many keys, all of one moment of the copy. Raises as `answer`."""
        wanted = [(key, self._encode(key)) for key in keys]
        with self._lock:
            found = [self._found(key, encoded) for key, encoded in wanted]
            decode = self._decode
        return [
            Answer(True, decode(kept[GROUP_BYTES:]), source) if kept else Answer(False, None, source)
            for kept, source in found
        ]

    def _found(self, key: Any, encoded: bytes) -> tuple[bytes | None, Source]:
        kept = self._rows.get(encoded)
        if kept is None:
            return None, self._absent(key, encoded).source
        return kept, self._source(group_of(kept))

    def good_enough(self, key: Any, bounds: ReadBounds) -> Answer | None:
        """The answer, where it meets the bounds of a read; None: whoever reads must ask a server.

        Raises:
            KeyMismatch, NullKey: The key does not fit the state's.
        """
        if bounds.as_of or bounds.stale is Stale.NEVER or not self._extent.has(self._encode(key)):
            return None
        if bounds.max_staleness_ms and self.age_seconds * 1000 > bounds.max_staleness_ms:
            return None
        answer = self.answer(key)
        least = bounds.min_epoch
        if bounds.min_epochs:
            (least,) = bounds.least_of([group_of(self._known.storage_key(key))])
        return None if answer.epoch < least or (self._extent.some and not answer.found) else answer

    def entries_of(
        self, key: Any, within: tuple[Sequence[Any], Sequence[Any]], limit: int | None, *, descending: bool
    ) -> ScannedEntries:
        """The entries of one key. Raises as MirrorReads.scan."""
        codec = self._known
        check_has_entries(codec.descriptor)
        asked = codec.entry_range(key, *within)
        prefix, group = asked.prefix[GROUP_BYTES:], group_of(asked.prefix)
        if not self._extent.has_all_of(prefix):
            raise self._extent.refusal()
        with self._lock:
            if self._by_key is None:
                self._by_key = EntriesByKey(codec, self._rows)
            found = self._by_key.within(asked, descending=descending)[:limit]
            kept, source, decode = [self._rows[encoded] for encoded in found], self._source(group), self._decode
        map_keys = [codec.entries.decode(encoded[len(prefix) :]) for encoded in found]
        entries = tuple(
            Entry(map_key[0] if len(map_key) == 1 else map_key, decode(row[GROUP_BYTES:]))
            for map_key, row in zip(map_keys, kept, strict=True)
        )
        return ScannedEntries(entries, source, key, codec.descriptor)

    def keyed_entries(self) -> Iterator[KeyedEntry]:
        """All of them, as of the moment of this call; in no order that means something."""
        with self._lock:
            kept = list(self._rows.items())
            sources = {group: self._source(group) for group in self._epochs}
            read, decode = entry_reader(self._known), self._decode

        def given() -> Iterator[KeyedEntry]:
            for encoded, stored in kept:
                key, map_key = read(stored[:GROUP_BYTES] + encoded)
                yield KeyedEntry(key, map_key, decode(stored[GROUP_BYTES:]), sources[group_of(stored)])

        return given()

    def _absent(self, key: Any, encoded: bytes) -> Answer:
        if not self._extent.has(encoded):
            raise self._extent.refusal()
        return Answer(False, None, self._source(group_of(self._known.storage_key(key))))

    def _source(self, group: int) -> Source:
        source = self._sources.get(group)
        if source is None:
            epoch, commit_ms = self._epochs.get(group, _NONE)
            if epoch < self._complete:
                epoch, commit_ms = self._complete, 0
            if not commit_ms and epoch == self._committed[0]:
                commit_ms = self._committed[1]
            source = self._sources[group] = Source(
                server="",
                role=Role.MIRROR,
                epoch=epoch,
                commit_time=time_from_ms(commit_ms),
                watermark=None,
                generation=0,
                assignment_version=0,
                unconfirmed=False,
                as_of=time_from_ms(self._as_of_ms),
            )
        return source

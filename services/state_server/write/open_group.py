"""What is staged of one key group, merged for one read as it would be committed: for some keys, or for a range of them.

    stored             a: 1   b: 2          d: 4
    staged                    b: +5   c: 3           a sum
    a scan is given    a: 1   b: 7    c: 3  d: 4

A scan merges a few keys at a time, as they are asked for. So it takes no more memory for more rows, and other callers
have their turn.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.errors import MalformedRequest
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.stores.base import Snapshot
from services.state_server.read.indexed_scans import FoundEntries
from services.state_server.write.attempts import StagedPart
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import CommitContext, Stored, StoredValues

_PIECE_ENTRIES = 64
_PIECE_BYTES = 256 << 10
# A row that is merged takes about as long as so many that are only read.
_MERGED_COSTS = 8
_NOTHING: tuple[bytes, None] = (b"", None)


class _ScannedEntry(NamedTuple):
    """Of a scan, in its order.

    Attributes:
        stored: What is stored; None: nothing.
        merged: What is staged may change it.
    """

    key: bytes
    stored: bytes | None
    merged: bool


class StateMerge:
    """How rows of a state are merged for readers: apart from the write path, whose strategy is the host thread's."""

    def __init__(self, descriptor: StateDescriptor) -> None:
        self.descriptor = descriptor
        self.codec = StateCodec(descriptor)
        self.merge = merge_of(descriptor)
        self.is_list = descriptor.kind is StateKind.LIST

    def prefix(self, storage_key: bytes) -> bytes:
        """What the storage key begins with: key group and key. Raises MalformedRequest: it is none of the state."""
        return storage_key[: self.codec.prefix_length(storage_key)]


class OpenGroup:
    """See StagedRows.

    Args:
        staged: The part's rows, which don't change.
        stamp: See StagedRows.stamp.
    """

    def __init__(self, of: StateMerge, part: StagedPart, staged: StoredValues, stamp: EpochStamp) -> None:
        self.stamp = stamp
        self._of = of
        self._rows = part.rows
        self._staged = staged
        self._replaces = bool(part.attempt.replaces)
        self._context = CommitContext.of(stamp)

    def over(self, keys: Sequence[bytes], stored: list[bytes | None], snapshot: Snapshot) -> list[bytes | None]:
        """See StagedRows.over. What else is asked of the store, as a list's last element, is of the snapshot."""
        rows = self._that_matter(keys)
        if self._replaces:
            replaced = self._of.merge.replacing(rows, self._context)
            return [replaced.get(key) for key in keys]
        asked = _StoredOfKeys(snapshot, dict(zip(keys, stored, strict=True)))
        written = dict(self._of.merge.with_stored(rows, asked, self._context))
        return [written.get(key, row) for key, row in zip(keys, stored, strict=True)]

    def _that_matter(self, keys: Sequence[bytes]) -> StoredValues:
        """The staged rows on which these keys depend: their own, and those that clear or fill the key they are of."""
        staged = self._staged
        if self._of.is_list:
            return {
                key: row for prefix in self._prefixes(keys) for key, row in self._rows.under(staged, prefix).items()
            }
        names = set(keys)
        if self._of.descriptor.map_key:
            names |= self._prefixes(keys)
        return {key: staged[key] for key in names if key in staged}

    def _prefixes(self, keys: Iterable[bytes]) -> set[bytes]:
        """What these storage keys begin with. Without those that are no key of the state: nothing is stored of them,
        and callers whose keys came along are answered.
        """
        found = set()
        for key in keys:
            with contextlib.suppress(MalformedRequest):
                found.add(self._of.prefix(key))
        return found

    def scanned(self, found: FoundEntries, within: EntryRange, snapshot: Snapshot, *, descending: bool) -> FoundEntries:
        """See StagedRows.scanned. Gives nothing now and then, so that others have their turn."""
        for _ in self._rows.ordering(self._staged):
            yield _NOTHING
        own = self._own(within, snapshot, descending=descending)
        stored = iter(()) if self._replaces else found
        entries: list[_ScannedEntry] = []
        size = 0
        for entry in _both(stored, own, self._touched(), descending=descending):
            if entry.stored is None and not entry.merged:  # nothing but time has passed
                yield entry.key, None
            elif entry.merged or entries:
                entries.append(entry)
                size += len(entry.stored or b"")
                if len(entries) >= _PIECE_ENTRIES or size >= _PIECE_BYTES:
                    yield from self._merged(entries, snapshot)
                    entries, size = [], 0
            else:
                yield entry.key, entry.stored
        yield from self._merged(entries, snapshot)

    def _merged(self, entries: Sequence[_ScannedEntry], snapshot: Snapshot) -> FoundEntries:
        asked = [entry for entry in entries if entry.merged]
        rows = iter(self.over([entry.key for entry in asked], [entry.stored for entry in asked], snapshot))
        for entry in entries:
            yield entry.key, next(rows) if entry.merged else entry.stored
        yield from itertools.repeat(_NOTHING, _MERGED_COSTS * len(asked))

    def _touched(self) -> Callable[[bytes], bool]:
        """Says of a stored key, asked in their order, whether it may be changed without a staged row of its own."""
        cleared: Container[bytes]
        if self._of.is_list:
            cleared = self._prefixes(self._staged)
        elif self._of.descriptor.map_key:
            cleared = self._staged  # by a row that has the key alone
        else:
            return lambda key: False
        last, is_cleared = b"", False

        def touched(key: bytes) -> bool:
            nonlocal last, is_cleared
            # No encoded key begins as another one does.
            if not last or not key.startswith(last):
                last = self._of.prefix(key)
                is_cleared = last in cleared
            return is_cleared

        return touched

    def _own(self, within: EntryRange, snapshot: Snapshot, *, descending: bool) -> Iterator[_ScannedEntry]:
        """What is stored of the keys that are staged, in order. Those that are not in the range are not to be merged,
        and count for the time that they take.
        """
        keys = (
            self._placed(within, snapshot, descending=descending)
            if self._of.is_list
            else self._keys(within, descending=descending)
        )
        while piece := list(itertools.islice(keys, _PIECE_ENTRIES)):
            if self._replaces:
                yield from (_ScannedEntry(key, None, is_in) for key, is_in in piece)
                continue
            while piece:
                # What is not in the range is read along with the others: it takes no more than to leave it out.
                rows, _ = snapshot.get_first([key for key, _ in piece], _PIECE_BYTES)
                for (key, is_in), row in zip(piece, rows, strict=False):
                    yield _ScannedEntry(key, row if is_in else None, is_in)
                piece = piece[len(rows) :]

    def _keys(self, within: EntryRange, *, descending: bool) -> Iterator[tuple[bytes, bool]]:
        """Storage keys, and whether they are in the range."""
        keys = self._rows.keys_between(within.start, within.stop)
        return ((key, self._is_in(key, within)) for key in (reversed(keys) if descending else keys))

    def _placed(self, within: EntryRange, snapshot: Snapshot, *, descending: bool) -> Iterator[tuple[bytes, bool]]:
        """As `_keys`, of a list: where its staged elements come. Each key's are placed when it is come to."""
        prefixes = sorted(self._prefixes(self._staged), reverse=descending)
        for prefix in prefixes:
            end = end_of_prefix(prefix)
            if (within.stop is not None and prefix >= within.stop) or (end is not None and end <= within.start):
                continue
            rows = self._rows.under(self._staged, prefix)
            if self._replaces:
                placed = list(self._of.merge.replacing(rows, self._context))
            else:
                changed = self._of.merge.with_stored(rows, _StoredOfKeys(snapshot, {}), self._context)
                placed = [key for key, row in changed if row is not None]
            for key in sorted(placed, reverse=descending):
                if within.start <= key and (within.stop is None or key < within.stop):
                    yield key, self._is_in(key, within)

    def _is_in(self, key: bytes, within: EntryRange) -> bool:
        return not within.is_of_map_keys or within.has_map_key(key[self._of.codec.prefix_length(key) :])


def _both(
    stored: FoundEntries, own: Iterator[_ScannedEntry], touched: Callable[[bytes], bool], *, descending: bool
) -> Generator[_ScannedEntry]:
    """Both in one order; of a key that both have, the own one."""
    above = next(own, None)
    for key, row in stored:
        if row is None:
            yield _ScannedEntry(key, None, False)
            continue
        while above is not None and (above.key > key if descending else above.key < key):
            yield above
            above = next(own, None)
        if above is None or above.key != key:
            yield _ScannedEntry(key, row, touched(key))
    while above is not None:
        yield above
        above = next(own, None)


class _StoredOfKeys:
    """Reads what is stored, as if a key group had no entries but those that are asked for: a key that is cleared may
    have many others. Downwards it has all, which a list needs: its new elements come behind the last one.

    Args:
        rows: What is stored of those, by storage key.
    """

    def __init__(self, stored: Stored, rows: StoredValues) -> None:
        self._stored = stored
        self._rows = rows
        self._keys: list[bytes] | None = None

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._rows
        others = [key for key in storage_keys if key not in rows]
        if others:
            rows = {**dict(zip(others, self._stored.get_many(others), strict=True)), **rows}
        return [rows[key] for key in storage_keys]

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if descending:
            return self._stored.items(key_group, start, stop, descending=True)
        if self._keys is None:
            self._keys = sorted(self._rows)
        end = None if stop is None else bisect.bisect_left(self._keys, stop)
        keys = self._keys[bisect.bisect_left(self._keys, start) : end]
        return ((key, row) for key in keys if (row := self._rows[key]) is not None)

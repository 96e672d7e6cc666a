"""Rows that stand over a store: applied already, and not yet in the store. Frozen values, so readers need no lock.

    store        a: 1, b: 2
    overlay      b: 3, c: 4, a: deleted        ->  a reader sees  b: 3, c: 4

The real-time lane applies updates one after another and writes its store now and then, with what it has committed to
the changelog. Between the two, readers see the rows through an OverlaySnapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from immutables import Map

from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.model.epoch import Position
from keyhole.stores.base import Snapshot
from keyhole.stores.rules import bounds, first_rows

_Rows = Map[bytes, bytes | None]
_NO_ROWS: _Rows = Map()
_ABSENT = object()


class Overlay:
    """Changes by storage key, in any number of key groups; None deletes. Immutable; `of` the same rows share memory.

    Thread-safe.
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[bytes, _Rows] | None = None) -> None:
        self._groups: Mapping[bytes, _Rows] = {} if groups is None else groups

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def __contains__(self, storage_key: bytes) -> bool:
        return storage_key in self._groups.get(storage_key[:GROUP_BYTES], _NO_ROWS)

    def get(self, storage_key: bytes, default: object = None) -> object:
        """The row, None where it is deleted, `default` where nothing stands over the store."""
        rows = self._groups.get(storage_key[:GROUP_BYTES])
        return default if rows is None else rows.get(storage_key, default)

    def of(self, key_group: int) -> list[tuple[bytes, bytes | None]]:
        """What stands over the store in a key group, ascending by storage key."""
        return sorted(self._groups.get(prefix_of(key_group), _NO_ROWS).items())

    def changed(self, changes: Iterable[tuple[bytes, bytes | None]]) -> Overlay:
        """With these on top. Takes as long as there are changes, and key groups."""
        edits: dict[bytes, list[tuple[bytes, bytes | None]]] = {}
        for change in changes:
            edits.setdefault(change[0][:GROUP_BYTES], []).append(change)
        groups = dict(self._groups)
        for prefix, of_group in edits.items():
            groups[prefix] = groups.get(prefix, _NO_ROWS).update(of_group)
        return Overlay(groups)

    def without(self, written: Overlay) -> Overlay:
        """What is left once the store has the rows of `written`, an earlier version: what was changed since."""
        groups: dict[bytes, _Rows] = {}
        for prefix, rows in self._groups.items():
            there = written._groups.get(prefix, _NO_ROWS)
            if rows is there:
                continue
            # A row that was replaced by the same bytes is another object, and stays: it does no harm.
            left = {key: row for key, row in rows.items() if there.get(key, _ABSENT) is not row}
            if left:
                groups[prefix] = Map(left)
        return Overlay(groups)

    def drop(self, key_groups: Iterable[int]) -> Overlay:
        """Without what stands in these key groups."""
        gone = {prefix_of(group) for group in key_groups}
        return Overlay({prefix: rows for prefix, rows in self._groups.items() if prefix not in gone})


class OverlaySnapshot:
    """A store's snapshot with an overlay over it. See stores.base.Snapshot.

    Args:
        base: It is closed with this one.
    """

    def __init__(self, base: Snapshot, overlay: Overlay) -> None:
        self._base = base
        self._overlay = overlay

    def get(self, storage_key: bytes) -> bytes | None:
        (row,) = self.get_many([storage_key])
        return row

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        # From the store first, whatever stands over it: a closed one must be noticed.
        rows = self._base.get_many(storage_keys)
        overlay = self._overlay
        for at, key in enumerate(storage_keys):
            over = overlay.get(key, _ABSENT)
            if over is not _ABSENT:
                rows[at] = over  # type: ignore[call-overload]  # a row, or None
        return rows

    def get_first(self, storage_keys: Sequence[bytes], most_bytes: int) -> tuple[list[bytes | None], bool]:
        if not any(key in self._overlay for key in storage_keys):
            return self._base.get_first(storage_keys, most_bytes)
        return first_rows(map(self.get, storage_keys), most_bytes)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        first, end = bounds(key_group, start, stop)
        over = [(key, row) for key, row in self._overlay.of(key_group) if first <= key and (end is None or key < end)]
        stored = self._base.items(key_group, start, stop, descending=descending)
        return _merged(stored, over[::-1] if descending else over, descending=descending)

    def positions(self) -> Mapping[int, Position]:
        """Of the store: what stands over it has none."""
        return self._base.positions()

    def close(self) -> None:
        self._base.close()


def _merged(
    stored: Iterator[tuple[bytes, bytes]], over: Sequence[tuple[bytes, bytes | None]], *, descending: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Both in one order; where both have a key, what stands over the store counts."""
    at = 0
    for key, row in stored:
        while at < len(over) and (over[at][0] > key if descending else over[at][0] < key):
            if (inserted := over[at])[1] is not None:
                yield inserted[0], inserted[1]
            at += 1
        if at < len(over) and over[at][0] == key:
            if (replaced := over[at][1]) is not None:
                yield key, replaced
            at += 1
        else:
            yield key, row
    for key, left in over[at:]:
        if left is not None:
            yield key, left

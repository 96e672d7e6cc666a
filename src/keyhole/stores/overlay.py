"""Rows that stand over a store: applied already, and not yet in the store. Frozen values, so readers need no lock.

    store        a: 1, b: 2
    overlay      b: 3, c: 4, a: deleted        ->  a reader sees  b: 3, c: 4

The real-time lane applies updates one after another and writes its store now and then, with what it has committed to
the changelog. Between the two, readers see the rows through an OverlaySnapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from immutables import Map

from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.model.epoch import Position
from keyhole.stores.base import Snapshot
from keyhole.stores.ordered_keys import OrderedKeys
from keyhole.stores.rules import bounds, first_rows

_RowMap = Map[bytes, bytes | None]
_NO_ROWS: _RowMap = Map()
_ABSENT = object()
_RowChange = tuple[bytes, bytes | None]


class _Unsorted(NamedTuple):
    """Keys that came since the order was made, the last first."""

    keys: Sequence[bytes]
    before: _Unsorted | None


class _Group:
    """The changes of one key group. Immutable to whoever looks: the order is made when it is first asked for."""

    __slots__ = ("_order", "rows", "size")

    def __init__(self, rows: _RowMap, size: int, order: OrderedKeys, unsorted: _Unsorted | None) -> None:
        self.rows = rows
        self.size = size
        # One assignment: threads that ask at once each make it, and either is right.
        self._order = order, unsorted

    def changed(self, changes: Sequence[_RowChange]) -> _Group:
        rows, size = self.rows, self.size
        order, unsorted = self._order
        new = []
        for key, row in dict(changes).items():
            before = rows.get(key)
            if before is not None:
                size -= len(before)
            elif key not in rows:
                new.append(key)
                size += len(key)
            if row is not None:
                size += len(row)
        if new:
            unsorted = _Unsorted(new, unsorted)
        return _Group(rows.update(changes), size, order, unsorted)

    def items(self, first: bytes, end: bytes | None, *, descending: bool = False) -> Iterator[_RowChange]:
        rows = self.rows
        return ((key, rows[key]) for key in self._keys().between(first, end, descending=descending))

    def sorted(self) -> list[_RowChange]:
        rows = self.rows
        return [(key, rows[key]) for key in self._keys()]

    def _keys(self) -> OrderedKeys:
        order, unsorted = self._order
        if unsorted is None:
            return order
        keys: set[bytes] = set()
        while unsorted is not None:
            keys.update(unsorted.keys)
            unsorted = unsorted.before
        order = order.added(sorted(keys))
        self._order = order, None
        return order


_NOTHING = _Group(_NO_ROWS, 0, OrderedKeys(), None)


class Overlay:
    """Changes by storage key, in any number of key groups; None deletes. Immutable; `of` the same rows share memory.

    Thread-safe.
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[bytes, _Group] | None = None) -> None:
        self._groups: Mapping[bytes, _Group] = {} if groups is None else groups

    def __len__(self) -> int:
        return sum(len(group.rows) for group in self._groups.values())

    def __contains__(self, storage_key: bytes) -> bool:
        return storage_key in self._groups.get(storage_key[:GROUP_BYTES], _NOTHING).rows

    @property
    def size_bytes(self) -> int:
        """Of all keys and rows, without what they cost beside."""
        return sum(group.size for group in self._groups.values())

    def bytes_of(self, key_group: int) -> int:
        """As `size_bytes`, of a key group."""
        return self._groups.get(prefix_of(key_group), _NOTHING).size

    def get(self, storage_key: bytes, default: object = None) -> object:
        """The row, None where it is deleted, `default` where nothing stands over the store."""
        group = self._groups.get(storage_key[:GROUP_BYTES])
        return default if group is None else group.rows.get(storage_key, default)

    def of(self, key_group: int) -> list[_RowChange]:
        """What stands over the store in a key group, ascending by storage key."""
        return self._groups.get(prefix_of(key_group), _NOTHING).sorted()

    def items(
        self, key_group: int, first: bytes, end: bytes | None, *, descending: bool = False
    ) -> Iterator[_RowChange]:
        """The same between two storage keys: takes as long as there are rows between them. None: to the last."""
        return self._groups.get(prefix_of(key_group), _NOTHING).items(first, end, descending=descending)

    def changed(self, changes: Iterable[_RowChange]) -> Overlay:
        """With these on top. Takes as long as there are changes, and key groups."""
        edits: dict[bytes, list[_RowChange]] = {}
        for change in changes:
            edits.setdefault(change[0][:GROUP_BYTES], []).append(change)
        groups = dict(self._groups)
        for prefix, of_group in edits.items():
            groups[prefix] = groups.get(prefix, _NOTHING).changed(of_group)
        return Overlay(groups)

    def without(self, written: Overlay, key_groups: Iterable[int]) -> Overlay:
        """What is left once the store has the rows that `written`, an earlier version, has of some key groups.

        That is what was changed since. Of a key group that was dropped since then this isn't known: don't name it.
        """
        groups = dict(self._groups)
        for prefix in map(prefix_of, key_groups):
            group = groups.pop(prefix, _NOTHING)
            there = written._groups.get(prefix, _NOTHING).rows
            if group.rows is there:
                continue
            # A row that was replaced by the same bytes is another object, and stays: it does no harm.
            left = [(key, row) for key, row in group.rows.items() if there.get(key, _ABSENT) is not row]
            if left:
                groups[prefix] = _NOTHING.changed(left)
        return Overlay(groups)

    def with_group(self, key_group: int, other: Overlay) -> Overlay:
        """With what `other` has in a key group, in place of what is here."""
        prefix = prefix_of(key_group)
        groups = {of: group for of, group in self._groups.items() if of != prefix}
        if prefix in other._groups:
            groups[prefix] = other._groups[prefix]
        return Overlay(groups)

    def drop(self, key_groups: Iterable[int]) -> Overlay:
        """Without what stands in these key groups."""
        gone = {prefix_of(group) for group in key_groups}
        return Overlay({prefix: group for prefix, group in self._groups.items() if prefix not in gone})


class OverlaySnapshot:
    """A store's snapshot with an overlay over it. See stores.base.Snapshot.

    Args:
        base: It is closed with this one.
    """

    def __init__(self, base: Snapshot, overlay: Overlay) -> None:
        self._base = base
        self._overlay = overlay

    @property
    def stored(self) -> Snapshot:
        """What is in the store, without what stands over it; closed with this."""
        return self._base

    def keys_over(self, key_group: int, first: bytes, end: bytes | None, *, descending: bool) -> Iterator[bytes]:
        """The keys, between two storage keys (None: to the last), whose rows stand over the store, or are deleted."""
        return (key for key, _ in self._overlay.items(key_group, first, end, descending=descending))

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
        over = self._overlay.items(key_group, first, end, descending=descending)
        stored = self._base.items(key_group, start, stop, descending=descending)
        return _merged(stored, over, descending=descending)

    def positions(self) -> Mapping[int, Position]:
        """Of the store: what stands over it has none."""
        return self._base.positions()

    def close(self) -> None:
        self._base.close()


def _merged(
    stored: Iterator[tuple[bytes, bytes]], over: Iterator[_RowChange], *, descending: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Both in one order; where both have a key, what stands over the store counts."""
    above = next(over, None)
    for key, row in stored:
        while above is not None and (above[0] > key if descending else above[0] < key):
            if above[1] is not None:
                yield above[0], above[1]
            above = next(over, None)
        if above is None or above[0] != key:
            yield key, row
            continue
        if above[1] is not None:
            yield key, above[1]
        above = next(over, None)
    while above is not None:
        if above[1] is not None:
            yield above[0], above[1]
        above = next(over, None)

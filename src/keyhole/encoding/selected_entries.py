"""What a scan gives of stored entries: those that are selected, and of each what is wanted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.encoding.entry_filter import EntryFilter, StoredEntry
from keyhole.encoding.index_ranges import IndexedValues, indexed_values
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.encoding.key_ranges import ALL_KEYS, EncodedKeys, key_range
from keyhole.encoding.predicate_binding import bound
from keyhole.encoding.row_codec import RowCodec
from keyhole.encoding.row_projection import RowProjection, projected
from keyhole.model.predicates import Predicate, part_count
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor

_FEW_PARTS = 8


def usable_indexes(descriptor: StateDescriptor, where: Predicate | None) -> Sequence[IndexedValues]:
    """The indexes of a state by which what a predicate lets through can be found, and which values of each.

    Raises:
        ValueMismatch: The state has no such field, or of another type.
    """
    if where is None or not descriptor.index:
        return ()
    return indexed_values(bound(where, descriptor), indexed_fields(descriptor))


def usable_keys(descriptor: StateDescriptor, where: Predicate | None) -> EncodedKeys:
    """Between which keys whatever a predicate lets through stands. Raises ValueMismatch: as `usable_indexes`."""
    if where is None:
        return ALL_KEYS
    return key_range(bound(where, descriptor), (*descriptor.scan_key, *descriptor.entry_key))


class SelectedEntries:
    """Of one state, as it is described now. Thread-safe.

    Args:
        as_json: Rows as JSON, in UTF-8.

    Raises:
        ValueMismatch: The state has no such field, or of another type.
        MalformedRequest: The predicate is too large.

    Attributes:
        tests: Not all entries are selected.
        keys: None is selected that is not among these, map keys included.
        indexed: By which indexes they can be looked up; none: all must be tested.
        cost: About how many times longer an entry takes than one that is tested by few comparisons.
    """

    def __init__(self, descriptor: StateDescriptor, selection: Selection, *, as_json: bool = False) -> None:
        where, fields = selection.where, selection.fields
        self.keys = usable_keys(descriptor, where)
        self.indexed = usable_indexes(descriptor, where)
        self.tests = where is not None
        self.cost = 1 if where is None else max(1, part_count(where) // _FEW_PARTS)
        self._filter = None if where is None else EntryFilter(descriptor, where)
        self._projection = None if fields is None else RowProjection(descriptor, fields)
        self._keys_only = selection.keys_only
        self._json = RowCodec(given_descriptor(descriptor, selection)) if as_json else None

    def kept(self, entries: Sequence[StoredEntry]) -> Sequence[StoredEntry]:
        """Those that are selected, as they are stored. Raises ValueMismatch, StaleDescriptor."""
        return entries if self._filter is None else self._filter.kept(entries)

    def values(self, rows: Sequence[bytes]) -> list[bytes]:
        """What is wanted of each row; empty bytes: nothing. Raises ValueMismatch, StaleDescriptor."""
        if self._keys_only:
            return [b""] * len(rows)
        cut = list(rows) if self._projection is None else self._projection.rows(rows)
        return cut if self._json is None else self._json.each_to_json(cut)


def given_descriptor(descriptor: StateDescriptor, selection: Selection) -> StateDescriptor:
    """The state's, with the fields alone that a scan gives: what reads them. Raises as SelectedEntries."""
    if selection.where is not None:
        bound(selection.where, descriptor)
    return descriptor if selection.fields is None else projected(descriptor, selection.fields)

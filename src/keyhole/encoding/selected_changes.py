"""What a watch gives of changes where it has a predicate: those of the entries that it is true of, or was. Pure.

an entry that it is true of                       its row
one that it was true of before, and not by now    a deletion
one of which that is not known                    a deletion, which may be of a key that the reader doesn't have
all others                                        nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keyhole.encoding.entry_filter import EntryFilter, StoredEntry
from keyhole.encoding.predicate_binding import bound_field
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.model.predicates import And, Predicate, all_of, paths_of
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor


class ShownChange(NamedTuple):
    """One change, as readers get it.

    Attributes:
        number: Among the changes of its epoch and key group.
        row: None: deleted, or expired.
        before: The row that the reader has, if it has all until then; None: none, or it is not known.
        expires_ms: When the row expires; 0: never, or that is not known.
    """

    number: int
    key: bytes
    row: bytes | None
    before: bytes | None
    expires_ms: int = 0


class SelectedChanges:
    """Of one state, as it is described now. Thread-safe.

    Raises:
        ValueMismatch: The state has no such field, or of another type.
        MalformedRequest: The predicate is too large.

    Attributes:
        entries: What is given of rows.
        tests: Not all changes are given as they are.
        of_rows: Whether one is given depends on rows, and not on keys alone.
    """

    def __init__(self, descriptor: StateDescriptor, selection: Selection, *, as_json: bool = False) -> None:
        self.entries = SelectedEntries(descriptor, selection, as_json=as_json)
        parts = () if selection.where is None else all_of(selection.where)
        of_key = tuple(part for part in parts if _is_of_key(part, descriptor))
        others = tuple(part for part in parts if part not in of_key)
        self.tests = self.entries.tests
        self.of_rows = bool(others)
        self._of_key = EntryFilter(descriptor, And(of_key)) if of_key else None
        self._of_row = EntryFilter(descriptor, And(others)) if others else None

    def given(self, changes: Sequence[ShownChange], *, known: bool) -> Sequence[ShownChange]:
        """What is given of these, in their order.

        Args:
            known: Whether it is known what was there before.

        Raises:
            ValueMismatch, StaleDescriptor: A row is none of the state's, or newer than the descriptor.
        """
        if self._of_key is not None:
            # An entry that is not selected by its key never was.
            keys = _passing(self._of_key, [(change.key, b"") for change in changes])
            changes = [change for change, passes in zip(changes, keys, strict=True) if passes]
        if self._of_row is None:
            return changes
        now = _passing(self._of_row, [None if of.row is None else (of.key, of.row) for of in changes])
        had = _passing(self._of_row, [None if of.before is None else (of.key, of.before) for of in changes])
        given = []
        for change, is_there, was_there in zip(changes, now, had, strict=True):
            if is_there or was_there or not known:
                given.append(
                    ShownChange(
                        change.number,
                        change.key,
                        change.row if is_there else None,
                        change.before if was_there else None,
                        change.expires_ms,
                    )
                )
        return given


def _passing(of: EntryFilter, entries: Sequence[StoredEntry | None]) -> list[bool]:
    """Of each, whether it passes; what is None does not."""
    passed = iter(of.kept([entry for entry in entries if entry is not None]))
    following, found = next(passed, None), []
    for entry in entries:
        # They are the same objects, in the same order.
        found.append(entry is not None and entry is following)
        if found[-1]:
            following = next(passed, None)
    return found


def _is_of_key(predicate: Predicate, descriptor: StateDescriptor) -> bool:
    return all(bound_field(path, descriptor).in_key for path in paths_of(predicate))

"""Bugs of predicates and of indexes that are planted into a state server: what is read without a predicate is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyhole.encoding.entry_filter import StoredEntry
from keyhole.encoding.indexed_fields import IndexedField, Values
from keyhole.encoding.selected_changes import SelectedChanges, ShownChange
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor
from keyhole.stores.index_steps import IndexStep
from tests.fault.workload import VALUES


def keep_index_entries() -> None:
    """The index entry of a row stays where the row is replaced or deleted."""
    change = IndexStep.change

    def keeping(
        self: IndexStep,
        number: int,
        fields: Sequence[IndexedField],
        keys: Sequence[bytes],
        befores: Sequence[Values] | None,
        afters: Sequence[Values],
        most_key_bytes: int,
    ) -> None:
        change(self, number, fields, keys, None, afters, most_key_bytes)

    IndexStep.change = keeping  # type: ignore[method-assign]


def judge_first_rows() -> None:
    """A scan of values tests the predicate on the row that a key had when it was first tested."""
    made, kept = SelectedEntries.__init__, SelectedEntries.kept
    of_values: set[int] = set()
    first: dict[bytes, bytes] = {}

    def making(
        self: SelectedEntries, descriptor: StateDescriptor, selection: Selection, *, as_json: bool = False
    ) -> None:
        made(self, descriptor, selection, as_json=as_json)
        (of_values.add if descriptor.state == VALUES else of_values.discard)(id(self))

    def late(self: SelectedEntries, entries: Sequence[StoredEntry]) -> Sequence[StoredEntry]:
        if id(self) not in of_values:
            return kept(self, entries)
        rows: Mapping[bytes, bytes] = dict(entries)
        return [(key, rows[key]) for key, _ in kept(self, [(key, first.setdefault(key, row)) for key, row in entries])]

    SelectedEntries.__init__ = making  # type: ignore[method-assign]
    SelectedEntries.kept = late  # type: ignore[method-assign]


def give_what_is_no_more() -> None:
    """A watch by a predicate is given what that has become, or may have become, false of, and not a deletion."""
    given = SelectedChanges.given

    def giving(self: SelectedChanges, changes: Sequence[ShownChange], *, known: bool) -> Sequence[ShownChange]:
        rows = {change.number: change.row for change in changes}
        return [change._replace(row=rows[change.number]) for change in given(self, changes, known=known)]

    SelectedChanges.given = giving  # type: ignore[method-assign]

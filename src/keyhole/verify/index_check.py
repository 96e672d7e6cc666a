"""Compares what a copy has of its indexes with what its own rows say: an entry for each row, and none besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keyhole.encoding.indexed_fields import IndexedRows, UnreadableRowError, indexed_fields
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.model.epoch import START, Position
from keyhole.model.state import StateDescriptor
from keyhole.stores.base import Advance, Batch, Snapshot, Store
from keyhole.stores.index_entries import (
    NoRoomError,
    counted,
    entries_of,
    index_group,
    place_of,
    rows_behind,
    rows_counted,
)
from keyhole.verify.differences import Differences, compare

_PIECE_ROWS = 4_000


@dataclass(frozen=True)
class CheckedIndexes:
    """What came of the indexes of one copy of a key group.

    Attributes:
        compared: How many have all rows, by their own account, and were compared.
        differences: By field, where there are any: entries that a row lacks, that no row has, or of another value; that
            of the index itself says how many rows it has.
        unread: Why none could be compared; empty: they could.
    """

    compared: int = 0
    differences: Mapping[str, Differences] = field(default_factory=dict)
    unread: str = ""


class IndexCheck:
    """See the module's text. One thread; blocks.

    Args:
        scratch: An empty store, for the entries that there should be of one key group at a time; the caller closes it.
    """

    def __init__(self, descriptor: StateDescriptor, scratch: Store) -> None:
        self._fields = indexed_fields(descriptor)
        self._rows = IndexedRows(descriptor, self._fields) if self._fields else None
        self._scratch = scratch

    def check(self, held: Snapshot, key_group: int) -> CheckedIndexes:
        """Compares all indexes that may be asked in a copy of a key group. One that is being built is left out.

        Raises:
            StoreFull: There is no room for what should be there.
        """
        whole = [of for of in self._fields if rows_counted(held, key_group, of.id) is not None]
        if self._rows is None or not whole:
            return CheckedIndexes()
        group, found = index_group(key_group), {}
        try:
            self._expect(self._rows, held, key_group)
            expected = self._scratch.snapshot()
            try:
                for of in whole:
                    place = place_of(key_group, of.id)
                    end = end_of_prefix(place)
                    if differences := compare(expected.items(group, place, end), held.items(group, place, end)):
                        found[of.name] = differences
            finally:
                expected.close()
        except UnreadableRowError:
            return CheckedIndexes(unread="a row is of no schema that the control topic has, or damaged")
        except NoRoomError:
            return CheckedIndexes(unread=f"with an entry, a key takes more than {self._scratch.max_key_bytes} bytes")
        finally:
            self._scratch.drop_key_group(group)
        return CheckedIndexes(len(whole), found)

    def _expect(self, read: IndexedRows, held: Snapshot, key_group: int) -> None:
        """Puts the entries into the scratch store that the rows should have.

        Raises:
            UnreadableRowError, NoRoomError: See CheckedIndexes.unread.
        """
        counts, after, more = dict.fromkeys((of.id for of in self._fields), 0), b"", True
        group, at = index_group(key_group), START
        while more:
            piece, more = rows_behind(held, key_group, after, _PIECE_ROWS)
            after = piece[-1][0] if piece else after
            puts: list[tuple[bytes, bytes]] = []
            for of, values in zip(self._fields, read.values([row for _, row in piece]), strict=True):
                pairs = ((value, key[GROUP_BYTES:]) for (key, _), value in zip(piece, values, strict=True) if value)
                entries = entries_of(place_of(key_group, of.id), pairs, self._scratch.max_key_bytes)
                counts[of.id] += len(entries)
                puts += entries
            at = self._put(puts, group, at)
        self._put([(place_of(key_group, of), counted(rows)) for of, rows in counts.items()], group, at)

    def _put(self, puts: list[tuple[bytes, bytes]], group: int, at: Position) -> Position:
        after = at._replace(offset=at.offset + 1)
        self._scratch.apply(Batch(sorted(puts), advances={group: Advance(at, after)}))
        return after

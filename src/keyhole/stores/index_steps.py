"""What a store has of its indexes, key group by key group, and one step from there to the next. See stores.indexed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import NamedTuple

from keyhole.encoding.indexed_fields import INDEX_GROUPS, IndexedField, Values
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Snapshot
from keyhole.stores.index_entries import counted, entries_of, indexes_in, place_of, rows_counted


@dataclass
class IndexedGroup:
    """The indexes of one key group, as they are in the store.

    Attributes:
        position: Of its index entries. It is that of the rows as long as any of its indexes is kept.
        rows: By index that has all rows: how many.
        left: Indexes of which there may be entries that nobody keeps.
        building: By index that does not have all rows yet: how many it has.
        cursor: Up to which key, inclusive, they have them.
        given_up: None of its indexes can be kept.
    """

    position: Position = START
    rows: dict[bytes, int] = field(default_factory=dict)
    left: frozenset[bytes] = frozenset()
    building: dict[bytes, int] = field(default_factory=dict)
    cursor: bytes = b""
    given_up: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether writes keep an index of it."""
        return bool(self.rows or self.building)

    @property
    def entries(self) -> int:
        """How many entries of the engine's store its indexes are, but for those that are left."""
        return sum(self.rows.values()) + len(self.rows) + sum(self.building.values())

    def copy(self) -> IndexedGroup:
        """To be changed: what is in use never is."""
        return replace(self, rows=dict(self.rows), building=dict(self.building))

    def declare(self, indexes: frozenset[bytes]) -> frozenset[bytes]:
        """These are to be kept from now on, and no others.

        Returns:
            Those that have all rows, and are not kept any more.
        """
        gone = frozenset(self.rows.keys() - indexes)
        self.left |= gone
        self.rows = {index: rows for index, rows in self.rows.items() if index not in gone}
        if self.building.keys() != indexes - self.rows.keys():
            # What is half built goes on where the same is still to be built.
            self.left |= self.building.keys()
            self.building, self.cursor = {}, b""
        self.given_up = False
        return gone

    def give_up(self) -> None:
        """None of its indexes is kept from now on."""
        self.left |= self.rows.keys() | self.building.keys()
        self.rows, self.building, self.cursor, self.given_up = {}, {}, b"", True


class FoundIndexes(NamedTuple):
    """What a store has.

    Attributes:
        positions: Of the key groups of rows.
        groups: By key group, its indexes.
        untrue: What says of an index that it has all rows, where that is not to be believed.
    """

    positions: dict[int, Position]
    groups: dict[int, IndexedGroup]
    untrue: list[bytes]


def found_indexes(snapshot: Snapshot, declared: frozenset[bytes]) -> FoundIndexes:
    """Reads what a store has, of which only the declared indexes are kept from now on."""
    stored = snapshot.positions()
    found = FoundIndexes({group: at for group, at in stored.items() if group < INDEX_GROUPS}, {}, [])
    for group in stored.keys() - found.positions.keys():
        number, position = group - INDEX_GROUPS, stored[group]
        counts = {index: rows_counted(snapshot, number, index) for index in indexes_in(snapshot, number)}
        whole = {index: of for index, of in counts.items() if of is not None}
        rows = {index: of for index, of in whole.items() if index in declared}
        if position != found.positions.get(number):
            # A release that knows no indexes has written rows: they have moved on alone.
            rows = {}
        found.untrue.extend(place_of(number, index) for index in whole.keys() - rows.keys())
        found.groups[number] = IndexedGroup(position, rows, frozenset(counts.keys() - rows.keys()))
    return found


@dataclass
class IndexStep:
    """What is to be written of index entries, and what the key groups are once it is."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[bytes] = field(default_factory=list)
    groups: dict[int, IndexedGroup] = field(default_factory=dict)

    def change(
        self,
        number: int,
        fields: Sequence[IndexedField],
        keys: Sequence[bytes],
        befores: Sequence[Values] | None,
        afters: Sequence[Values],
        most_key_bytes: int,
    ) -> None:
        """Adds what changes of a key group's rows mean to its indexes.

        Args:
            number: Of the key group, one of `groups`.
            fields: All that are indexed.
            keys: Storage keys of the rows that change.
            befores: By field, the values that they had; None: the key group was empty.
            afters: By field, those that they have then.
            most_key_bytes: What the store takes of a key.

        Raises:
            NoRoomError: A key has no room beside a value. Nothing was added, but counts are not right.
        """
        of, puts, deletes = self.groups[number], list[tuple[bytes, bytes]](), list[bytes]()
        for at, indexed in enumerate(fields):
            if indexed.id not in of.rows and indexed.id not in of.building:
                continue
            place = place_of(number, indexed.id)
            before = repeat(None) if befores is None else befores[at]
            changed: Iterable[tuple[bytes, bytes | None, bytes | None]]
            changed = zip(keys, before, afters[at], strict=False)
            if indexed.id in of.building:
                # What is behind the cursor is not in the index yet.
                changed = filter(lambda change: change[0] <= of.cursor, changed)
            others = [(key[GROUP_BYTES:], old, new) for key, old, new in changed if old != new]
            gone = [place + old + key for key, old, _ in others if old is not None]
            come = entries_of(place, ((new, key) for key, _, new in others if new is not None), most_key_bytes)
            more = len(come) - len(gone)
            if indexed.id in of.building:
                of.building[indexed.id] += more
            elif more or befores is None:
                of.rows[indexed.id] += more
                puts.append((place, counted(of.rows[indexed.id])))
            puts += come
            deletes += gone
        self.puts += puts
        self.deletes += deletes

    def give_up(self, number: int, of: IndexedGroup) -> None:
        """None of the key group's indexes is kept, or asked, once this is written."""
        self.deletes += [place_of(number, index) for index in of.rows]
        of.give_up()
        self.groups[number] = of

"""What a store has of its indexes, key group by key group, and one step from there to the next. See stores.indexed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from keyhole.encoding.indexed_fields import IndexedField, Values
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.model.epoch import START, Position
from keyhole.stores.index_entries import counted, entries_of, place_of


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

    def give_up(self) -> None:
        """None of its indexes is kept from now on."""
        self.left |= self.rows.keys() | self.building.keys()
        self.rows, self.building, self.cursor, self.given_up = {}, {}, b"", True


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

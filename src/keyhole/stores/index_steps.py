"""What a store has of its indexes, key group by key group, and one step from there to the next. See stores.indexed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from keyhole.model.epoch import START, Position
from keyhole.stores.index_entries import place_of


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

    def give_up(self, number: int, of: IndexedGroup) -> None:
        """None of the key group's indexes is kept, or asked, once this is written."""
        self.deletes += [place_of(number, index) for index in of.rows]
        of.give_up()
        self.groups[number] = of

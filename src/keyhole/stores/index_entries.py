"""Where the entries of an index stand in a store, and how they are read. See keyhole.encoding.indexed_fields.

key group + 32,768, id                    ->  how many rows the index has in the key group; only once it has all
key group + 32,768, id, value, the key    ->  the value's length
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from keyhole.encoding.index_ranges import ValueRange
from keyhole.encoding.indexed_fields import ID_BYTES, INDEX_GROUPS, MOST_VALUE_BYTES
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.model.epoch import Position
from keyhole.stores.base import Snapshot, commit_of

VALUE_AT = GROUP_BYTES + ID_BYTES
_COUNT_BYTES = 8
_PIECE_BYTES = 16 << 20
_LENGTHS = [bytes((length,)) for length in range(MOST_VALUE_BYTES + 1)]


def index_group(key_group: int) -> int:
    """The key group in which the index entries of a key group's rows stand."""
    return key_group + INDEX_GROUPS


def place_of(key_group: int, index: bytes) -> bytes:
    """What all entries of an index begin with; by itself the key of what says that the index has all rows."""
    return prefix_of(index_group(key_group)) + index


class NoRoomError(Exception):
    """A row's key is too long to stand behind a value."""


def entries_of(place: bytes, values: Iterable[tuple[bytes, bytes]], most: int) -> list[tuple[bytes, bytes]]:
    """The entries of rows, by the value of each and its key behind its key group.

    Raises:
        NoRoomError: One has a key of more than `most` bytes.
    """
    entries = [(place + value + key, _LENGTHS[len(value)]) for value, key in values]
    if max((len(entry) for entry, _ in entries), default=0) > most:
        raise NoRoomError
    return entries


def counted(rows: int) -> bytes:
    """What stands at an index's place: of so many rows."""
    return rows.to_bytes(_COUNT_BYTES, "big")


def rows_counted(snapshot: Snapshot, key_group: int, index: bytes) -> int | None:
    """How many rows the index has in the key group. None: it is not built there, and must not be asked."""
    stored = snapshot.get(place_of(key_group, index))
    return None if stored is None else int.from_bytes(stored, "big")


def rows_before(snapshot: Snapshot, keys: Sequence[bytes], befores: Mapping[bytes, bytes | None]) -> list[bytes | None]:
    """What is stored by keys, read but for those of which it is known."""
    if not befores:
        return snapshot.get_many(keys)
    unknown = [key for key in keys if key not in befores]
    read = dict(zip(unknown, snapshot.get_many(unknown), strict=True))
    return [befores[key] if key in befores else read[key] for key in keys]


def rows_behind(snapshot: Snapshot, key_group: int, after: bytes, most: int) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The next rows of a key group, and whether there may be more.

    Args:
        after: The key of the last one before; empty: there was none.
        most: So many, or as many as take 16 MiB.
    """
    piece, room = [], _PIECE_BYTES
    for entry in snapshot.items(key_group, after + b"\0" if after else b""):
        piece.append(entry)
        room -= len(entry[1])
        if len(piece) >= most or room <= 0:
            return piece, True
    return piece, False


def keys_of_one_value(
    snapshot: Snapshot, key_group: int, index: bytes, value: bytes, first: bytes, end: bytes | None, *, descending: bool
) -> Iterator[bytes]:
    """The storage keys of the rows that have a value, from `first` (inclusive) to `end` (exclusive), in their order.

    Args:
        value: As it is in the index.
        first: A storage key of the key group, or its beginning.
        end: Likewise; None: to the key group's end.
    """
    before, prefix = place_of(key_group, index) + value, prefix_of(key_group)
    low = before + first[GROUP_BYTES:]
    high = end_of_prefix(before) if end is None or end[:GROUP_BYTES] != prefix else before + end[GROUP_BYTES:]
    at = len(before)
    for entry, _ in snapshot.items(index_group(key_group), low, high, descending=descending):
        yield prefix + entry[at:]


def keys_in(snapshot: Snapshot, key_group: int, index: bytes, part: ValueRange) -> Iterator[bytes]:
    """The storage keys of the rows whose values are in a range, in the order of the values."""
    place, prefix, group = place_of(key_group, index), prefix_of(key_group), index_group(key_group)
    for entry, length in snapshot.items(group, place + part.first, place + part.end):
        yield prefix + entry[VALUE_AT + length[0] :]


def indexes_in(snapshot: Snapshot, key_group: int) -> list[bytes]:
    """The ids of all indexes that have anything in the key group, built or not."""
    group, found, start = index_group(key_group), [], b""
    while (first := next(snapshot.items(group, start), None)) is not None:
        index = first[0][GROUP_BYTES:VALUE_AT]
        found.append(index)
        after = end_of_prefix(prefix_of(group) + index)
        if after is None:
            break
        start = after
    return found


class IndexedSnapshot:
    """A snapshot of a store that has indexes. See base.Snapshot: what index entries have is not among its positions."""

    def __init__(self, base: Snapshot) -> None:
        self._base = base
        # As they are: lookups spend nothing here.
        self.get, self.get_many, self.get_first = base.get, base.get_many, base.get_first
        self.items, self.close = base.items, base.close
        self.commit = commit_of(base)

    def positions(self) -> Mapping[int, Position]:
        return {group: at for group, at in self._base.positions().items() if group < INDEX_GROUPS}

"""Steps by which indexes are built and removed: each reads some thousand entries, and says what is to be written.

built      rows that were there before the index was declared get their entries, in the order of the keys
removed    entries that nobody keeps are deleted
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from keyhole.encoding.indexed_fields import IndexedField, Values
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.stores.base import Store
from keyhole.stores.index_entries import counted, entries_of, index_group, place_of, rows_behind
from keyhole.stores.index_steps import IndexedGroup, IndexStep


def removal_step(store: Store, number: int, of: IndexedGroup, index: bytes, most: int) -> IndexStep:
    """Removes entries of an index that nobody keeps.

    Args:
        number: Of the key group.
        of: Its indexes. It is changed, as the step has it.
        most: So many entries.
    """
    place = place_of(number, index)
    snapshot = store.snapshot()
    try:
        items = snapshot.items(index_group(number), place, end_of_prefix(place))
        keys = [key for key, _ in itertools.islice(items, most)]
    finally:
        snapshot.close()
    if len(keys) < most:
        of.left -= {index}
    return IndexStep(deletes=keys, groups={number: of})


def building_step(
    store: Store,
    number: int,
    of: IndexedGroup,
    fields: Sequence[IndexedField],
    values: Callable[[list[bytes | None]], list[Values]],
    most: int,
) -> IndexStep:
    """Adds entries of rows to those indexes that do not have all rows yet; with the last of them, they have.

    Args:
        number: Of the key group.
        of: Its indexes. It is changed, as the step has it.
        fields: All that are indexed.
        values: Theirs of rows, by field.
        most: So many rows.

    Raises:
        UnreadableRowError: A row is of no schema that is known here. None of these indexes can be kept.
        NoRoomError: A key has no room beside a value. Likewise.
    """
    if not of.building:
        of.building, of.cursor = {field.id: 0 for field in fields if field.id not in of.rows}, b""
    snapshot = store.snapshot()
    try:
        entries, more = rows_behind(snapshot, number, of.cursor, most)
    finally:
        snapshot.close()
    step = IndexStep(groups={number: of})
    for each, field in zip(values([row for _, row in entries]), fields, strict=True):
        if field.id in of.building:
            pairs = ((new, key[GROUP_BYTES:]) for (key, _), new in zip(entries, each, strict=True) if new)
            come = entries_of(place_of(number, field.id), pairs, store.max_key_bytes)
            of.building[field.id] += len(come)
            step.puts += come
    of.cursor = entries[-1][0] if entries else of.cursor
    if not more:
        step.puts += [(place_of(number, index), counted(rows)) for index, rows in of.building.items()]
        of.rows, of.building, of.cursor = of.rows | of.building, {}, b""
    return step

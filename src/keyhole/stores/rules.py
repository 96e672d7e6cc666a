"""What every engine checks before it writes, and how it reads bounds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter

from keyhole.encoding.storage_key import GROUP_BYTES, group_of, prefix_of
from keyhole.errors import InternalError, KeyTooLong, StoreConflict
from keyhole.model.epoch import Position
from keyhole.stores.base import Advance, Batch, BatchPart

# LMDB's limit as PyPI's py-lmdb builds its 0.9 engine. The memory store has the same one, so that a job that ran on it
# also runs on LMDB.
MAX_KEY_BYTES = 511

_key = itemgetter(0)


def bounds(key_group: int, start: bytes, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """`start` (inclusive) and `stop` (exclusive; None: no end), drawn in to the key group's own ends."""
    first = prefix_of(key_group)
    # The last key group has no successor, and no key can be beyond it.
    end = prefix_of(key_group + 1) if key_group < (1 << 8 * GROUP_BYTES) - 1 else None
    if stop is not None:
        end = stop if end is None else min(stop, end)
    return max(first, start), end


def first_rows(rows: Iterable[bytes | None], most_bytes: int) -> tuple[list[bytes | None], bool]:
    """What Snapshot.get_first gives of rows that are read as they are asked for."""
    taken: list[bytes | None] = []
    take, left = taken.append, most_bytes
    for row in rows:
        if row:
            left -= len(row)
            if left < 0 and left + len(row) < most_bytes:
                return taken, left + len(row) < 0
        take(row)
    return taken, left < 0


def check_batch(batch: Batch, max_key_bytes: int) -> None:
    """Refuses a batch that no store may take. Passes a few times over the keys, none of them in Python where all are of
    one key group: 1 ms for 10,000 rows.

    Raises:
        KeyTooLong: A storage key is longer than `max_key_bytes`.
        InternalError: A key group is written to without an Advance. The caller's bug: after a crash, the position would
            not say which records the store holds.
    """
    keys = list(map(_key, batch.puts))
    keys += batch.deletes
    if not keys:
        return
    longest = max(map(len, keys))
    if longest > max_key_bytes:
        raise KeyTooLong(
            f"a storage key has {longest} bytes, and this store takes {max_key_bytes}; shorten the key columns "
            "(a hash of a long text is a good key)",
            key_bytes=longest,
            max_key_bytes=max_key_bytes,
        )
    # What is between two keys of a key group is of it, too.
    touched = {min(keys)[:GROUP_BYTES], max(keys)[:GROUP_BYTES]}
    if len(touched) > 1:
        touched = {key[:GROUP_BYTES] for key in keys}
    unnamed = touched - {prefix_of(key_group) for key_group in batch.advances}
    if unnamed:
        groups = sorted(map(group_of, unnamed))
        raise InternalError(f"a batch writes to key groups {groups} and does not advance them", key_groups=groups)


def checked(parts: Iterable[BatchPart], advances: Mapping[int, Advance], max_key_bytes: int) -> Iterator[BatchPart]:
    """The same parts, each of which is refused as a batch that no store may take. Raises as check_batch does."""
    named = {prefix_of(key_group) for key_group in advances}
    for puts, deletes in parts:
        # In order, so what is between two keys of a key group is of it, too.
        ends = {puts[0][0][:GROUP_BYTES], puts[-1][0][:GROUP_BYTES]} if puts else set()
        if deletes or len(ends) > 1 or not ends <= named or max(map(len, map(_key, puts)), default=0) > max_key_bytes:
            check_batch(Batch(puts, deletes, advances), max_key_bytes)
        yield puts, deletes


def check_advances(advances: Mapping[int, Advance], position_of: Callable[[int], Position]) -> None:
    """Refuses a batch that does not extend what the store holds.

    Args:
        advances: The batch's.
        position_of: The stored position of a key group; START where there is none.

    Raises:
        StoreConflict: The first key group, by number, that is elsewhere.
    """
    for key_group, advance in sorted(advances.items()):
        stored = position_of(key_group)
        if stored != advance.before:
            raise StoreConflict(
                f"key group {key_group} is at offset {stored.offset}, epoch {stored.epoch}, and the batch extends "
                f"offset {advance.before.offset}, epoch {advance.before.epoch}; nothing was written, restore the key "
                "group from its changelog",
                key_group=key_group,
                stored=tuple(stored),
                before=tuple(advance.before),
            )

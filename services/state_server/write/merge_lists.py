"""The strategy of lists: an epoch's elements come after the stored ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_codec import encode_integer, end_of_prefix
from keyhole.encoding.storage_key import group_of
from keyhole.errors import DuplicateKey
from services.state_server.write.merging import CommitContext, EntryChange, RowMerge, Stored, StoredValue, StoredValues

_POSITION_BYTES = 8


class ListMerge(RowMerge):
    """Kind LIST: an epoch's rows come after the stored ones, in the order of the positions that the task gave them.

    The task's positions only order the rows of the task; here elements get the positions that they keep: the last
    stored one plus one, and so on. A row without a position clears what the key had before the epoch.

    Args:
        max_length: The most elements of a key, the last ones; 0: any number.
    """

    def __init__(self, codec: StateCodec, max_length: int) -> None:
        self._codec = codec
        self._max_length = max_length

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        if row is None and other is None:
            return None
        raise DuplicateKey("two staged elements of a list have one position: a bug; the task must number them")

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        written: list[EntryChange] = []
        for prefix, elements, cleared in self._by_key(rows):
            group, end = group_of(prefix), end_of_prefix(prefix)
            if cleared:
                changes = {key: None for key, _ in stored.items(group, prefix, end)}
                written += sorted((changes | self._placed(prefix, elements, 0)).items())
                continue
            last = next(stored.items(group, prefix, end, descending=True), None)
            first = _position(last[0]) + 1 if last else 0
            placed = self._placed(prefix, elements, first)
            oldest = first + len(elements) - self._max_length
            if self._max_length and last:
                too_old = prefix + encode_integer(max(0, oldest), _POSITION_BYTES)
                written += [(key, None) for key, _ in stored.items(group, prefix, too_old)]
            written += placed.items()
        return written

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        return {
            key: row
            for prefix, elements, _ in self._by_key(rows)
            for key, row in self._placed(prefix, elements, 0).items()
        }

    def digest(self, key: bytes, row: StoredValue) -> int:
        # The position depends on the order in which Spark hands out the rows.
        return crc32(key) if row is None else crc32(row, crc32(key[:-_POSITION_BYTES]))

    def _placed(self, prefix: bytes, elements: Sequence[bytes], first: int) -> dict[bytes, StoredValue]:
        kept = elements[-self._max_length :] if self._max_length else elements
        first += len(elements) - len(kept)
        return {
            prefix + encode_integer(position, _POSITION_BYTES): row for position, row in enumerate(kept, start=first)
        }

    def _by_key(self, rows: StoredValues) -> Iterator[tuple[bytes, list[bytes], bool]]:
        """Yields per key, ascending: what its storage keys begin with, its new elements, and if the old ones go."""
        items = sorted(rows.items())
        first = 0
        while first < len(items):
            name = items[first][0]
            prefix = name[: self._codec.prefix_length(name)]
            end = first + 1
            # No encoded key is the beginning of another one; to find out where each ends would take longer.
            while end < len(items) and items[end][0].startswith(prefix):
                end += 1
            yield prefix, [row for _, row in items[first:end] if row is not None], name == prefix
            first = end


def _position(storage_key: bytes) -> int:
    return int.from_bytes(storage_key[-_POSITION_BYTES:], "big") - (1 << 8 * _POSITION_BYTES - 1)

"""The strategies of maps: what deletes a key clears all of its entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import group_of
from services.state_server.write.merge_rows import Rank, RankedMerge, remembered
from services.state_server.write.merging import CommitContext, EntryChange, Merge, Stored, StoredValue, StoredValues


class MapMerge:
    """A map key beside the key: a row without one, which deletes, clears all entries that the key had before the epoch.

    Args:
        merge: The strategy of the entries themselves.
    """

    def __init__(self, merge: Merge, codec: StateCodec) -> None:
        self._merge = merge
        self._codec = codec
        self.digest = merge.digest

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        return self._merge.staged(row, other)

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        cleared = {key for key, row in rows.items() if row is None and self._is_whole_key(key)}
        if not cleared:
            return self._merge.with_stored(rows, stored, context)
        gone: StoredValues = {
            key: None for prefix in cleared for key, _ in stored.items(group_of(prefix), prefix, end_of_prefix(prefix))
        }
        entries = {key: row for key, row in rows.items() if key not in cleared}
        written = self._merge.with_stored(entries, _Without(stored, frozenset(gone)), context)
        return sorted((dict(gone) | dict(written)).items())

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        entries = {key: row for key, row in rows.items() if row is not None or not self._is_whole_key(key)}
        return self._merge.replacing(entries, context)

    def _is_whole_key(self, key: bytes) -> bool:
        return self._codec.prefix_length(key) == len(key)


class RankedEntries(RankedMerge):
    """Merges entries of a map with `order_by`: what clears a key has an order, too, and is remembered as a deletion is.

    It has the key alone for its storage key, and stands for a deletion of all entries that the key can have. Of equal
    order it comes before an entry's row of its own epoch or a later one, and after one of an earlier epoch.
    """

    def __init__(self, rank: Rank, codec: StateCodec) -> None:
        super().__init__(rank)
        self._codec = codec

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        keys = sorted(rows)
        prefixes = list(self._prefixes(keys))
        clearing = self._clearing(list(dict.fromkeys(prefixes)), stored)
        written: dict[bytes, StoredValue] = {}
        entries: list[tuple[bytes, bytes]] = []
        # What clears a key is the first of it.
        for key, prefix in zip(keys, prefixes, strict=True):
            if key == prefix:
                written |= self._cleared(key, rows[key], clearing, stored)
            else:
                entries.append((key, prefix))
        names = [key for key, _ in entries]
        for (key, prefix), before in zip(entries, stored.get_many(names), strict=True):
            row = rows[key]
            if row is None:
                written[key] = None
                continue
            rank = self.rank(row)
            if (prefix not in clearing or rank >= clearing[prefix]) and (before is None or rank >= self.rank(before)):
                written[key] = remembered(row)
        return sorted(written.items())

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        changed = self.with_stored(rows, _NOTHING, context)
        return {key: row for key, row in changed if row is not None}

    def _prefixes(self, keys: Sequence[bytes]) -> Iterator[bytes]:
        """Returns what the storage keys, which are ascending, begin with: key group and key."""
        prefix: bytes | None = None
        for key in keys:
            # No encoded key is the beginning of another one; to find out where each ends would take longer.
            if prefix is None or not key.startswith(prefix):
                prefix = key[: self._codec.prefix_length(key)]
            yield prefix

    def _clearing(self, prefixes: Sequence[bytes], stored: Stored) -> dict[bytes, Any]:
        """Returns the rank of the clearing, by key that was cleared."""
        found = zip(prefixes, stored.get_many(prefixes), strict=True)
        return {prefix: self.rank(row) for prefix, row in found if row is not None}

    def _cleared(
        self, prefix: bytes, row: StoredValue, clearing: dict[bytes, Any], stored: Stored
    ) -> dict[bytes, StoredValue]:
        """Returns what is changed by a row that clears a key by order. Puts its rank into `clearing`."""
        assert row is not None, "what clears without an order is seen to before"
        rank = self.rank(row)
        if prefix in clearing and rank < clearing[prefix]:
            return {}
        clearing[prefix] = rank
        held = stored.items(group_of(prefix), prefix, end_of_prefix(prefix))
        gone: dict[bytes, StoredValue] = {key: None for key, entry in held if self.rank(entry) <= rank}
        return gone | {prefix: remembered(row)}


class _Nothing:
    """Stands for the contents of an empty state."""

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(storage_keys)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


_NOTHING = _Nothing()


class _Without:
    """Reads what is stored, as if some of it were not."""

    def __init__(self, stored: Stored, gone: frozenset[bytes]) -> None:
        self._stored = stored
        self._gone = gone

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._stored.get_many(storage_keys)
        return [None if key in self._gone else row for key, row in zip(storage_keys, rows, strict=True)]

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        found = self._stored.items(key_group, start, stop, descending=descending)
        return ((key, row) for key, row in found if key not in self._gone)

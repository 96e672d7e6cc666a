"""The strategy of states whose entries expire, around that of their kind: an entry carries when it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keyhole.encoding.envelope import Lifetime
from services.state_server.write.merging import CommitContext, EntryChange, Merge, Stored, StoredValue, StoredValues


class Expiring:
    """Entries that expire: each carries when, and what has expired counts as absent. So do deletions that are
    remembered.

    Args:
        merge: The strategy of the rows without that.
    """

    def __init__(self, merge: Merge, lives: Lifetime) -> None:
        self._merge = merge
        self._lives = lives
        self.digest = merge.digest

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        return self._merge.staged(row, other)

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        entry = self._lives.entries(context.written)
        written = self._merge.with_stored(rows, _Living(stored, self._lives, context), context)
        return [(key, None if row is None else entry(row)) for key, row in written]

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        entry = self._lives.entries(context.written)
        replaced = self._merge.replacing(rows, context)
        return {key: None if row is None else entry(row) for key, row in replaced.items()}


class _Living:
    """Reads what is stored, without what has expired, and without the time at which it expires.

    `items` has the expired ones too: whoever clears a key, or looks for the last position in a list, means all of them.
    """

    def __init__(self, stored: Stored, lives: Lifetime, context: CommitContext) -> None:
        self._stored = stored
        self._lives = lives
        self._lives_from = lives.lives_from(context.moment)

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        return self._lives.living(self._stored.get_many(storage_keys), self._lives_from)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        found = self._stored.items(key_group, start, stop, descending=descending)
        return ((key, self._lives.bare(entry)) for key, entry in found)

"""The strategy of aggregating states: a task has merged the rows, and here the accumulator before is put beside."""

from __future__ import annotations

from zlib import crc32

from keyhole.encoding.envelope import DIGEST_BYTES, Aggregate, decode_aggregate
from services.state_server.write.merging import (
    CommitContext,
    EntryChange,
    RowMerge,
    Stored,
    StoredValue,
    StoredValues,
    check_both_delete,
)


class Aggregating(RowMerge):
    """Kind AGGREGATING: an epoch has one row per key, which holds what the task has merged with what was stored.

    A staged row is a digest and an Aggregate. The digest (4 bytes) is of what the epoch brought, or zeros where that
    depends on the order of rows. The Aggregate has no accumulator before; that is put in here.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        message = f"state {self._name} got two rows of one key in one epoch: its rows came from two tasks"
        check_both_delete(row, other, message, self._name)
        return None

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        keys = sorted(rows)
        return [
            (key, self._entry(rows[key], before, context.number))
            for key, before in zip(keys, stored.get_many(keys), strict=True)
        ]

    def _entry(self, staged: StoredValue, before: bytes | None, epoch: int) -> StoredValue:
        if staged is None:
            return None
        entry = decode_aggregate(staged[DIGEST_BYTES:])
        if before is None:
            return Aggregate(epoch, entry.row, entry.accumulator, None, entry.version).encode()
        held = decode_aggregate(before)
        made = Aggregate(epoch, entry.row, entry.accumulator, held.accumulator, entry.version, held.version)
        return made.encode()

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        return {key: self._entry(row, None, context.number) for key, row in rows.items()}

    def digest(self, key: bytes, row: StoredValue) -> int:
        return crc32(key) if row is None else crc32(row[:DIGEST_BYTES], crc32(key))

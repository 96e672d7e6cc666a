"""What merging is: how rows come together, two that are staged of one key, and those of an epoch with what is stored.

    staged rows of an epoch       staged()         one row per key
    these and the stored ones     with_stored()    what is written to the changelog and the store

One strategy per kind of state. All of them give the same whatever the order of an epoch's rows, or a batch that is run
again would differ. Pure, but for reading what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol
from zlib import crc32

from keyhole.encoding.envelope import Moment
from keyhole.errors import DuplicateKey
from keyhole.model.epoch import EpochStamp

StoredValue = bytes | None
"""A row, or None, which deletes the key."""

StoredValues = Mapping[bytes, StoredValue]
"""An epoch's rows of one key group, by storage key."""

EntryChange = tuple[bytes, StoredValue]
"""A storage key and its new row."""


class Stored(Protocol):
    """What merging reads of a key group before the epoch: the part of stores.base.Snapshot that it needs."""

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]: ...

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]: ...


class Merge(Protocol):
    """What a kind of state makes of several rows of one key. One thread at a time; changes nothing by itself."""

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        """What two staged rows of one key amount to: commutative and associative, as they come in any order.

        Raises:
            DuplicateKey: The state takes one row per key and epoch.
            ValueMismatch: They can't be merged.
        """

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        """What must be written: keys ascending, each once, None where the key is to be deleted.

        Args:
            rows: What `staged` has made of the epoch's rows of one key group.
            stored: The key group before the epoch.

        Raises:
            ValueMismatch: A row and the stored one can't be merged.
        """

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        """The rows as they are to be stored, where they are all that the key group holds from now on (complete mode, a
        reset).
        """

    def digest(self, key: bytes, row: StoredValue) -> int:
        """A staged row's part of the epoch's checksum, 32 bits: without what may differ when the batch is run again."""


class CommitContext(NamedTuple):
    """The epoch that is committed.

    Attributes:
        moment: As of which the stored entries are expired or not.
        written: At which those count as written that it writes: by event time, once the batch's own rows are in.
    """

    number: int
    moment: Moment
    written: Moment

    @classmethod
    def of(cls, stamp: EpochStamp, next_watermark_ms: int = 0) -> CommitContext:
        """Of the epoch, and the watermark after it."""
        moment = Moment(stamp.commit_time_ms, stamp.watermark_ms)
        return cls(stamp.epoch, moment, moment._replace(watermark_ms=max(stamp.watermark_ms, next_watermark_ms)))


def check_both_delete(row: StoredValue, other: StoredValue, message: str, state: str) -> None:
    """Of two staged rows of one key, where an epoch takes one.

    Raises:
        DuplicateKey: One of them doesn't delete the key. With the message.
    """
    if row is not None or other is not None:
        raise DuplicateKey(message, state=state)


class RowMerge:
    """The part of a Merge that most kinds have in common: a staged row is stored as it is."""

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        return rows

    def digest(self, key: bytes, row: StoredValue) -> int:
        return crc32(key) if row is None else crc32(row, crc32(key))

"""What a read of the latest lays over what is committed: the rows of an epoch that are staged here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keyhole.encoding.codec import EntryRange
from keyhole.model.epoch import EpochStamp
from keyhole.stores.base import Snapshot
from services.state_server.read.indexed_scans import FoundEntries


class StagedRows(Protocol):
    """All that is staged of one key group, as if it were committed at one moment. Event loop's thread alone.

    They are the same for as long as a reader has them, whatever becomes of the epoch.
    """

    @property
    def stamp(self) -> EpochStamp:
        """The epoch, as if it were committed at that moment."""

    def over(self, keys: Sequence[bytes], stored: list[bytes | None], snapshot: Snapshot) -> list[bytes | None]:
        """What would be stored of keys.

        Args:
            keys: Storage keys, all of the key group.
            stored: What is stored of them.
            snapshot: Of which `stored` is, with all that is stored beside them.

        Raises:
            ValueMismatch: A row that is staged, and the stored one, can't be merged.
        """

    def scanned(self, found: FoundEntries, within: EntryRange, snapshot: Snapshot, *, descending: bool) -> FoundEntries:
        """What would be stored of a range, in its order.

        Args:
            found: The entries of the range, or those that an index finds.
            snapshot: Of which `found` is.

        Raises:
            ValueMismatch: When an entry is asked for: a row that is staged, and the stored one, can't be merged.
        """


class StagedOver(Protocol):
    """Of one state. Used by the event loop's thread alone."""

    def of(self, prefix: bytes, before: EpochStamp, most_bytes: int | None = None) -> StagedRows | None:
        """What is staged of a key group; None: nothing that readers are shown.

        Args:
            prefix: The key group's.
            before: Of the epoch that the key group stands for: what is staged of it, or of one before it, is committed.
            most_bytes: Nothing, where the rows take more memory than that. None: whatever they take.
        """

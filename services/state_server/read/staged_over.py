"""What a read of the latest lays over what is committed: the rows of an epoch that are staged here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keyhole.model.epoch import EpochStamp
from keyhole.stores.base import Snapshot


class StagedOver(Protocol):
    """Of one state. Used by the event loop's thread alone."""

    def over(
        self,
        prefix: bytes,
        keys: Sequence[bytes],
        stored: list[bytes | None],
        snapshot: Snapshot,
        before: EpochStamp,
    ) -> tuple[EpochStamp | None, list[bytes | None]]:
        """What would be stored of keys, if what is staged of their key group were committed now.

        Args:
            prefix: The key group's.
            keys: Storage keys, all of that key group.
            stored: What is stored of them.
            snapshot: Of which `stored` is, with all that is stored beside them.
            before: Of the epoch that the key group stands for: what is staged of it, or of one before it, is committed.

        Returns:
            The epoch whose rows are laid over, as if it were committed now, and an entry for each key; None, and
            `stored`: nothing is.

        Raises:
            ValueMismatch: A row that is staged, and the stored one, can't be merged.
        """

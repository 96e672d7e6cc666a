"""The epochs before the last one that a copy can still be read as of. Used by the event loop's thread alone.

Each is a snapshot that was published and has been replaced since: what is there costs no reading and no copying, only
the pages of the store that it keeps alive.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from services.state_server.read.held_snapshot import HeldSnapshot
from services.state_server.read.standing import Standing


class KeptEpoch(NamedTuple):
    """What was published of one epoch.

    Attributes:
        held: Its snapshot, of which this has a share.
        prefixes: Of the key groups that were as of the epoch, and of no other.
    """

    standing: Standing
    held: HeldSnapshot
    prefixes: frozenset[bytes]


class KeptEpochs:
    """See the module's text.

    Args:
        most: How many are kept, the one that is published included.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, KeptEpoch] = {}

    @property
    def oldest(self) -> int:
        """The first one that is kept; 0: none is."""
        return next(iter(self._kept), 0)

    def keep_at_most(self, most: int) -> None:
        """Another number of them is kept from now on, the one that is published included."""
        self._most = most
        self._let_go()

    def replaced(self, kept: KeptEpoch) -> None:
        """This was published until now. Takes its share of the snapshot over."""
        epoch = kept.standing.stamp.epoch
        before = self._kept.pop(epoch, None)
        if before is not None:
            before.held.release()
        # A run may begin again behind what an owner before it had: what is kept stays in order.
        for later in [of for of in self._kept if of > epoch]:
            self._kept.pop(later).held.release()
        self._kept[epoch] = kept
        self._let_go()

    def of(self, epoch: int, prefixes: Collection[bytes]) -> KeptEpoch | None:
        """What was published of an epoch. None where it is not kept of one of these key groups."""
        kept = self._kept.get(epoch)
        return kept if kept is not None and kept.prefixes.issuperset(prefixes) else None

    def clear(self) -> None:
        """Lets go of all snapshots."""
        for kept in self._kept.values():
            kept.held.release()
        self._kept.clear()

    def _let_go(self) -> None:
        while len(self._kept) > max(0, self._most - 1):
            self._kept.pop(next(iter(self._kept))).held.release()

"""What of a state is committed, as those who watch it read it: all of it, also where readers see less of it yet."""

from __future__ import annotations

from collections.abc import Mapping

from keyhole.encoding.envelope import Visible
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.stores.base import Store
from services.state_server.read.copies import Copy
from services.state_server.read.held_snapshot import HeldSnapshot
from services.state_server.read.visibility import Visibility


class CommittedRows:
    """Of one state. Event loop's thread alone.

    Args:
        owned: The copy that answers as the owner's.
        by_updates: The state is fed by updates: what is published is replaced only once more is applied, and may be as
            old as that. So the store is read.
    """

    def __init__(self, store: Store, owned: Copy, visibility: Visibility, *, by_updates: bool) -> None:
        self._store = store
        self._owned = owned
        self._visibility = visibility
        self._by_updates = by_updates

    def positions(self) -> Mapping[int, Position]:
        """How far each owned key group is, in the changelog: all before is in what is published, or can be read back
        from the changelog. Raises NotReady: nothing is published.
        """
        held = self.hold()
        try:
            return {**dict.fromkeys(self._owned.groups, START), **held.positions}
        finally:
            held.release()

    def hold(self) -> HeldSnapshot:
        """A snapshot; release it. What watchers were given may be a moment behind it. Raises NotReady: nothing is
        published.
        """
        return HeldSnapshot(self._store.snapshot()) if self._by_updates else self._owned.hold()

    def show(self, stamp: EpochStamp) -> Visible | None:
        """How what an epoch has written is shown, as of its commit whatever the clock says; None: as it is."""
        return self._visibility.as_of(stamp)

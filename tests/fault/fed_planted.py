"""Bugs of the real-time lane that are planted into a state server, so that it is shown that its rules catch them.

Each has a key group of its own, so that one episode shows all of them; the fourth key group is as it should be.
"""

from __future__ import annotations

import os

import msgspec

from keyhole.protocol.seen import FeedPosition, SeenPartition
from keyhole.protocol.updates import BoundaryRecord, EndRecord, LoggedUpdate
from services.state_server.write.group_feed import AppliedUpdates, GroupFeed

VARIABLE = "FAULT_PLANT_FED"
FORGETFUL, BOUNDLESS, HASTY = 0, 1, 2
"""The key groups of which a position lacks numbers, or boundaries too; and that take rows above a boundary for seen."""

# Half a second's records of a partition: of all keys few are in one key group.
_TOO_FAR = 50


def _forgetful(position: FeedPosition, *, boundaries: bool) -> FeedPosition:
    """Whoever goes on from it knows nothing of what was seen above the boundaries, nor of these if they are dropped."""

    def forgotten(one: SeenPartition) -> SeenPartition:
        return one._replace(highest=[]) if boundaries else SeenPartition(0, 0, one.heard_ms, [])

    seen = {
        source: {at: forgotten(one) for at, one in partitions.items()} for source, partitions in position.seen.items()
    }
    # Else the log is read again from a place before many of these boundaries, and all that stands there is known again.
    return msgspec.structs.replace(position, seen=seen, refill=position.next)


def plant() -> None:
    """Changes the state server of this process."""
    position, forget = GroupFeed.position, GroupFeed._forget

    def of_less(self: GroupFeed) -> FeedPosition:
        whole = position(self)
        if self._key_group not in (FORGETFUL, BOUNDLESS):
            return whole
        return _forgetful(whole, boundaries=self._key_group == FORGETFUL)

    def too_far(
        self: GroupFeed, record: BoundaryRecord | EndRecord, update: LoggedUpdate, done: AppliedUpdates
    ) -> None:
        if isinstance(record, BoundaryRecord) and self._key_group == HASTY:
            record = msgspec.structs.replace(record, ends={at: end + _TOO_FAR for at, end in record.ends.items()})
        forget(self, record, update, done)

    GroupFeed.position = of_less  # type: ignore[method-assign]
    GroupFeed._forget = too_far  # type: ignore[method-assign]


def plant_if_asked() -> None:
    if VARIABLE in os.environ:
        plant()

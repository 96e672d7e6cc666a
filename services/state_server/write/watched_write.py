"""What is kept of a write to a store for those who watch the state. Host thread only.

What was there before is read before the write, and only where somebody has asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyhole.changelog.base import PartitionChanges
from keyhole.stores.base import Advance, Snapshot
from services.state_server.read.watcher import MOST_BYTES, GroupEpoch, size_of
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.spill import SpooledRows

_Change = tuple[bytes, bytes | None]
_Row = bytes | None


def begin_watched(state: StateReplica, items: Sequence[PartitionChanges]) -> WatchedWrite | None:
    """What keeps the changes of a write that is about to begin; None: nobody watches."""
    return WatchedWrite(state, items) if state.table.changes.active else None


class WatchedWrite:
    """One write of a state's store. What is too much to be kept is read back from the changelog, by those who watch."""

    def __init__(self, state: StateReplica, items: Sequence[PartitionChanges]) -> None:
        self._state = state
        self._kept: dict[int, tuple[Sequence[_Change], Sequence[_Row] | None, int] | None] = {}
        wants = state.table.changes
        stored = state.store.snapshot() if wants.wants_befores else None
        try:
            # An epoch may be written in many portions, and is told of once: all of them share the bound.
            left = max(0, MOST_BYTES - sum(epoch.size for epoch in state.changed))
            for item in items:
                kept = _kept(item, stored, left)
                left -= kept[2] if kept is not None else 0
                self._kept[item.partition.key_group] = kept
        finally:
            if stored is not None:
                stored.close()

    def written(self, advances: Mapping[int, Advance]) -> None:
        """The store has all of them now."""
        for group, advance in advances.items():
            kept = self._kept[group]
            if kept is None:
                self._state.changed.append(GroupEpoch(group, advance.before.offset, advance.after, None))
                continue
            changes, befores, size = kept
            self._state.changed.append(GroupEpoch(group, advance.before.offset, advance.after, changes, befores, size))


def _kept(
    item: PartitionChanges, stored: Snapshot | None, most_bytes: int
) -> tuple[Sequence[_Change], Sequence[_Row] | None, int] | None:
    if isinstance(item.changes, SpooledRows) and item.changes.bytes > most_bytes:
        return None
    changes = list(item.changes)
    size = size_of(changes)
    if size > most_bytes:
        return None
    if stored is None:
        return changes, None, size
    befores = stored.get_many([key for key, _ in changes])
    size += sum(len(before or b"") for before in befores)
    return (changes, befores, size) if size <= most_bytes else None

"""What is kept of a write to a store for those who watch the state. Host thread only.

What was there before is read before the write, and only where somebody has asked for it. What is too much to be kept
is read back from the changelog, by those who watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from keyhole.changelog.base import PartitionChanges
from keyhole.stores.base import Advance, Snapshot
from services.state_server.read.watcher import MOST_BYTES, GroupEpoch, size_of
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.spill import SpooledRows


def watched_epochs(
    state: StateReplica, items: Sequence[PartitionChanges], advances: Mapping[int, Advance]
) -> list[GroupEpoch]:
    """What a write that is about to begin changes; nothing where nobody watches. To be sent once the store has it.

    Args:
        items: What is written, of each key group one.
        advances: By key group.
    """
    wants = state.table.changes
    if not wants.active:
        return []
    stored = state.store.snapshot() if wants.wants_befores else None
    try:
        watched: list[GroupEpoch] = []
        # An epoch may be written in many portions, and is sent once: all of them share the bound.
        left = max(0, MOST_BYTES - sum(epoch.size for epoch in state.changed))
        for item in items:
            epoch = _epoch(item, advances[item.partition.key_group], stored, left)
            left -= epoch.size
            watched.append(epoch)
        return watched
    finally:
        if stored is not None:
            stored.close()


def befores_of(watched: Iterable[GroupEpoch]) -> dict[bytes, bytes | None]:
    """What the store had by the keys that change, as far as it was read for those who watch."""
    return {
        key: before
        for epoch in watched
        if epoch.changes is not None and epoch.befores is not None
        for (key, _), before in zip(epoch.changes, epoch.befores, strict=True)
    }


def _epoch(item: PartitionChanges, advance: Advance, stored: Snapshot | None, most_bytes: int) -> GroupEpoch:
    group, before, after = item.partition.key_group, advance.before.offset, advance.after
    too_much = GroupEpoch(group, before, after, None)
    if isinstance(item.changes, SpooledRows) and item.changes.bytes > most_bytes:
        return too_much
    changes = list(item.changes)
    size = size_of(changes)
    if size > most_bytes:
        return too_much
    befores = None
    if stored is not None:
        befores = stored.get_many([key for key, _ in changes])
        size += sum(len(row or b"") for row in befores)
    return GroupEpoch(group, before, after, changes, befores, size) if size <= most_bytes else too_much

"""Chooses how an epoch's rows of a state are merged with what is stored, and merges those of one key group."""

from __future__ import annotations

from collections.abc import Mapping

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import lifetime
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.stores.base import Snapshot
from services.state_server.write.merge_aggregates import Aggregating
from services.state_server.write.merge_entries import MapMerge, RankedEntries
from services.state_server.write.merge_expiring import Expiring
from services.state_server.write.merge_lists import ListMerge
from services.state_server.write.merge_rows import RankedMerge, Reducing, Upsert, rank_by
from services.state_server.write.merging import CommitContext, EntryChange, Merge, StoredValues


def merge_of(descriptor: StateDescriptor) -> Merge:
    """Returns the strategy of a state: its kind's, inside that of maps, inside that of entries that expire."""
    merge = _of_kind(descriptor)
    if descriptor.map_key:
        merge = MapMerge(merge, StateCodec(descriptor))
    lives = lifetime(descriptor)
    return merge if lives is None else Expiring(merge, lives)


def _of_kind(descriptor: StateDescriptor) -> Merge:
    name = descriptor.path
    if descriptor.kind is StateKind.REDUCING:
        return Reducing(name, descriptor)
    if descriptor.kind is StateKind.LIST:
        return ListMerge(StateCodec(descriptor), descriptor.max_length)
    if descriptor.kind is StateKind.AGGREGATING:
        return Aggregating(name)
    if descriptor.order_by:
        codec = StateCodec(descriptor)
        rank = rank_by(descriptor.order_by, codec)
        return RankedEntries(rank, codec) if descriptor.map_key else RankedMerge(rank)
    return Upsert(name)


def changes(
    rows: StoredValues, snapshot: Snapshot, key_group: int, merge: Merge, context: CommitContext, *, replace: bool
) -> list[EntryChange]:
    """Returns what must be written to one key group, ascending by key; empty: nothing.

    Args:
        snapshot: The state before the epoch.
        replace: `rows` is all that the key group holds from now on (complete mode, or a reset).
    """
    if replace:
        return _replacing(merge.replacing(rows, context), dict(snapshot.items(key_group)))
    return merge.with_stored(rows, snapshot, context)


def _replacing(rows: StoredValues, stored: Mapping[bytes, bytes]) -> list[EntryChange]:
    # Complete mode repeats the whole result every epoch; only what differs is worth a changelog record.
    changed: list[EntryChange] = [(key, row) for key, row in rows.items() if stored.get(key) != row]
    changed.extend((key, None) for key in stored if key not in rows)
    return sorted(changed)

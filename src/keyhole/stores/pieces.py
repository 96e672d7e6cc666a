"""The step from pieces of a changelog to a store: one for all who read a changelog back, so that their copies of a
state are the same."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from keyhole.changelog.base import RestoredEpochs
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Store, takes_parts
from keyhole.stores.packed import PackedChanges, merged


def apply_pieces(store: Store, positions: MutableMapping[int, Position], pieces: Iterable[RestoredEpochs]) -> None:
    """Applies pieces of one state, each key group's in their order, in one atomic step.

    Args:
        positions: How far the store is, by key group; brought up to the pieces once they are applied.
        pieces: Those that are packed are used up, also where this raises.

    Raises:
        StoreConflict: The store is not at `positions`. Nothing of the pieces was applied.
        StoreFull: Nothing of them was applied.
    """
    all_changes: list[PackedChanges] = []
    after: dict[int, Position] = {}
    for piece in pieces:
        all_changes.append(piece.changes if isinstance(piece.changes, PackedChanges) else PackedChanges(piece.changes))
        after[piece.partition.key_group] = piece.position
    advances = {group: Advance(positions.get(group, START), position) for group, position in after.items()}
    parts = merged(all_changes)
    if takes_parts(store):
        store.apply_parts(parts, advances)
    else:
        store.apply(Batch.of_parts(parts, advances))
    positions.update(after)

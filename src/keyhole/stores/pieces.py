"""The step from pieces of a changelog to a store: one for all who read a changelog back, so that their copies of a
state are the same."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from operator import itemgetter
from typing import cast

from keyhole.changelog.base import RestoredEpochs
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Store


def apply_pieces(store: Store, positions: MutableMapping[int, Position], pieces: Iterable[RestoredEpochs]) -> None:
    """Applies pieces of one state, each key group's in their order, in one atomic step.

    Args:
        positions: How far the store is, by key group; brought up to the pieces once they are applied.

    Raises:
        StoreConflict: The store is not at `positions`. Nothing of the pieces was applied.
        StoreFull: Nothing of them was applied.
    """
    last: dict[bytes, bytes | None] = {}
    after: dict[int, Position] = {}
    for piece in pieces:
        last.update(piece.changes)
        after[piece.partition.key_group] = piece.position
    changes = sorted(last.items(), key=itemgetter(0))
    # As they are, not unpacked and packed again: this passes over every record of a restore.
    puts = cast("list[tuple[bytes, bytes]]", [change for change in changes if change[1] is not None])
    store.apply(
        Batch(
            puts=puts,
            deletes=[key for key, row in changes if row is None] if len(puts) < len(changes) else (),
            advances={group: Advance(positions.get(group, START), position) for group, position in after.items()},
        )
    )
    positions.update(after)

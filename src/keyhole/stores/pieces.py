"""The step from pieces of a changelog to a store: one for all who read a changelog back, so that their copies of a
state are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence

from keyhole.changelog.base import RestoredEpochs
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, BatchPart, Store, takes_parts
from keyhole.stores.packed import PackedChanges, merged

_MERGED_TOGETHER = 1_024
"""Pieces, where their key groups allow it: of each, less than a block is unpacked beside what is merged."""


def go_on() -> None:
    """What is checked where nobody gives the step up: nothing."""


def apply_pieces(
    store: Store,
    positions: MutableMapping[int, Position],
    pieces: Iterable[RestoredEpochs],
    check: Callable[[], None] = go_on,
) -> None:
    """Applies pieces of one state, each key group's in their order, in one atomic step.

    Args:
        positions: How far the store is, by key group; brought up to the pieces once they are applied.
        pieces: Those that are packed are used up, also where this raises.
        check: Called before each part is taken. What it raises is raised, and nothing of the pieces was applied.

    Raises:
        StoreConflict: The store is not at `positions`. Nothing of the pieces was applied.
        StoreFull: Nothing of them was applied.
    """
    changes: dict[int, list[PackedChanges]] = {}
    after: dict[int, Position] = {}
    for piece in pieces:
        packed = piece.changes if isinstance(piece.changes, PackedChanges) else PackedChanges(piece.changes)
        changes.setdefault(piece.partition.key_group, []).append(packed)
        after[piece.partition.key_group] = piece.position
    advances = {group: Advance(positions.get(group, START), position) for group, position in after.items()}
    parts = _parts(changes, check)
    if takes_parts(store):
        store.apply_parts(parts, advances)
    else:
        store.apply(Batch.of_parts(parts, advances))
    positions.update(after)


def _parts(changes: MutableMapping[int, list[PackedChanges]], check: Callable[[], None]) -> Iterator[BatchPart]:
    """Ascending by key, as key groups' keys are by their number. Few key groups, or one, are merged at a time."""
    for together in _together([changes[group] for group in sorted(changes)]):
        for part in merged(together):
            check()
            yield part


def _together(by_group: Iterable[Sequence[PackedChanges]]) -> Iterator[Sequence[PackedChanges]]:
    gathered: list[PackedChanges] = []
    for of_group in by_group:
        if gathered and len(gathered) + len(of_group) > _MERGED_TOGETHER:
            yield gathered
            gathered = []
        gathered += of_group
    if gathered:
        yield gathered

"""A state as its changelog has it, up to an offset of each key group, in a store of this process's own.

What savepoints are made from, and what copies are compared with. Memory is bounded by the reader's pieces and the
largest epoch; the store takes the room that the state takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from keyhole.changelog.base import ChangelogReader, Partition
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Snapshot, Store, StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.pieces import apply_pieces
from keyhole.temporary import temporary_directory


@contextmanager
def scratch_stores() -> Iterator[StoreEngine]:
    """Stores on the disk that holds temporary files (TMPDIR), gone at the end; those of a killed process with the next
    ones: they take as much room as its states.
    """
    with temporary_directory(prefix="keyhole-scratch-") as directory:
        engine = LmdbEngine(StoreLimits(directory / "stores"))
        try:
            yield engine
        finally:
            engine.close()


class Replayed:
    """See the module's text. One thread; blocks.

    Args:
        reader: Of the state's application; the caller closes it.
        store: An empty one; the caller closes it.
    """

    def __init__(self, state: str, reader: ChangelogReader, store: Store) -> None:
        self._state = state
        self._reader = reader
        self._store = store
        self._positions: dict[int, Position] = {}
        self._marked: dict[int, int] = {}

    def position(self, key_group: int) -> Position:
        """How far the changelog was read; its epoch is that of the last marker."""
        return self._positions.get(key_group, START)

    def marked(self, key_group: int) -> int:
        """The offset after the last marker that was read; 0: there was none."""
        return self._marked.get(key_group, 0)

    def advance(self, ends: Mapping[int, int], deadline_seconds: float) -> None:
        """Reads on, to the offset of each key group that is named; never back.

        Raises:
            KafkaUnreachable: No progress for `deadline_seconds`.
            ChangelogRecreated: The topic is gone.
            StoreFull: The disk is full.
        """
        parts = {Partition(self._state, group): end for group, end in ends.items()}
        positions = {part: self.position(part.key_group) for part in parts}
        for piece in self._reader.read(positions, parts, deadline_seconds):
            apply_pieces(self._store, self._positions, [piece])
            if piece.marker is not None:
                self._marked[piece.partition.key_group] = piece.position.offset

    def snapshot(self) -> Snapshot:
        """What was read so far."""
        return self._store.snapshot()

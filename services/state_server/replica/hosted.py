"""The write side of one state on this server: its store, how far that is, and which key groups may be written. All
that changes the store goes through here. Host thread only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from keyhole.changelog.base import RestoredEpochs
from keyhole.encoding.envelope import lifetime
from keyhole.encoding.row_codec import check_usable
from keyhole.model.epoch import START, Position
from keyhole.model.evolution import succeeds
from keyhole.model.state import StateDescriptor
from keyhole.stores.base import Batch, Snapshot, Store
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.pieces import apply_pieces, go_on
from services.state_server.read.standing import Standing
from services.state_server.read.table import Table
from services.state_server.read.watcher import GroupEpoch
from services.state_server.replica.key_groups import KeyGroups
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import Merge
from services.state_server.write.ttl_gc import Sweeper

_log = logging.getLogger(__name__)


class Applied(Protocol):
    """What is applied of a state that is fed by updates, before it is in its store. Host thread only."""

    def shown(self) -> frozenset[int]:
        """The owned key groups that readers may be answered from."""

    def snapshot(self) -> Snapshot:
        """What is applied, over what is stored; close it."""

    def standings(self, key_groups: Iterable[int]) -> Mapping[int, Standing]:
        """What these stand for; generation and version are the owner's."""

    def take_changed(self) -> Collection[int] | None:
        """The key groups whose standing is another one since this was asked last; None: any, or others are shown."""

    def restate(self, *, soon: bool) -> None:
        """Readers may see something else than was said: all is said again with the next update, or soon. Event loop,
        while nothing is applied."""


@dataclass
class StateReplica:
    """One state.

    Attributes:
        groups: In which state each key group is.
        sweeper: None: nothing expires, and no deletion is remembered.
        applied: None: the state is not fed by updates.
        changed: What was written, and is to be sent to those who watch.
        indexes: The store, where it keeps indexes; None: it is one of a test's own.
    """

    descriptor: StateDescriptor
    store: Store
    table: Table
    merge: Merge
    groups: KeyGroups = field(default_factory=KeyGroups)
    sweeper: Sweeper | None = None
    applied: Applied | None = None
    changed: list[GroupEpoch] = field(default_factory=list)
    indexes: IndexedStore | None = None
    _positions: dict[int, Position] = field(default_factory=dict, init=False)

    @classmethod
    def open(cls, descriptor: StateDescriptor, store: Store, table: Table) -> StateReplica:
        """Takes up where the store is."""
        lives = lifetime(descriptor)
        sweeper = None if lives is None else Sweeper(lives, lambda: store.size().entries)
        state = cls(descriptor, store, table, merge_of(descriptor), sweeper=sweeper)
        state.read_positions()
        return state

    def evolve(self, descriptor: StateDescriptor) -> None:
        """The same state has another descriptor from now on; an older one changes nothing.

        Raises:
            ValueMismatch: It can't be used. Nothing has changed.
        """
        if succeeds(descriptor, self.descriptor):
            check_usable(descriptor)
            if self.indexes is not None:
                self.indexes.declare(descriptor)
            self.descriptor, self.merge = descriptor, merge_of(descriptor)
            if self.sweeper is not None and (lives := lifetime(descriptor)) is not None:
                self.sweeper.lives = lives

    def read_positions(self) -> None:
        """As the store has them: a write of which it is not known whether it was done may have moved them."""
        snapshot = self.store.snapshot()
        try:
            self._positions = dict(snapshot.positions())
        finally:
            snapshot.close()

    def position(self, key_group: int) -> Position:
        """How far the store is with the key group."""
        return self._positions.get(key_group, START)

    def apply(self, batch: Batch, befores: Mapping[bytes, bytes | None] | None = None) -> None:
        """Writes to the store, in one atomic step.

        Args:
            batch: Of rows.
            befores: What the store has by some of its keys, where that was read: indexes don't read it again.

        Raises:
            StoreConflict: The store is not where the batch begins. Nothing of it was applied.
            StoreFull: Nothing of it was applied.
        """
        if self.indexes is None:
            self.store.apply(batch)
        else:
            self.indexes.apply(batch, befores)
        self._positions.update({group: advance.after for group, advance in batch.advances.items()})

    def build_indexes(self) -> bool:
        """Takes a step of what is to be added to new indexes, and removed of old ones. Returns whether there is more.

        Raises:
            StoreFull: It can be tried again.
        """
        return self.indexes is not None and self.indexes.build()

    def take_changed(self) -> list[GroupEpoch]:
        """What was written since this was asked last, as far as it was kept."""
        changed, self.changed = self.changed, []
        return changed

    def apply_pieces(self, pieces: Iterable[RestoredEpochs], check: Callable[[], None] = go_on) -> None:
        """Applies pieces of the state's changelog. See keyhole.stores.pieces, also for what it raises."""
        apply_pieces(self.store, self._positions, pieces, check)

    def forget(self, key_groups: Iterable[int], why: str) -> None:
        """Drops key groups from the store: they are restored from the changelog's start."""
        for key_group in key_groups:
            _log.warning(
                "dropped a key group from the store; it is rebuilt from the changelog",
                extra={"state": self.descriptor.state, "key_group": key_group, "why": why},
            )
            self.store.drop_key_group(key_group)
            self._positions.pop(key_group, None)

"""A store that keeps the indexes of its state, in the same atomic step as the rows. Over any engine.

    apply   customer of order 7: a -> b
      rows      put     7: {customer: b}
      index     delete  a, 7         read before: the row that is replaced
                put     b, 7
      position of the key group, and of its index entries

An index entry stands in a key group of its own (keyhole.stores.index_entries), beside the rows in the engine's store.
So a batch of the engine holds both, each of its snapshots has both as of one moment, and every engine can have indexes.

An index is used in a key group only where that key group says that it has all rows. A key group that begins empty says
so at once, and from then on each write keeps it true: that is how a restore rebuilds it. What was there before the
index was declared is added by `build`, some thousand rows at a time, while rows are written and read as ever.

    the index of a key group      kept by writes          asked by scans
    none                          no                      no
    being built, up to a key      up to that key          no
    whole                         yes                     yes

A key group gives its indexes up where a row is of a newer schema than the descriptor's, or where a key has no room
beside a value. Scans read its rows then, until the state is declared anew or opened again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from keyhole.encoding.indexed_fields import (
    INDEX_GROUPS,
    IndexedField,
    IndexedRows,
    UnreadableRowError,
    Values,
    indexed_fields,
)
from keyhole.encoding.storage_key import group_of
from keyhole.model.epoch import START, Position
from keyhole.model.state import StateDescriptor
from keyhole.stores.base import Advance, Batch, BatchPart, Snapshot, Store, StoreSize, takes_parts
from keyhole.stores.index_build import building_step, removal_step
from keyhole.stores.index_entries import IndexedSnapshot, NoRoomError, index_group, place_of, rows_before
from keyhole.stores.index_steps import IndexedGroup, IndexStep, found_indexes

_log = logging.getLogger(__name__)

BUILD_ENTRIES = 4_000
"""Added or removed in one step of `build`: some tens of milliseconds."""


class IndexedStore:
    """See the module's text, and base.Store. `declare` and `build` are the writer thread's, too.

    Args:
        store: Closed with this one. All that changes it goes through here.
        descriptor: The state's.
        build_entries: See BUILD_ENTRIES.

    Raises:
        ValueMismatch: See indexed_fields.
        KeyholeError: The store fails.
    """

    def __init__(self, store: Store, descriptor: StateDescriptor, build_entries: int = BUILD_ENTRIES) -> None:
        self._store = store
        self._build_entries = build_entries
        self._name = descriptor.path
        self._may_have = descriptor.key_groups <= INDEX_GROUPS
        self._fields: tuple[IndexedField, ...] = ()
        self._values: Callable[[list[bytes | None]], list[Values]] = lambda _: []
        self._groups: dict[int, IndexedGroup] = {}
        self._positions: dict[int, Position] = {}
        # Key groups that `build` has not looked at.
        self._todo: set[int] = set()
        # What is above is what the store has.
        self._known = False
        # Whether there may be index entries. Read by other threads.
        self._has_entries = True
        self.declare(descriptor)

    @property
    def beneath(self) -> Store:
        """The engine's, which has the index entries as well."""
        return self._store

    @property
    def max_key_bytes(self) -> int:
        return self._store.max_key_bytes

    @property
    def has_entries(self) -> bool:
        """Whether it keeps indexes, or has what is left of some. Any thread."""
        return self._has_entries

    def snapshot(self) -> Snapshot:
        return IndexedSnapshot(self._store.snapshot()) if self._has_entries else self._store.snapshot()

    def index_entries(self) -> Mapping[str, int]:
        """How many rows each index has, by field; those that it has so far where it is being built. Any thread."""
        groups = list(self._groups.values())
        return {
            field.name: sum(of.rows.get(field.id, 0) + of.building.get(field.id, 0) for of in groups)
            for field in self._fields
        }

    def size(self) -> StoreSize:
        """As base.Store has it. While an index is removed, `entries` counts what is left of it."""
        size = self._store.size()
        if not self._has_entries:
            return size
        return StoreSize(max(0, size.entries - sum(of.entries for of in list(self._groups.values()))), size.bytes)

    def close(self) -> None:
        self._store.close()

    def declare(self, descriptor: StateDescriptor) -> None:
        """The state has the descriptor's indexes from now on, and no others.

        Those that are new are asked once they are built; those that are gone, never again.

        Raises:
            ValueMismatch: See indexed_fields. Nothing has changed.
            KeyholeError: The store fails. What is not declared any more is not asked once anything is written.
        """
        fields = indexed_fields(descriptor)
        if not self._may_have:
            self._has_entries = False
            return
        # First, for snapshots of other threads.
        self._has_entries = True
        if fields:
            self._values = IndexedRows(descriptor, fields).values
        self._fields = fields
        if not self._known:
            self._look()
        step = IndexStep()
        for number, before in self._groups.items():
            of = step.groups[number] = before.copy()
            # At once: from here on writes don't keep them.
            step.deletes += [place_of(number, index) for index in of.declare(self._declared)]
        if step.deletes:
            self._write(Batch(), step)
        self._groups.update(step.groups)
        self._todo = set(self._positions) | set(self._groups)
        self._has_entries = bool(fields or self._groups)

    @property
    def _declared(self) -> frozenset[bytes]:
        return frozenset(of.id for of in self._fields)

    def _look(self) -> None:
        """What the store has: its key groups, and the indexes in them."""
        snapshot = self._store.snapshot()
        try:
            found = found_indexes(snapshot, self._declared)
        finally:
            snapshot.close()
        self._positions, self._groups = found.positions, found.groups
        if found.untrue:
            at = {index_group(number): of.position for number, of in found.groups.items()}
            advances = {group: Advance(at[group], at[group]) for group in map(group_of, found.untrue)}
            self._store.apply(Batch(deletes=sorted(found.untrue), advances=advances))
        self._todo = set(self._positions) | set(self._groups)
        self._known = True

    def apply(self, batch: Batch, befores: Mapping[bytes, bytes | None] | None = None) -> None:
        """See base.Store: the indexes change in the same step. Of rows that have one, those that they replace are read.

        Args:
            batch: Of rows.
            befores: What the store has by some of its keys, as far as the caller has read it; it is not read again.

        Raises likewise.
        """
        if not self._known and self._has_entries:
            self._look()
        self._write(batch, self._step(batch, befores or {}) if self._has_entries else IndexStep())

    @property
    def takes_parts(self) -> bool:
        """See base.StoreInParts. Not with indexes: what they become is known of a whole batch."""
        return not self._has_entries and takes_parts(self._store)

    def apply_parts(self, parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> None:
        store = self._store
        assert takes_parts(store)
        self._change_store(lambda: store.apply_parts(parts, advances))
        self._moved_to(advances)

    def _write(self, batch: Batch, step: IndexStep) -> None:
        """A batch of rows, and a step of index entries, all or nothing."""
        advances: Mapping[int, Advance] = batch.advances
        puts, deletes = batch.puts, batch.deletes
        if step.groups:
            advances = dict(advances)
            for number, of in step.groups.items():
                before = self._groups[number].position if number in self._groups else START
                of.position = advances[number].after if number in advances else self._positions.get(number, START)
                advances[index_group(number)] = Advance(before, of.position)
            # Behind all rows, as their key groups are.
            puts, deletes = [*puts, *sorted(step.puts)], [*deletes, *sorted(step.deletes)]
            batch = Batch(puts, deletes, advances)
        self._change_store(lambda: self._store.apply(batch))
        self._groups.update(step.groups)
        self._moved_to(advances)

    def _moved_to(self, advances: Mapping[int, Advance]) -> None:
        of_rows = (item for item in advances.items() if not self._may_have or item[0] < INDEX_GROUPS)
        self._positions.update({number: advance.after for number, advance in of_rows})

    def _change_store(self, change: Callable[[], None]) -> None:
        # Where it fails, it may have been done: then the store is asked.
        self._known, known = False, self._known
        change()
        self._known = known

    def _step(self, batch: Batch, befores: Mapping[bytes, bytes | None]) -> IndexStep:
        step = IndexStep()
        fresh = self._begun(batch)
        for number in batch.advances:
            of = self._groups.get(number)
            if number in fresh:
                step.groups[number] = IndexedGroup(rows=dict.fromkeys(self._declared, 0))
            elif of is not None and of.is_kept:
                step.groups[number] = of.copy()
        if not step.groups:
            return step
        changes: dict[int, list[tuple[bytes, bytes | None]]] = {number: [] for number in step.groups}
        for change in itertools.chain(batch.puts, ((key, None) for key in batch.deletes)):
            if (of_group := changes.get(group_of(change[0]))) is not None:
                of_group.append(change)
        snapshot = self._store.snapshot()
        try:
            for number, of_group in changes.items():
                self._change(step, number, of_group, None if number in fresh else snapshot, befores)
        finally:
            snapshot.close()
        return step

    def _begun(self, batch: Batch) -> set[int]:
        """The key groups that begin with the batch: what is to be in their indexes is in it."""
        if not self._fields:
            return set()
        begun = {
            number
            for number, advance in batch.advances.items()
            if advance.before == START and number not in self._positions
        }
        for number in begun & self._groups.keys():
            # Of rows that are gone; a crash came between the two.
            self._drop_indexes(number)
        return begun

    def _change(
        self,
        step: IndexStep,
        number: int,
        changes: Sequence[tuple[bytes, bytes | None]],
        stored: Snapshot | None,
        known: Mapping[bytes, bytes | None],
    ) -> None:
        """Adds what changes of a key group's rows mean to its indexes.

        Args:
            stored: Before them; None: the key group was empty.
            known: What it has by some of their keys.
        """
        keys = [key for key, _ in changes]
        try:
            afters = self._values([row for _, row in changes])
            befores = None if stored is None else self._values(rows_before(stored, keys, known))
            step.change(number, self._fields, keys, befores, afters, self.max_key_bytes)
        except (UnreadableRowError, NoRoomError) as error:
            self._give_up(step, number, error)

    def _give_up(self, step: IndexStep, number: int, error: Exception) -> None:
        why = "a key is too long" if isinstance(error, NoRoomError) else "a row is of no schema that is known here"
        _log.warning(
            "the indexes of a key group are not kept; scans read all of its rows until the state is opened again",
            extra={"state": self._name, "key_group": number, "why": why},
        )
        step.give_up(number, step.groups[number])

    def drop_key_group(self, key_group: int) -> None:
        """See base.Store. Its index entries go first: rows without these are right, not the other way round."""
        if self._has_entries:
            self._drop_indexes(key_group)
        self._change_store(lambda: self._store.drop_key_group(key_group))
        self._positions.pop(key_group, None)

    def _drop_indexes(self, number: int) -> None:
        self._change_store(lambda: self._store.drop_key_group(index_group(number)))
        self._groups.pop(number, None)

    def build(self) -> bool:
        """Takes one step of what is to be added to new indexes, and removed of those that are gone.

        Returns:
            Whether there may be more to do. False also where there is none.

        Raises:
            StoreFull: It can be tried again; scans read all rows until then.
        """
        if self._has_entries and not self._known:
            self._look()
        while self._todo:
            number = next(iter(self._todo))
            if self._built(number):
                return True
            self._todo.discard(number)
        self._has_entries = bool(self._fields or self._groups)
        return False

    def _built(self, number: int) -> bool:
        """Takes a step in a key group. Returns False where it has nothing left to do."""
        of = self._groups.get(number)
        if of is not None and of.left:
            self._write(Batch(), removal_step(self._store, number, of.copy(), min(of.left), self._build_entries))
            return True
        if of is not None and not of.is_kept and not self._fields:
            self._drop_indexes(number)
            return False
        if number not in self._positions or (of is not None and of.given_up):
            return False
        if not (self._declared if of is None else self._declared - of.rows.keys()):
            return False
        self._add(number, IndexedGroup() if of is None else of.copy())
        return True

    def _add(self, number: int, of: IndexedGroup) -> None:
        try:
            step = building_step(self._store, number, of, self._fields, self._values, self._build_entries)
        except (UnreadableRowError, NoRoomError) as error:
            step = IndexStep(groups={number: of})
            self._give_up(step, number, error)
        self._write(Batch(), step)

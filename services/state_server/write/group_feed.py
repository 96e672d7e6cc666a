"""The updates of one key group, applied in the order of their log: the real-time lane's write path. Host thread only.

    updates log     put a: 1      put b: 2      put a: 3                 the same from any cut of the log into polls:
    overlay         a: 1          a: 1, b: 2    a: 3, b: 2               what is applied depends on the log alone

Rows come together as in an epoch (merge.py): each run of updates without a key twice is merged as one epoch would be.
So an owner that starts again from the changelog, and applies the log once more, comes to the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keyhole.encoding.storage_key import group_of
from keyhole.errors import (
    KeyholeError,
    KeyMismatch,
    KeyTooLong,
    MalformedRequest,
    RequestError,
    StaleDescriptor,
    TooLarge,
    ValueMismatch,
)
from keyhole.model.state import StateDescriptor
from keyhole.protocol.seen import FeedPosition, SeenRows
from keyhole.protocol.updates import BoundaryRecord, EndRecord, LoggedUpdate, Record, RulesRecord, UpdateRecord, decode
from keyhole.stores.base import Snapshot
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from services.state_server.write.merging import StoredValue
from services.state_server.write.update_keys import UpdateKeys
from services.state_server.write.update_merge import UpdateMerge
from services.state_server.write.update_reader import UpdateReader


class UpdateLimits(NamedTuple):
    """The longest storage key, and the largest row, that an update may have."""

    key_bytes: int
    row_bytes: int


class RefusedUpdate(NamedTuple):
    """A record that changed nothing, and never will: for the dead-letter topic."""

    update: LoggedUpdate
    why: KeyholeError


@dataclass
class AppliedUpdates:
    """What became of some records.

    Attributes:
        overlay: With what they changed.
        applied: How many updates count, also those that changed nothing by `order_by`.
        repeated: How many had counted before.
        refused: In the order of the log.
        waits_for: Why the log is applied no further for now: the descriptor is older than the rules. None: all is
            applied.
    """

    overlay: Overlay
    applied: int = 0
    repeated: int = 0
    refused: list[RefusedUpdate] = field(default_factory=list)
    waits_for: StaleDescriptor | None = None


class GroupFeed:
    """One key group of a state that is fed by updates. It keeps no rows: the caller has the overlay.

    Where `apply` raises, what was seen and what stands in the overlay may differ: drop it, and begin anew from the
    changelog.

    Args:
        position: Where the key group is, from its changelog.
        topic: Kafka's id of the updates topic.
        limits: What neither the store nor the changelog could take is refused.
        keys: Of the state; None: of this key group alone.

    Attributes:
        next: The next offset to apply.
        reads: The next offset to read. Below `next`, what is read is only known again as seen.
        time_ms: The latest timestamp of the log so far. Entries expire by it: no clock is asked.
        seen: See SeenRows.

    Raises:
        Unsupported: The state's kind can't be fed by updates.
    """

    def __init__(
        self,
        descriptor: StateDescriptor,
        key_group: int,
        position: FeedPosition,
        topic: str,
        limits: UpdateLimits,
        keys: UpdateKeys | None = None,
    ) -> None:
        self.next = position.next
        self.reads = position.refill
        self.time_ms = position.time_ms
        self.seen = SeenRows(position)
        self._topic = topic
        self._limits = limits
        self._keys = keys or UpdateKeys(descriptor)
        self._key_group = key_group
        self._name = descriptor.path
        self._rules = position.rules
        self.evolve(descriptor)

    def evolve(self, descriptor: StateDescriptor) -> None:
        """The state has another descriptor from now on. What was applied is committed before.

        Its ttl, its newest schema, and what else FeedRules has, don't count: the log says them.
        """
        self._descriptor = descriptor
        # Rules that this server does not know of yet: nothing is applied until it does.
        self._waits_for = None if self._rules is None else self._unknown(self._rules)
        self._obey(None if self._waits_for else self._rules)

    def _obey(self, rules: RulesRecord | None) -> None:
        ruled = self._descriptor if rules is None else rules.rules.applied_to(self._descriptor)
        self._reader, self._merge = UpdateReader(ruled, self._keys), UpdateMerge(ruled, self._key_group)

    def _unknown(self, record: RulesRecord) -> StaleDescriptor | None:
        """Why rules wait: they are of a schema that the descriptor has not yet. None: they don't."""
        newest = self._descriptor.value.version
        if record.rules.schema_version <= newest:
            return None
        return StaleDescriptor(
            f"rows of state {self._name} are of schema version {record.rules.schema_version}, and {newest} is the "
            "newest here",
            state=self._name,
            version=newest,
        )

    def position(self) -> FeedPosition:
        """What is to be kept with the rows that were applied."""
        return self.seen.position(self.next, topic=self._topic, rules=self._rules)

    def apply(self, log: Sequence[LoggedUpdate], stored: Snapshot, overlay: Overlay) -> AppliedUpdates:
        """Applies records, which follow on those before, in their order.

        Args:
            log: From `reads` on. Offsets may be missing: Kafka has control records, too.
            stored: What was committed.
            overlay: What was applied since, and stands over it.
        """
        done = AppliedUpdates(overlay)
        run = _MergedUpdates()
        for update in log:
            assert update.offset >= self.reads
            if update.offset < self.next:
                self.reads = update.offset + 1
                self.seen.refill(_records([update]))
                continue
            if (why := self._waits_for) is None:
                record = self._decoded(update, done)
                if isinstance(record, RulesRecord) and self._are_newer(record):
                    why = self._unknown(record)
            if why is not None:
                done.waits_for = why
                break
            self.reads = self.next = update.offset + 1
            if record is None:
                continue  # and of its time, which may be anything, nothing counts
            if update.timestamp_ms > self.time_ms:
                if self._merge.expires:
                    self._merge_run(run, stored, done)
                self.time_ms = update.timestamp_ms
            self.seen.pass_time(self.time_ms)
            if isinstance(record, UpdateRecord):
                self._add(record, update, run, stored, done)
            elif isinstance(record, RulesRecord):
                self._merge_run(run, stored, done)
                self._rule(record, update, done)
            else:
                self._forget(record, update, done)
        self._merge_run(run, stored, done)
        # One that is refused only when its run is merged comes behind later ones.
        done.refused.sort(key=lambda one: one.update.offset)
        return done

    def sweep(self, stored: Snapshot, overlay: Overlay, entries: int) -> Overlay:
        """With the removal of some rows that have expired by the log. No update, and no reader, misses them.

        Args:
            entries: About how many it looks at.
        """
        return self._merge.sweep(stored, overlay, self.time_ms, entries)

    def _decoded(self, update: LoggedUpdate, done: AppliedUpdates) -> Record | None:
        try:
            return decode(update.value)
        except ValueMismatch as error:
            done.refused.append(RefusedUpdate(update, error))
            return None

    def _are_newer(self, record: RulesRecord) -> bool:
        return self._rules is None or record.generation > self._rules.generation

    def _rule(self, record: RulesRecord, update: LoggedUpdate, done: AppliedUpdates) -> None:
        if not self._are_newer(record):
            return
        try:
            why = record.rules.misfit(self._descriptor)
            if self._rules is not None and record.rules.schema_version < self._rules.rules.schema_version:
                why = f"schema version {self._rules.rules.schema_version} is in force: stored rows may be of it"
            if why is None:
                self._obey(record)
        except KeyholeError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - one record must not stop its key group, whatever it holds
            why = f"they can't be followed ({type(error).__name__}: {error})"
        if why is not None:
            done.refused.append(RefusedUpdate(update, MalformedRequest(f"rules of state {self._name}: {why}")))
            return
        self._rules = record
        self.seen.limit(record.rules)

    def _forget(self, record: BoundaryRecord | EndRecord, update: LoggedUpdate, done: AppliedUpdates) -> None:
        if isinstance(record, EndRecord):
            self.seen.end(record.source)
        elif record.updates_id in ("", self._topic):
            self.seen.reach(record)
        else:
            # Its writer ran on while the topic was made anew: the rows below stand in the other one.
            why = MalformedRequest(
                f"a boundary of source {record.source} speaks of updates topic {record.updates_id}, and state "
                f"{self._name} is fed by {self._topic}: stop the feeder that wrote it"
            )
            done.refused.append(RefusedUpdate(update, why))

    def _add(
        self, record: UpdateRecord, update: LoggedUpdate, run: _MergedUpdates, stored: Snapshot, done: AppliedUpdates
    ) -> None:
        """Adds an update to the run; what can't come together with it is merged before."""
        try:
            found = self._read(record, update)
        except KeyholeError as error:
            done.refused.append(RefusedUpdate(update, error))
            return
        except Exception as error:  # noqa: BLE001 - one record must not stop its key group, whatever it holds
            # Not as the cause: it may hold the value.
            why = ValueMismatch(f"an update of state {self._name} can't be read: {type(error).__name__}")
            done.refused.append(RefusedUpdate(update, why))
            return
        if found is None:
            done.repeated += 1
            return
        if found.clears or found.key in run.rows:
            self._merge_run(run, stored, done)
        run.add(found, update)
        if found.clears:
            self._merge_run(run, stored, done)

    def _read(self, record: UpdateRecord, update: LoggedUpdate) -> _KeyUpdate | None:
        """What an update puts or deletes; None: it has been seen."""
        if self._rules is None:
            # Not seen either: sent again behind the rules, it counts.
            raise MalformedRequest(
                f"an update of state {self._name} stands in its topic before the first rules, which the state's feed "
                "run writes: start that first, and send the update again"
            )
        # Seen, also where it is refused below: a repetition of it is no other row.
        if not self.seen.take(record.row, update.offset):
            return None
        key, row = self._reader.read(record, update.offset)
        if group_of(key) != self._key_group:
            raise KeyMismatch(
                f"an update of state {self._name} is in partition {self._key_group}, and its key belongs to "
                f"{group_of(key)}: docs/keys.md says how key groups are computed",
                partition=self._key_group,
                key_group=group_of(key),
            )
        self._check_size(key, row)
        return _KeyUpdate(key, row, self._reader.clears(record))

    def _check_size(self, key: bytes, row: StoredValue) -> None:
        if len(key) > self._limits.key_bytes:
            raise KeyTooLong(
                f"a key of state {self._name} takes {len(key)} bytes; the store takes {self._limits.key_bytes}",
                bytes=len(key),
                limit=self._limits.key_bytes,
            )
        self._check_row(row)

    def _check_row(self, row: StoredValue) -> None:
        if row is not None and len(row) > self._limits.row_bytes:
            raise TooLarge(
                f"a row of state {self._name} takes {len(row)} bytes; the changelog takes {self._limits.row_bytes}",
                bytes=len(row),
                limit=self._limits.row_bytes,
            )

    def _merge_run(self, run: _MergedUpdates, stored: Snapshot, done: AppliedUpdates) -> None:
        """Merges what has come together, and empties the run."""
        rows, updates = run.take()
        if not rows:
            return
        try:
            done.overlay = self._merged(rows, stored, done.overlay)
            done.applied += len(rows)
        except (RequestError, TypeError):
            # One of them can't be merged with what is stored (a sum leaves its type, an order compares a null): it is
            # refused, the others count. A store that can't be read says nothing of any of them: that goes up.
            for (key, row), update in zip(rows.items(), updates, strict=True):
                try:
                    done.overlay = self._merged({key: row}, stored, done.overlay)
                    done.applied += 1
                except RequestError as error:
                    done.refused.append(RefusedUpdate(update, error))
                except TypeError:
                    why = ValueMismatch(
                        f"an update of state {self._name} can't be merged with what is stored: its values can't be "
                        "compared"
                    )
                    done.refused.append(RefusedUpdate(update, why))

    def _merged(self, rows: dict[bytes, StoredValue], stored: Snapshot, overlay: Overlay) -> Overlay:
        changes = self._merge.with_stored(rows, OverlaySnapshot(stored, overlay), self.time_ms)
        # Several small updates may come to a large row, which no commit could write.
        for _, row in changes:
            self._check_row(row)
        return overlay.changed(changes)


def _records(log: Iterable[LoggedUpdate]) -> Iterator[Record]:
    """Those that are records of ours: the others were refused when they were applied."""
    for update in log:
        try:
            yield decode(update.value)
        except ValueMismatch:
            continue


class _KeyUpdate(NamedTuple):
    """What an update does: to one key, or (`clears`) to all that a key has."""

    key: bytes
    row: StoredValue
    clears: bool


class _MergedUpdates:
    """Updates that are merged together: each is of another storage key."""

    def __init__(self) -> None:
        self.rows: dict[bytes, StoredValue] = {}
        self._updates: list[LoggedUpdate] = []

    def add(self, found: _KeyUpdate, update: LoggedUpdate) -> None:
        self.rows[found.key] = found.row
        self._updates.append(update)

    def take(self) -> tuple[dict[bytes, StoredValue], list[LoggedUpdate]]:
        taken = self.rows, self._updates
        self.rows, self._updates = {}, []
        return taken

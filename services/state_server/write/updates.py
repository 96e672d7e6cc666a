"""The updates of one key group, applied in the order of their log: the real-time lane's write path. Host thread only.

    updates log     put a: 1      put b: 2      put a: 3                 the same from any cut of the log into polls:
    overlay         a: 1          a: 1, b: 2    a: 3, b: 2               what is applied depends on the log alone

Rows come together as in an epoch (merge.py): each run of updates without a key twice is merged as one epoch would be.
So an owner that starts again from the changelog, and applies the log once more, comes to the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Moment, deletion, lifetime
from keyhole.encoding.json_values import JsonRows, json_reader, key_reader
from keyhole.encoding.key_codec import encode_integer
from keyhole.encoding.storage_key import group_of
from keyhole.encoding.value_types import Convert, optional
from keyhole.errors import (
    KeyholeError,
    KeyMismatch,
    KeyTooLong,
    MalformedRequest,
    StaleDescriptor,
    TooLarge,
    Unsupported,
    ValueMismatch,
)
from keyhole.model.state import StateDescriptor, StateKind, TtlClock
from keyhole.protocol.seen import FeedPosition, SeenRows
from keyhole.protocol.updates import DELETE, BoundaryRecord, Record, UpdateRecord, decode
from keyhole.stores.base import Snapshot
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import CommitContext, StoredValue

_POSITION_BYTES = 8


class LoggedUpdate(NamedTuple):
    """A record of an updates partition. `timestamp_ms`: Kafka's, by which entries expire."""

    offset: int
    timestamp_ms: int
    value: bytes | None


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
        waits_for: Why the log is applied no further for now: the descriptor is not new enough. None: all is applied.
    """

    overlay: Overlay
    applied: int = 0
    repeated: int = 0
    refused: list[RefusedUpdate] = field(default_factory=list)
    waits_for: StaleDescriptor | None = None


class UpdateReader:
    """From an update to a storage key and a row, as merging takes them. Pure.

    Raises:
        Unsupported: The state's kind can't be fed by updates.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._name = f"{descriptor.application}/{descriptor.state}"
        if (why := _unsupported(descriptor)) is not None:
            raise Unsupported(f"state {self._name} can't be fed by updates: {why}", state=descriptor.state)
        self._codec = StateCodec(descriptor)
        self._rows = JsonRows(descriptor)
        self._is_list = descriptor.kind is StateKind.LIST
        self._key = key_reader(descriptor.key)
        self._map_key = key_reader(descriptor.map_key) if descriptor.map_key else None
        self.check_known = self._rows.check_known
        self._order = self._order_of(descriptor) if descriptor.keep_deleted_ms else None

    def _order_of(self, descriptor: StateDescriptor) -> Convert:
        of = next(field.type for field in descriptor.value.fields if field.name == descriptor.order_by)
        return optional(json_reader(of))

    def clears(self, record: UpdateRecord) -> bool:
        """Whether it deletes all that a key has, of several entries."""
        several = self._is_list or (self._map_key is not None and record.map_key is None)
        return several and record.operation == DELETE

    def read(self, record: UpdateRecord, offset: int) -> tuple[bytes, StoredValue]:
        """The storage key that the update is about, and its row; None deletes.

        Args:
            offset: Of the update: elements of a list come in the order of these.

        Raises:
            KeyMismatch, NullKey, ValueMismatch: It does not fit the state.
            MalformedRequest: An element is there, or lacks, that the operation has not, or needs.
        """
        key = self._key(record.key)
        if record.operation == DELETE:
            return self._deletion(key, record)
        if record.value is None:
            raise MalformedRequest(
                f"an update of state {self._name} puts a row and has none; a deletion is operation 1"
            )
        row = self._rows.row(record.schema_version, record.value)
        if self._is_list:
            return self._codec.prefix(_one(key)) + encode_integer(offset, _POSITION_BYTES), row
        return self._codec.storage_key(_one(key + self._of_map(record))), row

    def _deletion(self, key: tuple[Any, ...], record: UpdateRecord) -> tuple[bytes, StoredValue]:
        row: StoredValue = None
        if self._order is not None:
            row = self._ordered(record)
        elif record.value is not None:
            raise MalformedRequest(f"a deletion in state {self._name} has a value, and deletions have no order there")
        if self.clears(record):
            return self._codec.prefix(_one(key)), row
        return self._codec.storage_key(_one(key + self._of_map(record))), row

    def _ordered(self, record: UpdateRecord) -> bytes:
        assert self._order is not None
        if record.value is None or len(record.value) != 1:
            raise MalformedRequest(
                f"a deletion in state {self._name} has an order: give it as the only field of the value"
            )
        try:
            return deletion(self._order(record.value[0]))
        except (ValueError, OverflowError, ArithmeticError):
            # Not as the cause: it may hold the value.
            raise ValueMismatch(f"the order of a deletion in state {self._name} is not of its type") from None

    def _of_map(self, record: UpdateRecord) -> tuple[Any, ...]:
        if self._map_key is None:
            return ()
        if record.map_key is None:
            raise MalformedRequest(f"an update of state {self._name} has no map key")
        return self._map_key(record.map_key)


def _unsupported(descriptor: StateDescriptor) -> str | None:
    if descriptor.kind is StateKind.AGGREGATING or descriptor.class_version:
        return "its values are made by a class of the job's, which no server has. Feed a reducing state"
    if descriptor.ttl_ms and descriptor.ttl_clock is TtlClock.EVENT_TIME:
        return "it expires by event time, and updates have no watermark. Let it expire by processing time"
    return None


def _one(values: tuple[Any, ...]) -> Any:
    """As the codec takes a key: the value itself where there is one column."""
    return values[0] if len(values) == 1 else values


class GroupFeed:
    """One key group of a state that is fed by updates. It keeps no rows: the caller has the overlay.

    Where `apply` raises, what was seen and what stands in the overlay may differ: drop it, and begin anew from the
    changelog.

    Args:
        position: Where the key group is, from its changelog.
        topic: Kafka's id of the updates topic.
        limits: What neither the store nor the changelog could take is refused.

    Attributes:
        next: The next offset to apply.
        time_ms: The latest timestamp of the updates that count. Entries expire by it: no clock is asked.
        seen: See SeenRows.
    """

    def __init__(
        self, descriptor: StateDescriptor, key_group: int, position: FeedPosition, topic: str, limits: UpdateLimits
    ) -> None:
        self.next = position.next
        self.time_ms = position.time_ms
        self.seen = SeenRows(position)
        self._topic = topic
        self._limits = limits
        self._key_group = key_group
        self._name = f"{descriptor.application}/{descriptor.state}"
        self.evolve(descriptor)

    def evolve(self, descriptor: StateDescriptor) -> None:
        """The state has another descriptor from now on. What was applied is committed before."""
        self._reader = UpdateReader(descriptor)
        self._merge = merge_of(descriptor)
        self._expires = lifetime(descriptor) is not None

    def position(self) -> FeedPosition:
        """What is to be kept with the rows that were applied."""
        return self.seen.position(self.next, topic=self._topic, time_ms=self.time_ms)

    def refill(self, log: Iterable[LoggedUpdate]) -> None:
        """Comes to know again what was seen. To be called before `apply`, with the position's `refill` up to `next`."""
        self.seen.refill(_records(log))

    def apply(self, log: Sequence[LoggedUpdate], stored: Snapshot, overlay: Overlay) -> AppliedUpdates:
        """Applies records, which follow on those before, in their order.

        Args:
            log: From `next` on. Offsets may be missing: Kafka has control records, too.
            stored: What was committed.
            overlay: What was applied since, and stands over it.
        """
        done = AppliedUpdates(overlay)
        run = _Run()
        for update in log:
            assert update.offset >= self.next
            try:
                found = self._read(update, done)
            except StaleDescriptor as error:
                done.waits_for = error
                break
            self.next = update.offset + 1
            if found is None:
                continue
            time_ms = max(self.time_ms, update.timestamp_ms)
            if found.clears or found.key in run.rows or (self._expires and time_ms != self.time_ms):
                self._merge_run(run, stored, done)
            self.time_ms = time_ms
            run.add(found, update)
            if found.clears:
                self._merge_run(run, stored, done)
        self._merge_run(run, stored, done)
        return done

    def _read(self, update: LoggedUpdate, done: AppliedUpdates) -> _Found | None:
        """What an update puts or deletes; None: nothing.

        Raises:
            StaleDescriptor: It can't be known yet what it puts. Nothing of it was taken.
        """
        try:
            record = decode(update.value)
            if isinstance(record, BoundaryRecord):
                self.seen.reach(record)
                return None
            self._reader.check_known(record.schema_version)
            # Seen, also where it is refused below: a repetition of it is no other row.
            if not self.seen.take(record.row, update.offset):
                done.repeated += 1
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
        except StaleDescriptor:
            raise
        except KeyholeError as error:
            done.refused.append(RefusedUpdate(update, error))
            return None
        return _Found(key, row, self._reader.clears(record))

    def _check_size(self, key: bytes, row: StoredValue) -> None:
        if len(key) > self._limits.key_bytes:
            raise KeyTooLong(
                f"a key of state {self._name} takes {len(key)} bytes; the store takes {self._limits.key_bytes}",
                bytes=len(key),
                limit=self._limits.key_bytes,
            )
        if row is not None and len(row) > self._limits.row_bytes:
            raise TooLarge(
                f"a row of state {self._name} takes {len(row)} bytes; the changelog takes {self._limits.row_bytes}",
                bytes=len(row),
                limit=self._limits.row_bytes,
            )

    def _merge_run(self, run: _Run, stored: Snapshot, done: AppliedUpdates) -> None:
        """Merges what has come together, and empties the run."""
        rows, updates = run.take()
        if not rows:
            return
        try:
            done.overlay = self._merged(rows, stored, done.overlay)
            done.applied += len(rows)
        except KeyholeError:
            # One of them can't be merged with what is stored (a sum leaves its type): it is refused, the others count.
            for (key, row), update in zip(rows.items(), updates, strict=True):
                try:
                    done.overlay = self._merged({key: row}, stored, done.overlay)
                    done.applied += 1
                except KeyholeError as error:
                    done.refused.append(RefusedUpdate(update, error))

    def _merged(self, rows: dict[bytes, StoredValue], stored: Snapshot, overlay: Overlay) -> Overlay:
        now = Moment(self.time_ms, 0)
        view = OverlaySnapshot(stored, overlay)
        return overlay.changed(self._merge.with_stored(rows, view, CommitContext(0, now, now)))


def _records(log: Iterable[LoggedUpdate]) -> Iterator[tuple[int, Record]]:
    """Those that are records of ours, with their offsets: the others were refused when they were applied."""
    for update in log:
        try:
            yield update.offset, decode(update.value)
        except ValueMismatch:
            continue


class _Found(NamedTuple):
    """What an update does: to one key, or (`clears`) to all that a key has."""

    key: bytes
    row: StoredValue
    clears: bool


class _Run:
    """Updates that are merged together: each is of another storage key."""

    def __init__(self) -> None:
        self.rows: dict[bytes, StoredValue] = {}
        self._updates: list[LoggedUpdate] = []

    def add(self, found: _Found, update: LoggedUpdate) -> None:
        self.rows[found.key] = found.row
        self._updates.append(update)

    def take(self) -> tuple[dict[bytes, StoredValue], list[LoggedUpdate]]:
        taken = self.rows, self._updates
        self.rows, self._updates = {}, []
        return taken

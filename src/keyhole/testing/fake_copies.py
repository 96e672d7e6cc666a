"""The copies of states that a fake state server answers from: in memory, chosen and refused as a real server does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keyhole.clock import SystemClock
from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.entry_filter import StoredEntry
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.encoding.storage_key import GROUP_BYTES, are_storage_keys, group_of
from keyhole.errors import (
    EpochGone,
    EpochNotReached,
    KeyholeError,
    KeyTooLong,
    MalformedRequest,
    NotOwner,
    NotReady,
    TooStale,
    UnavailableError,
    Unconfirmed,
    Unsupported,
)
from keyhole.model.read import ReadBounds, Role, Stale
from keyhole.model.state import KEPT_EPOCHS, StateDescriptor
from keyhole.rpc import convert, status
from keyhole.rpc.requested_aggregates import RequestedAggregates
from keyhole.rpc.scan_requests import is_descending, selected_entries
from keyhole.v1 import predicate_pb2, state_pb2
from keyhole.v1 import query_pb2 as pb

MAX_KEY_BYTES = 511


class HostedChange(NamedTuple):
    """A change of a copy, as watches get it. `row` None: deleted; `before` None: there was nothing."""

    epoch: int
    key: bytes
    row: bytes | None
    before: bytes | None


@dataclass(eq=False)
class HostedState:
    """One copy of a state on the fake. Change it at will; call `FakeServer.changed` after a change of what ownership
    streams send.

    Attributes:
        confirmed: Owner: whether its coordinator was heard of within the lease.
        as_of_ms: Milliseconds since 1970, UTC; None: now, as a confirmed owner's is; 0: not known.
        earlier: The rows of epochs before the last one, as far as they are kept. `commit` fills it.
        changes: What was put and deleted, in this order: for watches.
        staged: What is staged of the next epoch, by storage key; None deletes. Reads of the latest have it. `stage`
            fills it, `commit` makes it of the last epoch, and who clears it aborts the epoch.
    """

    descriptor: StateDescriptor
    rows: dict[bytes, bytes] = field(default_factory=dict)
    key_groups: frozenset[int] = frozenset()
    ready: bool = True
    epoch: int = 1
    generation: int = 1
    assignment_version: int = 1
    role: Role = Role.OWNER
    confirmed: bool = True
    as_of_ms: int | None = None
    lag_epochs: int = 0
    earlier: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    changes: list[HostedChange] = field(default_factory=list)
    staged: dict[bytes, bytes | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.codec = StateCodec(self.descriptor)
        self.key_groups = self.key_groups or frozenset(range(self.descriptor.key_groups))

    def put(self, key: Any, row: bytes) -> None:
        """Sets the value of a key. `row`: as keyhole.encoding.row_codec.encode_row makes it."""
        self._put(self.codec.storage_key(key), row)

    def delete(self, key: Any) -> None:
        """Leaves the key without a value."""
        self._put(self.codec.storage_key(key), None)

    def _put(self, storage_key: bytes, row: bytes | None) -> None:
        self.changes.append(HostedChange(self.epoch, storage_key, row, self.rows.get(storage_key)))
        if row is None:
            self.rows.pop(storage_key, None)
        else:
            self.rows[storage_key] = row

    def stage(self, key: Any, row: bytes | None) -> None:
        """Sets the value of a key in the next epoch, which is not committed. `row`: as of `put`; None deletes."""
        self.staged[self.codec.storage_key(key)] = row

    def commit(self) -> None:
        """What is put from now on is of the next epoch, as is what was staged.

        Of those before, as many are kept as by a real server.
        """
        self.earlier[self.epoch] = dict(self.rows)
        self.epoch += 1
        for epoch in sorted(self.earlier)[: 1 - (self.descriptor.keep_epochs or KEPT_EPOCHS)]:
            del self.earlier[epoch]
        staged, self.staged = self.staged, {}
        for key, row in staged.items():
            self._put(key, row)

    def staged_epoch(self, key_group: int) -> int:
        """Of which epoch there is anything staged of a key group, where that may be read; 0: of none."""
        staged = self.role is Role.OWNER and self.confirmed and any(group_of(key) == key_group for key in self.staged)
        return self.epoch + 1 if staged else 0

    def rows_as_of(self, epoch: int) -> dict[bytes, bytes]:
        """The rows of an epoch that is kept; 0: of the last one."""
        return self.rows if epoch in (0, self.epoch) else self.earlier[epoch]

    def source(self, server: str, as_of: int = 0, staged_epoch: int = 0) -> state_pb2.Source:
        """The source that answers of this copy have now.

        Args:
            as_of: The epoch that was asked for; 0, and one that there is not yet: the last one.
            staged_epoch: Whose staged rows the answers hold, too; 0: none.
        """
        epoch = min(as_of or self.epoch, self.epoch)
        as_of_ms = _now_ms() if self.as_of_ms is None else self.as_of_ms
        return state_pb2.Source(
            server=server,
            role=state_pb2.ROLE_OWNER if self.role is Role.OWNER else state_pb2.ROLE_STANDBY,
            epoch=epoch,
            commit_time_ms=1_000 * epoch,
            generation=self.generation,
            assignment_version=self.assignment_version,
            unconfirmed=not self.confirmed,
            as_of_ms=min(as_of_ms, 1_000 * epoch) if as_of else as_of_ms,
            lag_epochs=self.lag_epochs + self.epoch - epoch,
            staged_epoch=staged_epoch,
        )

    def check(self, server: str, bounds: ReadBounds) -> None:
        """Passes where the copy meets the bounds. Raises EpochNotReached, TooStale, EpochGone or Unsupported."""
        if bounds.as_of and self.descriptor.updates_topic_id:
            raise Unsupported("the state is fed by updates: no epoch of it is kept")
        if bounds.as_of and self.epoch > bounds.as_of and bounds.as_of not in self.earlier:
            oldest = min(self.earlier, default=self.epoch)
            raise EpochGone(f"epoch {bounds.as_of} is no longer kept; the first one is {oldest}", oldest=oldest)
        # It has one epoch for all key groups.
        least = max([bounds.as_of, bounds.min_epoch, *(epoch for _, epoch in bounds.min_epochs)])
        if self.epoch < least:
            raise EpochNotReached(
                f"the state is at epoch {self.epoch} on server {server}; {'as_of' if bounds.as_of else 'min_epoch'} "
                f"asks for {least}",
                epoch=self.epoch,
            )
        age_ms = 0 if self.as_of_ms is None else _now_ms() - self.as_of_ms if self.as_of_ms else float("inf")
        if bounds.max_staleness_ms and age_ms > bounds.max_staleness_ms:
            raise TooStale(
                f"the copy of server {server} is {age_ms} ms old; max_staleness asks for {bounds.max_staleness_ms} ms",
                age_ms=age_ms,
            )


class StateCopies:
    """All copies of one state on one fake, and how they answer.

    Args:
        copies: At least one; what the server owns before what it follows.
        refuse: Every read is refused with it.
    """

    def __init__(self, server: str, copies: list[HostedState], refuse: KeyholeError | None) -> None:
        self._server = server
        self._refuse = refuse
        self.all = copies
        self.first = copies[0]
        self.descriptor = self.first.descriptor
        self.codec = self.first.codec

    def encoded(self, keys: list[pb.Key]) -> list[bytes]:
        """The storage keys of a request's keys."""
        return self.codec.storage_keys(map(convert.key_from_proto, keys))

    def check(self, keys: list[bytes]) -> None:
        """Passes where these are storage keys of the state. Raises MalformedRequest or KeyTooLong."""
        if keys and not are_storage_keys(keys, self.descriptor.key_groups):
            raise MalformedRequest("not storage keys of this state")
        if any(len(key) > MAX_KEY_BYTES for key in keys):
            raise KeyTooLong(f"a key is longer than the store takes: {MAX_KEY_BYTES} bytes, encoded")

    def lookup_apart(
        self, keys: list[bytes], options: pb.ReadOptions
    ) -> tuple[list[bytes], list[HostedState], list[pb.LookupFailure]]:
        """As `lookup`; where that is refused for now, key group by key group: those that can't be read fail alone."""
        try:
            return (*self.lookup(keys, options), [])
        except (UnavailableError, EpochGone):
            values, chosen = [b""] * len(keys), [self.first] * len(keys)
        failures = []
        for group in {key[:GROUP_BYTES] for key in keys}:
            indexes = [index for index, key in enumerate(keys) if key[:GROUP_BYTES] == group]
            try:
                part, of = self.lookup([keys[index] for index in indexes], options)
            except (UnavailableError, EpochGone) as error:
                failures.append(pb.LookupFailure(indexes=indexes, error=status.to_proto(error)))
                continue
            for index, value, state in zip(indexes, part, of, strict=True):
                values[index], chosen[index] = value, state
        return values, chosen, failures

    def lookup(self, keys: list[bytes], options: pb.ReadOptions) -> tuple[list[bytes], list[HostedState]]:
        """The values, and which copy each is of."""
        self.check(keys)
        chosen = self.chosen(keys, options)
        return [value_of(state, key, options) for key, state in zip(keys, chosen, strict=True)], chosen

    def chosen(self, keys: list[bytes], options: pb.ReadOptions) -> list[HostedState]:
        """The copy that answers each key, chosen before any is answered: one that can't be fails the request."""
        if self._refuse is not None:
            raise self._refuse
        bounds = convert.bounds_from_proto(options)
        chosen = [self._choose(group_of(key), bounds.stale) for key in keys]
        for state in self.all:
            if state in chosen:
                state.check(self._server, bounds)
        return chosen

    def _choose(self, key_group: int, stale: Stale) -> HostedState:
        having = [state for state in self.all if key_group in state.key_groups]
        for state in having:
            if not state.ready or (stale is Stale.NEVER and state.role is Role.STANDBY):
                continue
            if stale is Stale.NEVER and not state.confirmed:
                raise Unconfirmed(f"server {self._server} has not heard of its coordinator; a newer owner may exist")
            return state
        if any(not state.ready for state in having):
            raise NotReady(f"server {self._server} is restoring {self.descriptor.state}: 3 of 10 records")
        raise NotOwner(f"server {self._server} does not own that key group")


def entries_of(state: HostedState, within: EntryRange, request: pb.ScanRequest) -> list[tuple[bytes, bytes]]:
    """Map keys and values, as of now; none where aggregates are asked for."""
    if request.aggregates:
        return []
    select = selected_entries(state.descriptor, request)
    kept = _kept(state, within, request, select)
    values = select.values([row for _, row in kept])
    return [(key[len(within.prefix) :], value) for (key, _), value in zip(kept, values, strict=True)]


def aggregates_of(
    state: HostedState, within: EntryRange, request: pb.ScanRequest
) -> list[predicate_pb2.PartialAggregate]:
    """What is asked for of the same entries; nothing where entries are asked for."""
    if not request.aggregates:
        return []
    select = selected_entries(state.descriptor, request)
    asked = RequestedAggregates(state.descriptor, request, select)
    kept = _kept(state, within, request, select)
    asked.add([key for key, _ in kept], [row for _, row in kept])
    return asked.messages()


def _kept(
    state: HostedState, within: EntryRange, request: pb.ScanRequest, select: SelectedEntries
) -> Sequence[StoredEntry]:
    prefix, start, stop, _ = within
    group = prefix[:GROUP_BYTES]
    rows = state.rows_as_of(request.options.as_of_epoch)
    if staged_epoch_of(state, group, request.options):
        rows = {key: row for key, row in (rows | state.staged).items() if row is not None}
    found = sorted(
        (key, row)
        for key, row in rows.items()
        if key[:GROUP_BYTES] == group and start <= key and (stop is None or key < stop)
    )
    if within.is_of_map_keys:
        found = [(key, row) for key, row in found if within.has_map_key(key[state.codec.prefix_length(key) :])]
    if is_descending(request):
        found.reverse()
    return select.kept(found)[: request.limit or None]


def staged_epoch_of(state: HostedState, key: bytes, options: pb.ReadOptions) -> int:
    """Whose staged rows an answer has of a key, or of all keys that begin so; 0: none."""
    return state.staged_epoch(group_of(key)) if options.consistency == pb.CONSISTENCY_LATEST else 0


def value_of(state: HostedState, key: bytes, options: pb.ReadOptions) -> bytes:
    """The value in the request's format; empty: there is none."""
    row = state.rows_as_of(options.as_of_epoch).get(key, b"")
    if staged_epoch_of(state, key, options):
        row = state.staged.get(key, row) or b""
    return state.codec.rows.to_json(row).encode() if row and options.format == pb.VALUE_FORMAT_JSON else row


def _now_ms() -> int:
    return SystemClock().now_ms()

"""The read side of one state on this server. Used by the event loop's thread alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keyhole.clock import Clock
from keyhole.codec import StateCodec
from keyhole.errors import EpochNotReached, KeyholeError, KeyTooLong, MalformedRequest, NotOwner, NotReady
from keyhole.stores.base import Snapshot, Store
from keyhole.types import Position, StateDescriptor
from keyhole.v1 import query_pb2, state_pb2


@dataclass(frozen=True)
class Standing:
    """What the answers of a table stand for, apart from single key groups that are ahead of it."""

    epoch: int = 0
    commit_time_ms: int = 0
    watermark_ms: int = 0
    generation: int = 0
    assignment_version: int = 0


@dataclass
class Progress:
    """Of a restore: changelog records. Written by the restoring thread, read by others."""

    restored: int = 0
    total: int = 0


@dataclass
class Lease:
    """When the coordinator was last heard of. One per query, shared by its tables."""

    clock: Clock
    seconds: float
    confirmed_monotonic: float = field(default=float("-inf"))

    def confirm(self) -> None:
        self.confirmed_monotonic = self.clock.monotonic()

    @property
    def expired(self) -> bool:
        return self.clock.monotonic() - self.confirmed_monotonic > self.seconds


@dataclass(frozen=True)
class Answers:
    """Rows (None: absent) by key, and who answers: an index into `sources` per key; empty: sources[0] answered all."""

    rows: Sequence[bytes | None]
    sources: Sequence[state_pb2.Source]
    source_of: Sequence[int] = ()


class Table:
    """Answers lookups from the snapshot of the last published epoch.

    Published: `publish` swaps snapshot and standing in one step, so a lookup sees an epoch of this server whole.
    """

    def __init__(self, server: str, descriptor: StateDescriptor, store: Store, lease: Lease) -> None:
        self.descriptor = descriptor
        self.codec = StateCodec(descriptor)
        self.store = store
        self.progress = Progress()
        self.ready = False
        self.groups: frozenset[int] = frozenset()
        self._server = server
        self._lease = lease
        self._snapshot: Snapshot | None = None
        self._prefixes: frozenset[bytes] = frozenset()
        self._whole = False
        self._last_key_group = (descriptor.key_groups - 1).to_bytes(2, "big")
        self._ahead: dict[bytes, Standing] = {}
        self.standing = Standing()
        self._source: state_pb2.Source | None = None

    @property
    def name(self) -> str:
        return f"{self.descriptor.application}/{self.descriptor.state}"

    def publish(
        self, snapshot: Snapshot, groups: frozenset[int], standing: Standing, positions: Mapping[int, Position]
    ) -> None:
        """Makes an epoch visible.

        Args:
            groups: The key groups that may be read from now on.
            positions: Of these; those whose epoch is later than the standing's answer for themselves: an epoch that was
                committed here, and is not yet known to be complete.
        """
        if self._snapshot is not None:
            self._snapshot.close()
        self._snapshot = snapshot
        self.groups = groups
        self.standing = standing
        self._prefixes = frozenset(group.to_bytes(2, "big") for group in groups)
        self._whole = len(groups) == self.descriptor.key_groups
        self._ahead = {
            group.to_bytes(2, "big"): Standing(
                position.epoch,
                position.commit_time_ms,
                position.watermark_ms,
                # The owner's, not the marker's: readers prefer the owner of the highest generation and version.
                standing.generation,
                standing.assignment_version,
            )
            for group, position in positions.items()
            if position.epoch > standing.epoch
        }
        self._source = None

    def withdraw(self, groups: frozenset[int]) -> None:
        """Stops answering for key groups, at once."""
        self.groups -= groups
        self._prefixes = frozenset(group.to_bytes(2, "big") for group in self.groups)
        self._whole = len(self.groups) == self.descriptor.key_groups

    def lookup(self, keys: Sequence[bytes], min_epoch: int = 0) -> Answers:
        """Rows by storage key.

        Raises:
            MalformedRequest: Not storage keys of this state.
            KeyTooLong: A key longer than the store takes: it can't be there.
            NotOwner, NotReady: At least one key group isn't readable here.
            EpochNotReached: The standing is before `min_epoch`.
        """
        if not keys:
            return Answers((), (self.source(),))
        # One call in C each: a lookup frame has hundreds of keys.
        if min(map(len, keys)) <= 2 or max(keys)[:2] > self._last_key_group:
            raise MalformedRequest(f"not storage keys of state {self.name}: 2 bytes of key group, then the encoded key")
        if max(map(len, keys)) > self.store.max_key_bytes:
            raise KeyTooLong(
                f"a key of state {self.name} takes {max(map(len, keys))} bytes; the store takes "
                f"{self.store.max_key_bytes}, so no such key can be in it",
                limit=self.store.max_key_bytes,
            )
        if self._snapshot is None or not (self._whole or all(key[:2] in self._prefixes for key in keys)):
            raise self.refusal()
        if self._ahead:
            return self._lookup_ahead(keys, min_epoch)
        self._check_epoch(self.standing.epoch, min_epoch)
        return Answers(self._snapshot.get_many(keys), (self.source(),))

    def _lookup_ahead(self, keys: Sequence[bytes], min_epoch: int) -> Answers:
        assert self._snapshot is not None
        standings = [self._ahead.get(key[:2], self.standing) for key in keys]
        distinct = list(dict.fromkeys(standings))
        self._check_epoch(min(standing.epoch for standing in distinct), min_epoch)
        index = {standing: i for i, standing in enumerate(distinct)}
        return Answers(
            self._snapshot.get_many(keys),
            [self._source_of(standing) for standing in distinct],
            [index[standing] for standing in standings],
        )

    def _check_epoch(self, epoch: int, min_epoch: int) -> None:
        if epoch < min_epoch:
            raise EpochNotReached(
                f"state {self.name} is at epoch {epoch} on server {self._server}; min_epoch asks for {min_epoch}",
                epoch=epoch,
            )

    def refusal(self) -> KeyholeError:
        """Why key groups that are asked for can't be read here."""
        if not self.ready:
            done, total = self.progress.restored, self.progress.total
            return NotReady(
                f"server {self._server} is restoring state {self.name}: {done:,} of {total:,} changelog records",
                restored=done,
                records=total,
                server=self._server,
            )
        return NotOwner(f"server {self._server} does not own that key group of state {self.name}", server=self._server)

    def source(self) -> state_pb2.Source:
        """Of answers now; made anew only when something of it changes."""
        if self._source is None or self._source.unconfirmed != self._lease.expired:
            self._source = self._source_of(self.standing)
        return self._source

    def _source_of(self, standing: Standing) -> state_pb2.Source:
        return state_pb2.Source(
            server=self._server,
            role=state_pb2.ROLE_OWNER,
            epoch=standing.epoch,
            commit_time_ms=standing.commit_time_ms,
            watermark_ms=standing.watermark_ms,
            generation=standing.generation,
            assignment_version=standing.assignment_version,
            unconfirmed=self._lease.expired,
        )

    def holding(self, descriptor: state_pb2.StateDescriptor, *, sizes: bool) -> query_pb2.StateHolding:
        """What this server holds of the state. `sizes` reads them from the store."""
        size = self.store.size() if sizes else None
        return query_pb2.StateHolding(
            descriptor=descriptor,
            server=self._server,
            key_groups=sorted(self.groups),
            source=self.source(),
            entries=size.entries if size else 0,
            bytes=size.bytes if size else 0,
            ready=self.ready,
            restored_records=self.progress.restored,
            records_to_restore=self.progress.total,
        )

    def close(self) -> None:
        """Idempotent."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        self.groups, self._prefixes, self._whole = frozenset(), frozenset(), False

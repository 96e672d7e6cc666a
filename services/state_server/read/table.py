"""The read side of one state on this server. Used by the event loop's thread alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.envelope import Moment, visible
from keyhole.encoding.storage_key import are_storage_keys
from keyhole.errors import (
    EpochNotReached,
    KeyholeError,
    KeyTooLong,
    MalformedRequest,
    NotOwner,
    NotReady,
    TooStale,
    Unconfirmed,
)
from keyhole.metrics.counters import ReadCounts
from keyhole.model.epoch import Position
from keyhole.model.evolution import succeeds
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import StateDescriptor, TtlClock
from keyhole.rpc.frames import FRAME_BYTES
from keyhole.stores.base import Snapshot, Store
from keyhole.v1 import query_pb2, state_pb2
from services.state_server.counts import RowCounts
from services.state_server.read.copies import Answers, Copy, Lease, Scanned, Show, Standing

_ANY = ReadBounds()
# A row, and which of its copy's sources it has.
_NOT_READ = (None, -1)


@dataclass
class Progress:
    """Of a restore: changelog records. Written by the restoring thread, read by others."""

    restored: int = 0
    total: int = 0


class Table:
    """Answers lookups from snapshots: of the last published epoch for the key groups that this server owns, and of
    whatever it has followed so far for those of which it is a standby.

    A snapshot and what it stands for are swapped in one step, so a lookup sees an epoch of this server whole.
    """

    def __init__(self, server: str, descriptor: StateDescriptor, store: Store, lease: Lease) -> None:
        self.store = store
        self._describe(descriptor)
        self.progress = Progress()
        self.reads = ReadCounts()
        self.rows = RowCounts()
        self.ready = False
        # What it was given, readable or not.
        self.assigned: frozenset[int] = frozenset()
        self.followed: frozenset[int] = frozenset()
        # Followed ones that have caught up.
        self.warm: frozenset[int] = frozenset()
        self._server = server
        self._lease = lease
        self._latest_ms = 0
        self.owned = Copy(descriptor.key_groups, self._owner_source, lambda: (lease.confirmed_ms, lease.expired))
        self.standby = Copy(descriptor.key_groups, self._standby_source, lambda: None)

    def _describe(self, descriptor: StateDescriptor) -> None:
        # First: where it can't be made, nothing has changed.
        self.codec = StateCodec(descriptor)
        self.descriptor = descriptor
        self._visible = visible(descriptor)
        self._expires_by_clock = bool(descriptor.ttl_ms) and descriptor.ttl_clock is TtlClock.PROCESSING_TIME

    def evolve(self, descriptor: StateDescriptor) -> bool:
        """The same state has another descriptor from now on. Returns False where that one is not news."""
        if descriptor == self.descriptor or not succeeds(descriptor, self.descriptor):
            return False
        self._describe(descriptor)
        return True

    @property
    def name(self) -> str:
        return f"{self.descriptor.application}/{self.descriptor.state}"

    @property
    def groups(self) -> frozenset[int]:
        """Those that it answers for as their owner."""
        return self.owned.groups

    @property
    def confirmed_ms(self) -> int:
        """When its coordinator was last heard of: milliseconds since 1970; 0: never."""
        return self._lease.confirmed_ms

    @property
    def standing(self) -> Standing:
        """The owner's."""
        return self.owned.standing

    def publish(
        self,
        snapshot: Snapshot,
        groups: frozenset[int],
        standing: Standing,
        positions: Mapping[int, Position],
        sequence: int = 0,
    ) -> None:
        """Makes an epoch of the owned key groups visible.

        Args:
            groups: The key groups that may be read from now on.
            positions: Of these; those whose epoch is later than the standing's answer for themselves: an epoch that was
                committed here, and is not yet known to be complete.
            sequence: See Copy.publish.
        """
        apart = {
            group: Standing(
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
        self.owned.publish(snapshot, groups, standing, apart, sequence)

    def withdraw(self, groups: frozenset[int]) -> None:
        """Stops answering for key groups as their owner, at once."""
        self.owned.withdraw(groups)

    def lookup(
        self,
        keys: Sequence[bytes],
        min_epoch: int = 0,
        stale: Stale = Stale.WHEN_NEEDED,
        max_staleness_ms: int = 0,
        most_bytes: int = FRAME_BYTES,
    ) -> Answers:
        """Rows by storage key; of what this server owns before what it follows.

        Args:
            max_staleness_ms: 0: any.
            most_bytes: The rows of the first keys, with which it is not exceeded; at least up to the first row.

        Raises:
            MalformedRequest: Not storage keys of this state.
            KeyTooLong: A key longer than the store takes: it can't be there.
            NotOwner, NotReady: At least one key group isn't readable here, or not by this policy.
            Unconfirmed: Only the owner may answer, and its lease has passed.
            EpochNotReached, TooStale: At least one key group stands before `min_epoch`, or is older than that.
        """
        if not keys:
            return Answers((), (self.owned.source(),))
        self._check(keys)
        if self.owned.covers(keys):
            if stale is Stale.NEVER and self._lease.expired:
                raise self._unconfirmed()
            return self._answers(self.owned, keys, min_epoch, max_staleness_ms, self.show(), most_bytes)
        if stale is Stale.NEVER:
            raise self.refusal()
        if self.standby.covers(keys):
            return self._answers(self.standby, keys, min_epoch, max_staleness_ms, self.show(), most_bytes)
        mine = [self.owned.holds(key) for key in keys]
        if not all(owned or self.standby.holds(key) for owned, key in zip(mine, keys, strict=True)):
            raise self.refusal()
        show = self.show()
        parts = [
            self._answers(copy, part, min_epoch, max_staleness_ms, show, most_bytes)
            for copy, is_owner in ((self.owned, True), (self.standby, False))
            if (part := [key for key, owned in zip(keys, mine, strict=True) if owned is is_owner])
        ]
        return _merged(parts[0], parts[1], mine)

    def scan(self, within: EntryRange, bounds: ReadBounds = _ANY, *, descending: bool = False) -> Scanned:
        """Entries of one key, of one epoch, which later ones don't change. Close it.

        Raises:
            KeyTooLong: A key longer than the store takes: no entry of it can be there.
            NotOwner, NotReady, Unconfirmed, EpochNotReached, TooStale: As `lookup`.
        """
        place = (within.prefix,)
        if self.descriptor.scan_key:  # else it is the key group itself, which no storage key can be
            self._check(place)
        copy = self.owned if self.owned.covers(place) else self.standby
        if bounds.stale is Stale.NEVER and copy is self.owned and self._lease.expired:
            raise self._unconfirmed()
        if not copy.covers(place) or (bounds.stale is Stale.NEVER and copy is not self.owned):
            raise self.refusal()
        standing = self._bounded(copy, place, bounds.min_epoch, bounds.max_staleness_ms)[0]
        return copy.scan(within, standing, self.show(), descending=descending)

    def show(self) -> Show | None:
        """How what is stored is shown from now on, in either copy; None: as it is.

        For all keys of a frame, whatever they stand for, the clock is asked once; and not where nothing expires by it.
        """
        visible = self._visible
        if visible is None:
            return None
        if self._expires_by_clock:
            # What has expired stays so, should the clock be set back.
            self._latest_ms = max(self._latest_ms, self._lease.clock.now_ms())
        now_ms = self._latest_ms
        # What had expired when the epoch was committed, by which it may have been removed or begun anew, is not shown
        # by a clock that is behind.
        return lambda standing: visible(Moment(max(now_ms, standing.commit_time_ms), standing.watermark_ms))

    def _check(self, keys: Sequence[bytes]) -> None:
        # One call in C each: a lookup frame has hundreds of keys.
        if not are_storage_keys(keys, self.descriptor.key_groups):
            raise MalformedRequest(f"not storage keys of state {self.name}: 2 bytes of key group, then the encoded key")
        if max(map(len, keys)) > self.store.max_key_bytes:
            raise self.key_too_long(max(map(len, keys)))

    def key_too_long(self, size: int) -> KeyTooLong:
        """Of a key of so many bytes."""
        return KeyTooLong(
            f"a key of state {self.name} takes {size} bytes; the store takes {self.store.max_key_bytes}, so no such "
            "key can be in it",
            limit=self.store.max_key_bytes,
        )

    def _answers(
        self,
        copy: Copy,
        keys: Sequence[bytes],
        min_epoch: int,
        max_staleness_ms: int,
        show: Show | None,
        most_bytes: int,
    ) -> Answers:
        return copy.answers(keys, self._bounded(copy, keys, min_epoch, max_staleness_ms), show, most_bytes)

    def _bounded(self, copy: Copy, keys: Sequence[bytes], min_epoch: int, max_staleness_ms: int) -> Sequence[Standing]:
        """What the copy stands for at these keys, if that is good enough."""
        standings = copy.standings(keys)
        if min_epoch:
            self._check_epoch(min(standing.epoch for standing in standings), min_epoch)
        if max_staleness_ms:
            self._check_staleness(copy, standings, max_staleness_ms)
        return standings

    def _check_epoch(self, epoch: int, min_epoch: int) -> None:
        if epoch < min_epoch:
            raise EpochNotReached(
                f"state {self.name} is at epoch {epoch} on server {self._server}; min_epoch asks for {min_epoch}",
                epoch=epoch,
            )

    def _check_staleness(self, copy: Copy, standings: Sequence[Standing], most_ms: int) -> None:
        age_ms = self._lease.age_seconds * 1000 if copy is self.owned else max(map(self._age_ms, standings))
        if age_ms > most_ms:
            said = "of unknown age" if age_ms == float("inf") else f"{age_ms:.0f} ms old"
            raise TooStale(
                f"what server {self._server} holds of state {self.name} is {said}; max_staleness asks for {most_ms} ms",
                age_ms=age_ms,
            )

    def _age_ms(self, standing: Standing) -> float:
        if not standing.as_of_ms:
            return float("inf")
        clock = self._lease.clock
        heard_ms = (clock.monotonic() - standing.heard_monotonic) * 1000
        return max(heard_ms, clock.now_ms() - standing.as_of_ms)

    def refusal(self) -> KeyholeError:
        """Why key groups that are asked for can't be read here."""
        if not self.ready and (self.assigned or not self.followed):
            done, total = self.progress.restored, self.progress.total
            return NotReady(
                f"server {self._server} is restoring state {self.name}: {done:,} of {total:,} changelog records",
                restored=done,
                records=total,
                server=self._server,
            )
        return NotOwner(f"server {self._server} does not own that key group of state {self.name}", server=self._server)

    def _unconfirmed(self) -> Unconfirmed:
        age = self._lease.age_seconds
        heard = f"for {age:.1f} s" if age != float("inf") else "at all"
        return Unconfirmed(
            f"server {self._server} owns that key group of state {self.name}, but has not heard of its coordinator "
            f"{heard}: a newer owner may exist. Read with stale=when_needed, or wait until the job runs again",
            server=self._server,
        )

    def source(self) -> state_pb2.Source:
        """Of the owner's answers now."""
        return self.owned.source()

    def _owner_source(self, standing: Standing) -> state_pb2.Source:
        return self._source(
            state_pb2.ROLE_OWNER, standing, as_of_ms=self._lease.confirmed_ms, unconfirmed=self._lease.expired
        )

    def _standby_source(self, standing: Standing) -> state_pb2.Source:
        return self._source(state_pb2.ROLE_STANDBY, standing, as_of_ms=standing.as_of_ms, unconfirmed=False)

    def _source(
        self, role: state_pb2.Role.ValueType, standing: Standing, *, as_of_ms: int, unconfirmed: bool
    ) -> state_pb2.Source:
        return state_pb2.Source(
            server=self._server,
            role=role,
            epoch=standing.epoch,
            commit_time_ms=standing.commit_time_ms,
            watermark_ms=standing.watermark_ms,
            generation=standing.generation,
            assignment_version=standing.assignment_version,
            unconfirmed=unconfirmed,
            as_of_ms=as_of_ms,
            lag_epochs=standing.lag_epochs,
        )

    def holdings(self, descriptor: state_pb2.StateDescriptor, *, sizes: bool) -> list[query_pb2.StateHolding]:
        """What this server holds of the state, one per role. `sizes` reads them from the store; they are of both."""
        size = self.store.size() if sizes else None

        def holding(copy: Copy, ready: bool) -> query_pb2.StateHolding:
            return query_pb2.StateHolding(
                descriptor=descriptor,
                server=self._server,
                key_groups=sorted(copy.groups),
                source=copy.source(),
                entries=size.entries if size else 0,
                bytes=size.bytes if size else 0,
                ready=ready,
                restored_records=self.progress.restored,
                records_to_restore=self.progress.total,
            )

        found = []
        if self.assigned or not self.followed:
            found.append(holding(self.owned, self.ready))
        # Also while they are being taken over: until then they are answered from what was followed.
        if self.followed or self.standby.groups:
            found.append(holding(self.standby, self.followed <= self.standby.groups))
        return found

    def close(self) -> None:
        """Idempotent."""
        self.owned.close()
        self.standby.close()
        self.assigned = self.followed = frozenset()


def _merged(owned: Answers, followed: Answers, mine: Sequence[bool]) -> Answers:
    """Two copies' answers in the order of the keys, as long as both have them; `mine` says which came from the
    owner's.
    """
    first = len(owned.sources)
    owners = iter(zip(owned.rows, owned.source_of or [0] * len(owned.rows), strict=True))
    others = iter(zip(followed.rows, followed.source_of or [0] * len(followed.rows), strict=True))
    rows, source_of = [], []
    for is_mine in mine:
        row, source = next(owners if is_mine else others, _NOT_READ)
        if source < 0:
            break
        rows.append(row)
        source_of.append(source if is_mine else first + source)
    return Answers(rows, [*owned.sources, *followed.sources], source_of, large=True)

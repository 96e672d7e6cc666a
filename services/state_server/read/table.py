"""The read side of one state on this server. Used by the event loop's thread alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.envelope import Visible
from keyhole.encoding.index_ranges import IndexedValues
from keyhole.encoding.key_reading import key_length
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.errors import KeyholeError, NotOwner, NotReady, Unsupported
from keyhole.metrics.counters import ReadCounts
from keyhole.model.epoch import EpochStamp, Position
from keyhole.model.evolution import succeeds
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import KEPT_EPOCHS, StateDescriptor
from keyhole.rpc.frames import FRAME_BYTES
from keyhole.stores.base import Snapshot, Store
from keyhole.v1 import state_pb2
from services.state_server.counts import RowCounts
from services.state_server.read.bounds_check import BoundsCheck
from services.state_server.read.committed_rows import CommittedRows
from services.state_server.read.copies import Copy, Scanned, Show
from services.state_server.read.copy_answers import CopyAnswers, merged
from services.state_server.read.feed_progress import FeedProgress
from services.state_server.read.given_groups import GivenGroups
from services.state_server.read.indexed_scans import IndexedScan, IndexRule
from services.state_server.read.key_check import KeyCheck
from services.state_server.read.sources import Sources
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.visibility import Visibility
from services.state_server.read.watched_changes import Changes

_ANY = ReadBounds()


@dataclass
class RestoreProgress:
    """Of a restore: changelog records. Written by the restoring thread, read by others."""

    restored: int = 0
    total: int = 0


class Table:
    """Answers lookups from snapshots: of the last published epoch for the key groups that this server owns, and of
    whatever it has followed so far for those of which it is a standby.

    A snapshot and what it stands for are swapped in one step, so a lookup sees an epoch of this server whole.

    Attributes:
        given: What this server was given of the state, to own and to follow.
        keys: Which keys can be asked for.
        lease: By which the owner's answers are confirmed.
        committed: What is committed, for those who watch.
        changes: What changes, for them.
        feed: How far updates are applied; None: the state is not fed by updates.
        index_rule: When its scans use an index.
    """

    def __init__(self, server: str, descriptor: StateDescriptor, store: Store, lease: Lease) -> None:
        self.server = server
        self.store = store
        self.codec = StateCodec(descriptor)
        self.descriptor = descriptor
        self.index_rule = IndexRule()
        self.progress = RestoreProgress()
        self.feed: FeedProgress | None = None
        self.changes = Changes()
        self.reads = ReadCounts()
        self.rows = RowCounts()
        self.lease = lease
        # Of the columns of a state's key no descriptor has others.
        self._key_length = key_length(descriptor.scan_key)
        self._visibility = Visibility(descriptor, lease.clock)
        by_updates = bool(descriptor.updates_topic_id)
        sources = Sources(server, lease, by_updates=by_updates)
        groups, name = descriptor.key_groups, self.name
        bounds = BoundsCheck(server, name, lease, by_lease=not by_updates)
        self.owned = Copy(groups, sources.owner, sources.moment, bounds, _kept_epochs(descriptor))
        self.standby = Copy(groups, sources.standby, lambda: None, BoundsCheck(server, name, lease, by_lease=False))
        self.given = GivenGroups(self.owned, self.standby)
        self.keys = KeyCheck(name, groups, store.max_key_bytes)
        self.committed = CommittedRows(store, self.owned, self._visibility, by_updates=by_updates)

    def evolve(self, descriptor: StateDescriptor) -> bool:
        """The same state has another descriptor from now on. Returns False where that one is not news."""
        if descriptor == self.descriptor or not succeeds(descriptor, self.descriptor):
            return False
        # First: where it can't be made, nothing has changed.
        self.codec = StateCodec(descriptor)
        self.descriptor = descriptor
        self._visibility.describe(descriptor)
        self.owned.kept.keep_at_most(_kept_epochs(descriptor))
        return True

    @property
    def name(self) -> str:
        return self.descriptor.path

    @property
    def groups(self) -> frozenset[int]:
        """The key groups that it answers for as their owner."""
        return self.owned.groups

    @property
    def confirmed_ms(self) -> int:
        """When its coordinator was last heard of: milliseconds since 1970; 0: never."""
        return self.lease.confirmed_ms

    @property
    def complete_ms(self) -> int:
        """All that was committed by then is published, and was given to the watchers: milliseconds since 1970.

        Of a state that is fed by updates also where its lease has passed: nobody has committed what its log lacked.
        """
        return max(self.lease.complete_ms, 0 if self.feed is None else self.feed.complete_ms)

    @property
    def standing(self) -> Standing:
        """What the owned copy stands for: the epoch as of which it is published."""
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
            # The generation is the owner's, not the marker's: readers prefer the owner of the highest one and version.
            group: dataclasses.replace(
                standing, stamp=msgspec.structs.replace(position.stamp, generation=standing.stamp.generation)
            )
            for group, position in positions.items()
            if position.epoch > standing.stamp.epoch
        }
        self.owned.publish(snapshot, groups, standing, apart, sequence)

    def publish_applied(
        self,
        snapshot: Snapshot,
        groups: frozenset[int],
        standing: Standing,
        standings: Mapping[int, Standing],
        sequence: int,
    ) -> None:
        """As `publish`, of a state that is fed by updates: each key group stands for itself.

        Args:
            standings: Of these key groups; generation and version are those of `standing`.
        """
        self.owned.publish(snapshot, groups, standing, _owners(standings, standing), sequence)

    def publish_changes(self, snapshot: Snapshot, standings: Mapping[int, Standing], over: int, sequence: int) -> bool:
        """As `publish_applied`, of what has changed since the view `over`: other key groups stand where they stood.

        Returns:
            Whether it is visible. Not where another view is: the snapshot is the caller's then.
        """
        return self.owned.publish_changes(snapshot, _owners(standings, self.standing), over, sequence)

    def lookup(
        self,
        keys: Sequence[bytes],
        bounds: ReadBounds = _ANY,
        most_bytes: int = FRAME_BYTES,
    ) -> CopyAnswers:
        """Rows by storage key; of what this server owns before what it follows.

        Args:
            most_bytes: The rows of the first keys, with which it is not exceeded; at least up to the first row.

        Raises:
            MalformedRequest: Not storage keys of this state.
            KeyTooLong: A key longer than the store takes: it can't be there.
            NotOwner, NotReady: At least one key group isn't readable here, or not by this policy.
            Unconfirmed: Only the owner may answer, and its lease has passed.
            EpochNotReached, TooStale: At least one key group stands before `min_epoch`, or is older than that.
            EpochNotReached, EpochGone: At least one key group has not come to `as_of`, or is not kept as of it.
            Unsupported: `as_of`, of a state that is fed by updates.
        """
        self._check_as_of(bounds)
        if not keys:
            return CopyAnswers((), (self.source(),))
        self.keys.check(keys)
        show = self._visibility.show()
        if self.owned.covers(keys):
            return self.owned.answers(keys, bounds, show, most_bytes)
        if bounds.stale is Stale.NEVER:
            raise self.refusal()
        if self.standby.covers(keys):
            return self.standby.answers(keys, bounds, show, most_bytes)
        mine = [self.owned.holds(key) for key in keys]
        if not all(owned or self.standby.holds(key) for owned, key in zip(mine, keys, strict=True)):
            raise self.refusal()
        parts = [
            copy.answers(part, bounds, show, most_bytes)
            for copy, is_owner in ((self.owned, True), (self.standby, False))
            if (part := [key for key, owned in zip(keys, mine, strict=True) if owned is is_owner])
        ]
        return merged(parts[0], parts[1], mine)

    def scan(
        self,
        within: EntryRange,
        bounds: ReadBounds = _ANY,
        *,
        descending: bool = False,
        indexed: Sequence[IndexedValues] = (),
        limit: int = 0,
    ) -> Scanned:
        """Entries of one key, or of a key group, of one epoch, which later ones don't change. Close it.

        Args:
            indexed: What the caller selects by; what has other values may be left out.
            limit: How many of those the caller takes at most; 0: all.

        Raises:
            KeyTooLong: A key longer than the store takes: no entry of it can be there.
            NotOwner, NotReady, Unconfirmed, EpochNotReached, TooStale, EpochGone, Unsupported: As `lookup`.
        """
        self._check_as_of(bounds)
        place = (within.prefix,)
        if len(within.prefix) > GROUP_BYTES:  # else it is the key group itself, which no storage key can be
            self.keys.check(place)
        if self.owned.covers(place):
            copy = self.owned
        elif bounds.stale is not Stale.NEVER and self.standby.covers(place):
            copy = self.standby
        else:
            raise self.refusal()
        show, found = self._visibility.show(), None
        # The entries of one key, or of some map keys under each, are fewer than what an index would find.
        if len(within.prefix) == GROUP_BYTES and not within.is_of_map_keys:
            found = self.by_index(indexed, limit)
        return copy.scan(within, bounds, show, self._key_length, descending=descending, indexed=found)

    def by_index(self, indexed: Sequence[IndexedValues], limit: int = 0) -> IndexedScan | None:
        """What finds rows of any of its snapshots by an index; None: nothing is asked of one.

        Args:
            limit: How many are wanted at most; 0: all.
        """
        return IndexedScan(indexed, limit, self.index_rule, self.reads.indexed) if indexed else None

    def _check_as_of(self, bounds: ReadBounds) -> None:
        if bounds.as_of and self.descriptor.updates_topic_id:
            raise Unsupported(
                f"state {self.name} is fed by updates: each key group has epochs of its own, and none is kept. Read it "
                "without as_of",
            )

    def show(self, stamp: EpochStamp) -> Visible | None:
        """How what is stored is shown now, in a copy that stands for this epoch; None: as it is."""
        show: Show | None = self._visibility.show()
        return None if show is None else show(stamp)

    def refusal(self) -> KeyholeError:
        """Why key groups that are asked for can't be read here."""
        if not self.given.ready and (self.given.assigned or not self.given.followed):
            done, total = self.progress.restored, self.progress.total
            return NotReady(
                f"server {self.server} is restoring state {self.name}: {done:,} of {total:,} changelog records",
                restored=done,
                records=total,
                server=self.server,
            )
        return NotOwner(f"server {self.server} does not own that key group of state {self.name}", server=self.server)

    def source(self) -> state_pb2.Source:
        """The source of the owner's answers now; of the oldest of them."""
        return self.owned.whole_source()

    def close(self) -> None:
        """Lets go of all snapshots; no key is answered from then on. Idempotent."""
        self.owned.close()
        self.standby.close()
        self.given.close()
        self.changes.close()


def _kept_epochs(descriptor: StateDescriptor) -> int:
    """How many epochs readers may ask for. Of what is fed by updates there is none: each update would be one."""
    return 1 if descriptor.updates_topic_id else descriptor.keep_epochs or KEPT_EPOCHS


def _owners(standings: Mapping[int, Standing], owner: Standing) -> dict[int, Standing]:
    """These, by the generation and the assignment of their owner."""
    generation, version = owner.stamp.generation, owner.assignment_version
    return {
        group: dataclasses.replace(
            of, stamp=msgspec.structs.replace(of.stamp, generation=generation), assignment_version=version
        )
        for group, of in standings.items()
    }

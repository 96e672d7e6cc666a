"""One state that is fed by updates: its key groups are applied as their logs come, and committed behind that.

    apply        records of any key groups        -> what readers see moves on at once
    begin_commit what was applied since the last  -> one transaction of the changelog, written on any thread
    apply        goes on meanwhile
    committed    the transaction's rows go to the store, and no longer stand over it

Host thread only, but for the transaction itself: it needs nothing of what is here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.changelog.settings import MAX_ROW_BYTES
from keyhole.encoding.envelope import layout_of
from keyhole.errors import StaleDescriptor
from keyhole.model.epoch import EpochStamp
from keyhole.protocol.seen import FeedPosition, resumed
from keyhole.protocol.updates import LoggedUpdate
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.group_feed import GroupFeed, RefusedUpdate, UpdateLimits
from services.state_server.write.store_write import write_to_stores
from services.state_server.write.update_keys import UpdateKeys

# Of the changelog's largest record, for all that stands around a row, and its key.
_ROOM_BYTES = 64 << 10
# A commit looks at about so many entries for what has expired, 1 ms (see ttl_gc), and at so many of a key group.
_SWEPT, _SWEPT_OF_GROUP = 2_000, 50


@dataclass
class FeedCounts:
    """What came of updates: see AppliedUpdates.

    Attributes:
        refused: By key group, each in the order of its log.
        assumed: How many rows' numbers were given up: see SeenRows. It should be 0.
        failed: By key group that was dropped, why: its updates could not be applied.
    """

    applied: int = 0
    repeated: int = 0
    assumed: int = 0
    refused: dict[int, list[RefusedUpdate]] = field(default_factory=dict)
    waits_for: StaleDescriptor | None = None
    failed: dict[int, Exception] = field(default_factory=dict)


@dataclass(frozen=True)
class FeedCommit:
    """What is to be written to the changelog in one transaction.

    Attributes:
        changes: By key group, ascending: rows, and a marker with the position.
        overlay: What stood over the store when it was made.
        feeds: By key group, what it was made of: another one of the same number is another owner's time.
        tenures: By key group, in which of its times as owned (KeyGroups.tenure).
    """

    changes: Sequence[PartitionChanges]
    overlay: Overlay
    feeds: Mapping[int, GroupFeed]
    tenures: Mapping[int, int]


class StateFeed:
    """See the module's text.

    Args:
        state: Whose store, and positions, the rows go to.
        topic: Kafka's id of the updates topic.
    """

    def __init__(self, state: StateReplica, topic: str) -> None:
        self._state = state
        self._topic = topic
        self._limits = UpdateLimits(state.store.max_key_bytes, MAX_ROW_BYTES - _ROOM_BYTES)
        self._groups: dict[int, GroupFeed] = {}
        self._committed: dict[int, int] = {}
        self._overlay = Overlay()
        self._keys = UpdateKeys(state.descriptor)

    def begin(self, key_group: int, position: FeedPosition, log_start: int) -> None:
        """A key group, which is restored from the changelog, is applied from now on.

        Args:
            position: As the changelog's last marker of it says; where there is none, FeedPosition().
            log_start: The first offset that the updates partition still has.

        Raises:
            Unsupported: The state can't be fed by updates.
            ChangelogRecreated: The updates that are needed are not there any more.
        """
        position = resumed(position, self._topic, log_start)
        feed = GroupFeed(self._state.descriptor, key_group, position, self._topic, self._limits, self._keys)
        self._groups[key_group] = feed
        self._committed[key_group] = position.next
        self._overlay = self._overlay.drop([key_group])

    def evolve(self) -> None:
        """The state has another descriptor. To be called where nothing is uncommitted, between two polls."""
        for feed in self._groups.values():
            feed.evolve(self._state.descriptor)

    def end(self, key_groups: Collection[int]) -> None:
        """These are somebody else's: what was applied of them, and not committed, is dropped."""
        for group in key_groups:
            self._groups.pop(group, None)
            self._committed.pop(group, None)
        self._overlay = self._overlay.drop(key_groups)

    @property
    def key_groups(self) -> Collection[int]:
        """Those whose logs are applied now."""
        return self._groups.keys()

    def next_of(self, key_group: int) -> int:
        """The next offset of its updates partition to apply."""
        return self._groups[key_group].next

    def reads_of(self, key_group: int) -> int:
        """The next offset to read: behind `next_of` where what was seen is not known again yet."""
        return self._groups[key_group].reads

    def committed_of(self, key_group: int) -> int:
        """The next offset of its updates partition that is not committed."""
        return self._committed[key_group]

    def is_committed(self, key_group: int) -> bool:
        """All that was applied of it is committed, and in the store. True also of one that is not here."""
        feed = self._groups.get(key_group)
        return feed is None or feed.next == self._committed[key_group]

    def time_ms(self, key_group: int) -> int:
        """The latest timestamp of its log so far."""
        return self._groups[key_group].time_ms

    @property
    def clean(self) -> bool:
        """All that was applied is committed, and in the store."""
        return not self._overlay and all(feed.next == self._committed[group] for group, feed in self._groups.items())

    @property
    def overlay(self) -> Overlay:
        """What stands over the store."""
        return self._overlay

    @property
    def uncommitted(self) -> int:
        """How many rows stand over the store."""
        return len(self._overlay)

    def apply(self, logs: Mapping[int, Sequence[LoggedUpdate]]) -> FeedCounts:
        """Applies records by key group, each log in its order. Those of key groups that are not here are passed over.

        A key group where that fails is dropped: begin it anew from the changelog. What came of the others counts.

        Returns:
            What came of them. Readers see it once `snapshot` is published.
        """
        counts = FeedCounts()
        stored = self._state.store.snapshot()
        try:
            for group, log in logs.items():
                feed = self._groups.get(group)
                if feed is None:
                    continue
                assumed = feed.seen.assumed
                try:
                    done = feed.apply(log, stored, self._overlay)
                except Exception as error:  # noqa: BLE001 - the others' dead letters must not be lost with it
                    self.end([group])
                    counts.failed[group] = error
                    continue
                self._overlay = done.overlay
                counts.applied += done.applied
                counts.repeated += done.repeated
                counts.assumed += feed.seen.assumed - assumed
                if done.refused:
                    counts.refused[group] = done.refused
                counts.waits_for = counts.waits_for or done.waits_for
        finally:
            stored.close()
        return counts

    def snapshot(self, instead: Mapping[int, Overlay] = MappingProxyType({})) -> OverlaySnapshot:
        """All that was applied, for readers; close it.

        Args:
            instead: What is to stand over the store in these key groups.
        """
        overlay = self._overlay
        for group, other in instead.items():
            overlay = overlay.with_group(group, other)
        return OverlaySnapshot(self._state.store.snapshot(), overlay)

    def moved(self, at_least: Mapping[int, int] = MappingProxyType({})) -> list[int]:
        """The key groups of which something was applied since their last commit, ascending.

        Args:
            at_least: By key group, below which epoch it is to be held back.
        """
        return sorted(
            group
            for group, feed in self._groups.items()
            if feed.next > self._committed[group] and feed.next >= at_least.get(group, 0)
        )

    def bytes_of(self, key_group: int) -> int:
        """What stands over the store in a key group: keys and rows."""
        return self._overlay.bytes_of(key_group)

    def begin_commit(
        self, generation: int, now_ms: int, key_groups: Collection[int] | None = None
    ) -> FeedCommit | None:
        """What was applied since the last commit; None: nothing. `committed` is called with it, or it is made again.

        What was refused must be in the dead-letter topic before: the commit says that it was taken.

        Args:
            generation: Of the feed's run.
            now_ms: By the owner's clock, milliseconds since 1970: the time of the commit, not of the log.
            key_groups: Of these; None: of all.
        """
        moved = [group for group in self.moved() if key_groups is None or group in key_groups]
        if not moved:
            return None
        self._sweep(moved)
        changes = [self._changes(group, generation, now_ms) for group in moved]
        feeds = {group: self._groups[group] for group in moved}
        return FeedCommit(changes, self._overlay, feeds, {of: self._state.groups.tenure(of) for of in moved})

    def _sweep(self, key_groups: Sequence[int]) -> None:
        """What has expired by the logs goes out of the store with the commit, a part of it each time."""
        entries = max(_SWEPT_OF_GROUP, _SWEPT // len(key_groups))
        stored = self._state.store.snapshot()
        try:
            for group in key_groups:
                self._overlay = self._groups[group].sweep(stored, self._overlay, entries)
        finally:
            stored.close()

    def _changes(self, group: int, generation: int, now_ms: int) -> PartitionChanges:
        feed = self._groups[group]
        # An epoch of this lane is an offset: it only grows, whoever applies the log.
        stamp = EpochStamp(epoch=feed.next, generation=generation, commit_time_ms=now_ms, watermark_ms=0)
        descriptor = self._state.descriptor
        marker = Marker(stamp, checksum=0, offsets_hash=0, layout=layout_of(descriptor), feed=feed.position())
        return PartitionChanges(Partition(descriptor.state, group), self._overlay.of(group), marker)

    def committed(self, commit: FeedCommit, offsets: Mapping[Partition, int]) -> None:
        """The changelog has it: its rows go to the store. Key groups that are somebody else's by now are passed over.
        One that has failed meanwhile is written: it begins anew from there.

        Commits come in their order; one that has come already changes nothing.

        Args:
            offsets: Of the markers.

        Raises:
            StoreFull: The store takes no more. What readers see is right all the same; call it again.
        """
        here = [changes for changes in commit.changes if self._is_new(commit, changes)]
        write_to_stores(here, offsets, {self._state.descriptor.state: self._state})
        applied = [changes for changes in here if changes.partition.key_group in self._groups]
        for changes in applied:
            self._committed[changes.partition.key_group] = changes.marker.stamp.epoch
        self._overlay = self._overlay.without(commit.overlay, [changes.partition.key_group for changes in applied])

    def _is_new(self, commit: FeedCommit, changes: PartitionChanges) -> bool:
        group, epoch = changes.partition.key_group, changes.marker.stamp.epoch
        if self._state.groups.tenure(group) != commit.tenures[group]:
            return False
        feed = self._groups.get(group)
        if feed is None:
            return epoch > self._state.position(group).epoch
        return feed is commit.feeds[group] and epoch > self._committed[group]

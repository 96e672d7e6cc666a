"""One state that is fed by updates, on a server that owns key groups of it: which are applied, from where, and shown.

Each key group that is owned is begun where its changelog's last marker says. Readers see it once it is applied up to
where its log ended then: what the owner before has shown is not taken back. Host thread only.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from keyhole.changelog.base import Partition, RefusedRecord, UpdatesRun
from keyhole.clock import Clock
from keyhole.errors import ConflictError, InternalError, KeyholeError, UnavailableError
from keyhole.model.epoch import EpochStamp
from keyhole.protocol.updates import LoggedUpdate
from keyhole.stores.base import Snapshot
from keyhole.stores.overlay import Overlay
from services.state_server.read.feed_progress import FeedProgress, GroupLag
from services.state_server.read.standing import Standing
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.failed_groups import FailedGroups
from services.state_server.write.fed_begin import Beginning, NewGroups
from services.state_server.write.fed_group import FedGroup
from services.state_server.write.state_feed import FeedCommit, FeedCounts, StateFeed

_log = logging.getLogger(__name__)


class FedState:
    """See the module's text.

    Attributes:
        state: Whose key groups they are; their rows go to its store.
        feed: What is applied.
        refused: Records that are not in the topic of dead letters yet, in their order.
        progress: What came of the updates, and how far they are applied. Any thread.
    """

    def __init__(self, state: StateReplica, clock: Clock) -> None:
        self.state = state
        self.topic_id = state.descriptor.updates_topic_id
        self.feed = StateFeed(state, self.topic_id)
        self.refused: list[RefusedRecord] = []
        self._clock = clock
        self._descriptor = state.descriptor
        self._groups: dict[int, FedGroup] = {}
        self._again = FailedGroups(state.groups.tenure, clock)
        # What a commit under way names, in which of its times as owned.
        self._in_commit: Mapping[int, int] = {}
        self._different = self._left = False
        self._arrived: Counter[int] = Counter()
        # Key groups whose standing is another one than readers were told; or any may be.
        self._changed: set[int] = set()
        self._restated = True
        self.progress = state.table.feed = FeedProgress(clock, self._lags)

    @property
    def name(self) -> str:
        return self.state.descriptor.state

    # --- which key groups ---------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Ends those that are not owned any more, or are owned anew. Idempotent."""
        groups = self.state.groups
        gone = [of for of, group in self._groups.items() if groups.tenure(of) != group.tenure]
        self._end(gone)
        self._again.leave()
        self._left |= bool(gone)

    def take_left(self) -> bool:
        """Whether any ended so since this was asked last."""
        left, self._left = self._left, False
        return left

    def _end(self, key_groups: Sequence[int]) -> None:
        self.feed.end(key_groups)
        self._restated |= bool(key_groups)
        for of in key_groups:
            self._groups.pop(of, None)
        self.refused = [one for one in self.refused if one.partition.key_group in self._groups]

    @property
    def _unbegun(self) -> Collection[int]:
        return self.state.groups.owned - self._groups.keys()

    @property
    def new(self) -> NewGroups | None:
        """Key groups that are owned, and can be begun now; None: there are none.

        One that a commit under way names can't: where its changelog ends is not known yet.
        """
        tenure = self.state.groups.tenure
        found = [
            of for of in sorted(self._unbegun) if self._in_commit.get(of) != tenure(of) and self._again.may_begin(of)
        ]
        if not found:
            return None
        at = {of: self.state.position(of) for of in found}
        return NewGroups(self.name, self.topic_id, {of: tenure(of) for of in found}, at)

    def begin(self, beginning: Beginning) -> None:
        """Begins key groups, of those that are owned as they were when that was asked for. One whose updates are gone
        is refused alone."""
        for of, tenure in beginning.new.tenures.items():
            if of in self._groups or self.state.groups.tenure(of) != tenure or self._in_commit.get(of) == tenure:
                continue
            group = self._groups[of] = FedGroup(tenure, self._clock.monotonic())
            self._different = self._restated = True
            extent = beginning.extents[of]
            try:
                if beginning.lost is not None:
                    raise beginning.lost
                self.feed.begin(of, beginning.positions[of], extent.start)
            except KeyholeError as error:  # it is gone, or of another topic
                self.refuse(of, error)
                continue
            group.at = self.feed.reads_of(of)
            seen = self._again.begun(of)
            group.again = seen is not None
            group.shown_from = max(extent.end, seen or 0)
            self._reached(of, group, extent.end, extent.end)

    def refuse(self, key_group: int, error: KeyholeError) -> None:
        """Nothing more of it is applied; its last committed rows are what readers get."""
        group = self._groups.get(key_group)
        if group is None:
            return
        self.feed.end([key_group])
        self._again.there_again(key_group)
        group.why, group.shown, group.at_end = error, True, False
        self._different = self._restated = True
        _log.error(
            "updates of a key group are not applied any more",
            extra={"state": self.name, "key_group": key_group, "why": error.message},
        )

    def take_different(self) -> bool:
        """Whether any was begun or refused since this was asked last: readers are to see something else."""
        different, self._different = self._different, False
        return different

    def refuse_all(self, error: KeyholeError) -> None:
        """As `refuse`, of all that go on."""
        for of, group in list(self._groups.items()):
            if group.why is None:
                self.refuse(of, error)

    def fell_behind(self) -> None:
        """Reading was broken off: no log's end is known to be reached."""
        for group in self._groups.values():
            group.at_end = False

    # --- what is applied ----------------------------------------------------------------------------------------------

    @property
    def follows(self) -> dict[Partition, int]:
        """What is to be read, each from the offset of its next record."""
        return {
            Partition(self.name, of): group.at
            for of, group in self._groups.items()
            if group.why is None and not group.waits
        }

    @property
    def settled(self) -> bool:
        """All that is owned is shown, or there is nothing to wait for."""
        return not self._unbegun and all(group.settled for group in self._groups.values())

    @property
    def read_so_far(self) -> int:
        """Grows as records are read."""
        return sum(group.at for group in self._groups.values())

    def _lags(self) -> list[GroupLag]:
        """Any thread: no key group comes or goes while a dict is copied."""
        return [group.lag for group in list(self._groups.values())] + self._again.lags()

    def note(self, *, full: bool) -> None:
        """What is held until it is committed, for those who look from outside. `full`: it is too much."""
        self.progress.held_rows, self.progress.held_bytes, self.progress.full = self.held, self.held_bytes, full

    def apply(self, runs: Sequence[UpdatesRun]) -> bool:
        """Applies what has come. What does not follow on what was read before is passed over: it is read again.

        Returns:
            Whether readers are to see something else.
        """
        logs = {}
        for run in runs:
            of = run.partition.key_group
            group = self._groups.get(of)
            if group is None or group.why is not None or group.waits or run.start != group.at:
                continue
            logs[of] = run
        before = self.feed.overlay
        counts = self.feed.apply({of: run.updates for of, run in logs.items() if run.updates})
        self.refused += [
            RefusedRecord(Partition(self.name, of), one.update, one.why.message)
            for of, refused in counts.refused.items()
            for one in refused
        ]
        self._count(counts)
        for of, error in counts.failed.items():
            self._failed(of, error, before)
        different = bool(counts.failed)
        for of, run in logs.items():
            found = self._groups.get(of)
            if found is not None:
                was_shown = found.shown
                different |= self._moved(of, found, run)
                if was_shown:
                    self._arrived.update(_timestamps(run.updates, found.at))
        return different

    def take_arrived(self) -> Mapping[int, int]:
        """How many updates were applied, since this was asked last, of what readers see: by the broker's timestamp."""
        arrived, self._arrived = self._arrived, Counter()
        return arrived

    def _count(self, counts: FeedCounts) -> None:
        self.progress.applied += counts.applied
        self.progress.repeated += counts.repeated
        self.progress.refused += sum(map(len, counts.refused.values()))
        self.progress.assumed += counts.assumed

    def _failed(self, key_group: int, error: Exception, before: Overlay) -> None:
        """It begins anew from what was committed, and readers see what they saw before (`before`) until it is there
        again. Where it fails on the way once more, it is refused: but not for its store, which may be well again."""
        group = self._groups[key_group]
        passes = isinstance(error, UnavailableError | ConflictError)
        if not group.shown and group.again and not passes:
            self.refuse(key_group, InternalError(f"its updates can't be applied: {type(error).__name__}"))
            return
        _log.error(
            "updates of a key group could not be applied; it begins anew from its changelog",
            extra={"state": self.name, "key_group": key_group},
            exc_info=error,
        )
        self._again.add(key_group, group, before)
        self._end([key_group])

    def _moved(self, key_group: int, group: FedGroup, run: UpdatesRun) -> bool:
        reads = self.feed.reads_of(key_group)
        behind = run.updates[-1].offset + 1 if run.updates else run.start
        group.waits = reads < behind
        group.at = reads if group.waits else (behind if run.end is None else run.end)
        was_shown, was_at_end = group.shown, group.at_end
        self._reached(key_group, group, run.end, run.log_end if run.end is None else run.end)
        self._restated |= group.shown != was_shown
        # A record that changed nothing has an epoch all the same.
        different = bool(run.updates) or (was_shown, was_at_end) != (group.shown, group.at_end)
        if different and group.shown:
            self._changed.add(key_group)
        return different

    def _reached(self, key_group: int, group: FedGroup, end: int | None, log_end: int) -> None:
        # Trailing offsets that are no records have no update to be applied.
        following = self.feed.next_of(key_group)
        place = max(following, group.at)
        group.stamp = EpochStamp(following, 0, self.feed.time_ms(key_group), 0)
        group.shown = group.shown or place >= group.shown_from or group.waits
        group.at_end = end is not None and place >= end
        group.log_end = max(group.log_end, log_end)
        if group.shown:
            self._again.there_again(key_group)
        if group.at_end:
            group.reached_ms, group.reached_monotonic = self._clock.now_ms(), self._clock.monotonic()

    # --- what is shown ------------------------------------------------------------------------------------------------

    def shown(self) -> frozenset[int]:
        """The owned key groups that readers may be answered from."""
        owned = self.state.groups.owned
        shown = [of for of, group in self._groups.items() if group.shown and of in owned]
        return frozenset([*shown, *self._again.kept])

    def snapshot(self) -> Snapshot:
        """All that is applied; close it."""
        return self.feed.snapshot(self._again.overlays)

    def standings(self, key_groups: Iterable[int]) -> dict[int, Standing]:
        """What they stand for: an epoch is the offset of the next update, its time the last one's by the log.

        Their generation, and version, are 0: they are the owner's.
        """
        return {of: self._standing(of) for of in key_groups}

    def _standing(self, key_group: int) -> Standing:
        kept = self._again.standing(key_group)
        if kept is not None:
            return kept
        group = self._groups[key_group]
        stamp = group.stamp if group.why is None else self.state.position(key_group).stamp
        return Standing(stamp) if group.at_end else replace(group.behind, stamp=stamp)

    def take_changed(self) -> frozenset[int] | None:
        changed, self._changed = frozenset(self._changed), set()
        restated, self._restated = self._restated, False
        return None if restated else changed

    def restate(self, *, soon: bool) -> None:
        self._restated = True
        self._different |= soon

    # --- what is committed --------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """How many rows and dead letters are in memory until they are committed."""
        return self.feed.uncommitted + len(self.refused)

    @property
    def held_bytes(self) -> int:
        """Of these, without what they cost beside."""
        return self.feed.overlay.size_bytes + sum(len(one.update.value or b"") for one in self.refused)

    def begin_commit(self, generation: int, key_groups: Collection[int]) -> FeedCommit | None:
        """What was applied of these since the last one; see StateFeed.begin_commit. `commit_ended` comes after it."""
        commit = self.feed.begin_commit(generation, self._clock.now_ms(), key_groups)
        self._in_commit = {} if commit is None else commit.tenures
        return commit

    def commit_ended(self) -> None:
        """None is under way any more: what it wrote is in the store, or will never be read."""
        self._in_commit = {}
        # What is refused stands where its store is.
        self._restated |= any(group.why is not None for group in self._groups.values())

    def put_aside(self, written: Sequence[RefusedRecord]) -> None:
        """These are in the topic of dead letters."""
        gone = {id(one) for one in written}
        self.refused = [one for one in self.refused if id(one) not in gone]

    @property
    def evolving(self) -> bool:
        """The state has another descriptor, by which nothing is applied before all is committed."""
        return self.state.descriptor is not self._descriptor

    def evolve(self) -> bool:
        """Goes on by the state's new descriptor, if all is committed."""
        if not self.feed.clean:
            return False
        self._descriptor = self.state.descriptor
        self.feed.evolve()
        for group in self._groups.values():
            group.waits = False
        return True


def fed_states(hosted: Mapping[str, StateReplica]) -> list[FedState]:
    """Those of these states that are fed by updates. Any thread."""
    return [of.applied for of in hosted.values() if isinstance(of.applied, FedState)]


def _timestamps(updates: Sequence[LoggedUpdate], end: int) -> Iterator[int]:
    """Of those before this offset, without those that have none."""
    return (of.timestamp_ms for of in updates if of.timestamp_ms and of.offset < end)

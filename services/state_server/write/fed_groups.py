"""Which key groups of a state that is fed by updates are applied here, from where on, and how far each of them is.

Each that is owned is begun where its changelog's last marker says. Readers see it once it is applied up to where its
log ended then: what the owner before has shown is not taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from keyhole.changelog.base import Partition, UpdatesRun
from keyhole.clock import Clock
from keyhole.errors import ConflictError, InternalError, KeyholeError, UnavailableError
from keyhole.model.epoch import EpochStamp
from keyhole.stores.overlay import Overlay
from services.state_server.read.feed_progress import GroupLag
from services.state_server.replica.ends_asking import LogEnd
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.failed_groups import FailedGroups
from services.state_server.write.fed_begin import Beginning, NewGroups
from services.state_server.write.fed_group import FedGroup
from services.state_server.write.fed_view import FedView
from services.state_server.write.state_feed import StateFeed

_log = logging.getLogger(__name__)


class FedGroups:
    """See the module's text. Of one state. Host thread only, but for `lags`.

    Args:
        feed: What is applied of them.

    Attributes:
        topic_id: Kafka's, of the updates topic.
        view: What readers are answered from.
    """

    def __init__(self, state: StateReplica, feed: StateFeed, topic_id: str, clock: Clock) -> None:
        self.topic_id = topic_id
        self._state = state
        self._feed = feed
        self._clock = clock
        self._groups: dict[int, FedGroup] = {}
        self._again = FailedGroups(state.groups.tenure, clock)
        self.view = FedView(state, feed, self._groups, self._again)
        # What a commit under way names, in which of its times as owned.
        self._in_commit: Mapping[int, int] = {}

    @property
    def _name(self) -> str:
        return self._state.descriptor.state

    def __contains__(self, key_group: object) -> bool:
        """Whether it was begun, in its present time as owned; also one that was refused since."""
        return key_group in self._groups

    def leave(self) -> None:
        """Ends those that are not owned any more, or are owned anew. Idempotent."""
        groups = self._state.groups
        gone = [of for of, group in self._groups.items() if groups.tenure(of) != group.tenure]
        self._end(gone)
        self._again.leave()

    def _end(self, key_groups: Sequence[int]) -> None:
        self._feed.end(key_groups)
        if key_groups:
            self.view.restate(soon=False)
        for of in key_groups:
            self._groups.pop(of, None)

    @property
    def _unbegun(self) -> Collection[int]:
        return self._state.groups.owned - self._groups.keys()

    @property
    def new(self) -> NewGroups | None:
        """Key groups that are owned, and can be begun now; None: there are none.

        One that a commit under way names can't: where its changelog ends is not known yet.
        """
        tenure = self._state.groups.tenure
        found = [
            of for of in sorted(self._unbegun) if self._in_commit.get(of) != tenure(of) and self._again.may_begin(of)
        ]
        if not found:
            return None
        at = {of: self._state.position(of) for of in found}
        return NewGroups(self._name, self.topic_id, {of: tenure(of) for of in found}, at)

    def begin(self, beginning: Beginning) -> None:
        """Begins key groups, of those that are owned as they were when that was asked for. One whose updates are gone
        is refused alone."""
        for of, tenure in beginning.new.tenures.items():
            if of in self._groups or self._state.groups.tenure(of) != tenure or self._in_commit.get(of) == tenure:
                continue
            group = self._groups[of] = FedGroup(tenure, self._clock.monotonic())
            self.view.restate(soon=True)
            extent = beginning.extents[of]
            try:
                if beginning.lost is not None:
                    raise beginning.lost
                self._feed.begin(of, beginning.positions[of], extent.start)
            except KeyholeError as error:  # it is gone, or of another topic
                self.refuse(of, error)
                continue
            group.at = self._feed.reads_of(of)
            seen = self._again.begun(of)
            group.again = seen is not None
            group.shown_from = max(extent.end, seen or 0)
            group.ended(LogEnd(extent.end, beginning.asked_ms, beginning.asked_monotonic))
            self._reached(of, group, extent.end)

    def refuse(self, key_group: int, error: KeyholeError) -> None:
        """Nothing more of it is applied; its last committed rows are what readers get."""
        group = self._groups.get(key_group)
        if group is None:
            return
        if not self._feed.is_committed(key_group):
            group.reached = None  # what was applied is taken back
        self._feed.end([key_group])
        self._again.there_again(key_group)
        group.why, group.shown = error, True
        self.view.restate(soon=True)
        _log.error(
            "updates of a key group are not applied any more",
            extra={"state": self._name, "key_group": key_group, "why": error.message},
        )

    def refuse_all(self, error: KeyholeError) -> None:
        """As `refuse`, of all that go on."""
        for of, group in list(self._groups.items()):
            if group.why is None:
                self.refuse(of, error)

    def fail(self, key_group: int, error: Exception, before: Overlay) -> None:
        """It begins anew from what was committed, and readers see what they saw before (`before`) until it is there
        again. Where it fails on the way once more, it is refused: but not for its store, which may be well again."""
        group = self._groups[key_group]
        passes = isinstance(error, UnavailableError | ConflictError)
        if not group.shown and group.again and not passes:
            self.refuse(key_group, InternalError(f"its updates can't be applied: {type(error).__name__}"))
            return
        _log.error(
            "updates of a key group could not be applied; it begins anew from its changelog",
            extra={"state": self._name, "key_group": key_group},
            exc_info=error,
        )
        self._again.add(key_group, group, before)
        self._end([key_group])

    def go_on(self) -> None:
        """The state has another descriptor: none waits for it any more."""
        for group in self._groups.values():
            group.waits = False

    @property
    def follows(self) -> dict[Partition, int]:
        """What is to be read, each from the offset of its next record."""
        return {
            Partition(self._name, of): group.at
            for of, group in self._groups.items()
            if group.why is None and not group.waits
        }

    def follow(self, run: UpdatesRun) -> bool:
        """Whether these records come next of their key group, and can be applied."""
        group = self._groups.get(run.partition.key_group)
        return group is not None and group.why is None and not group.waits and run.start == group.at

    @property
    def settled(self) -> bool:
        """All that is owned is shown, or there is nothing to wait for."""
        return not self._unbegun and all(group.settled for group in self._groups.values())

    @property
    def read_so_far(self) -> int:
        """Grows as records are read."""
        return sum(group.at for group in self._groups.values())

    def lags(self) -> list[GroupLag]:
        """What each has not applied. Any thread: no key group comes or goes while a dict is copied."""
        return [group.lag for group in list(self._groups.values())] + self._again.lags()

    def moved(self, run: UpdatesRun) -> tuple[bool, int | None]:
        """These records of one that is begun were applied, or as many of them as can be.

        Returns:
            Whether readers are to see something else, and below which offset it is of records that they see; None: of
            none, as it was not shown.
        """
        key_group = run.partition.key_group
        group, reads = self._groups[key_group], self._feed.reads_of(key_group)
        behind = run.updates[-1].offset + 1 if run.updates else run.start
        group.waits = reads < behind
        group.at = reads if group.waits else (behind if run.end is None else run.end)
        was_shown, reached = group.shown, group.reached
        self._reached(key_group, group, run.log_end if run.end is None else run.end)
        if group.shown != was_shown:
            self.view.restate(soon=False)
        # A record that changed nothing has an epoch all the same.
        different = bool(run.updates) or was_shown != group.shown or reached is not group.reached
        if different and group.shown:
            self.view.moved(key_group)
        return different, group.at if was_shown else None

    def _reached(self, key_group: int, group: FedGroup, log_end: int) -> None:
        # Trailing offsets that are no records have no update to be applied.
        following = self._feed.next_of(key_group)
        place = max(following, group.at)
        group.apply_to(place)
        group.stamp = EpochStamp(following, 0, self._feed.time_ms(key_group), 0)
        group.shown = group.shown or place >= group.shown_from or group.waits
        group.log_end = max(group.log_end, log_end)
        if group.shown:
            self._again.there_again(key_group)

    @property
    def read(self) -> frozenset[int]:
        """Those whose logs are read, or wait to be."""
        return frozenset(of for of, group in self._groups.items() if group.why is None)

    def ended(self, ends: Mapping[int, LogEnd]) -> bool:
        """Their logs ended so when that was asked.

        Returns:
            Whether readers are to see another age.
        """
        different = False
        for of, end in ends.items():
            group = self._groups.get(of)
            if group is None or group.why is not None:
                continue
            before = group.reached
            group.ended(end)
            if group.shown and group.reached is not before:
                self.view.moved(of)
                different = True
        return different

    def stored_ms(self) -> dict[int, int]:
        """By owned key group, as of when all updates that there were are committed, and in the store.

        Returns:
            Milliseconds since 1970. Where that is not known, when it was committed last; 0: it never was.
        """
        found = {}
        for of in self._state.groups.owned:
            group = self._groups.get(of)
            if group is not None and group.why is None:
                # Trailing offsets that are no records are committed with the record before them.
                group.store_to(group.place if self._feed.is_committed(of) else self._feed.committed_of(of))
            stored = None if group is None else group.stored
            found[of] = self._state.position(of).stamp.commit_time_ms if stored is None else stored.ms
        return found

    def commit_begun(self, tenures: Mapping[int, int]) -> None:
        """A commit under way names these, in which of their times as owned."""
        self._in_commit = tenures

    def commit_ended(self) -> None:
        """None is under way any more."""
        self._in_commit = {}
        # What is refused stands where its store is.
        if any(group.why is not None for group in self._groups.values()):
            self.view.restate(soon=False)

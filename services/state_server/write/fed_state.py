"""One state that is fed by updates, on a server that owns key groups of it: which are applied, from where, and shown.

Each key group that is owned is begun where its changelog's last marker says. Readers see it once it is applied up to
where its log ended then: what the owner before has shown is not taken back. Host thread only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyhole.changelog.base import Changelog, LogExtent, Partition, RefusedRecord, UpdatesRun, UpdatesTopics
from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, InternalError, KeyholeError
from keyhole.model.epoch import START, EpochStamp
from keyhole.protocol.seen import FeedPosition
from keyhole.stores.base import Snapshot
from services.state_server.read.standing import Standing
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.state_feed import FeedCommit, StateFeed

_log = logging.getLogger(__name__)


@dataclass
class _Group:
    """A key group in one time as its owner.

    Attributes:
        tenure: Which time that is.
        at: The offset from which the next records are to come.
        shown_from: It is shown once it is applied up to there.
        shown: Readers are answered from it.
        at_end: All that its log had when it was read last is applied.
        reached_ms, reached_monotonic: When that was so last, by either clock; 0: never.
        why: Why nothing more of it is applied; None: it goes on.
        waits: Rules that are ahead of the descriptor come next.
        again: It has failed, and began anew.
    """

    tenure: int
    at: int = 0
    shown_from: int = 0
    shown: bool = False
    at_end: bool = False
    reached_ms: int = 0
    reached_monotonic: float = 0.0
    why: KeyholeError | None = None
    waits: bool = False
    again: bool = False

    @property
    def settled(self) -> bool:
        """It is shown, or nothing more comes that could be waited for."""
        return self.shown or self.why is not None or self.waits


class FedState:
    """See the module's text.

    Attributes:
        state: Whose key groups they are; their rows go to its store.
        feed: What is applied.
        refused: Records that are not in the topic of dead letters yet, in their order.
    """

    def __init__(self, state: StateReplica, clock: Clock) -> None:
        self.state = state
        self.topic_id = state.descriptor.updates_topic_id
        self.feed = StateFeed(state, self.topic_id)
        self.refused: list[RefusedRecord] = []
        self._clock = clock
        self._descriptor = state.descriptor
        self._groups: dict[int, _Group] = {}
        # Of key groups that failed: how far they were, which readers may have seen.
        self._shown_before: dict[int, int] = {}
        self._refusals = self._left = False

    @property
    def name(self) -> str:
        return self.state.descriptor.state

    # --- which key groups ---------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Ends those that are not owned any more, or are owned anew. Idempotent."""
        groups = self.state.groups
        gone = [of for of, group in self._groups.items() if groups.tenure(of) != group.tenure]
        self._end(gone)
        self._left |= bool(gone)

    def take_left(self) -> bool:
        """Whether any ended so since this was asked last."""
        left, self._left = self._left, False
        return left

    def _end(self, key_groups: Sequence[int]) -> None:
        self.feed.end(key_groups)
        for of in key_groups:
            self._groups.pop(of, None)
        self.refused = [one for one in self.refused if one.partition.key_group in self._groups]

    @property
    def new(self) -> list[int]:
        """Key groups that are owned, and not begun yet."""
        return sorted(self.state.groups.owned - self._groups.keys())

    def begin(self, positions: Mapping[int, FeedPosition], extents: Mapping[int, LogExtent]) -> None:
        """Begins key groups that are owned. One whose updates are gone is refused alone.

        Args:
            positions: As the changelog's last marker says.
            extents: Of their logs now.
        """
        for of, position in positions.items():
            group = self._groups[of] = _Group(self.state.groups.tenure(of))
            try:
                self.feed.begin(of, position, extents[of].start)
            except KeyholeError as error:  # it is gone, or of another topic
                self.refuse(of, error)
                continue
            group.at = self.feed.reads[of]
            group.again = of in self._shown_before
            group.shown_from = max(extents[of].end, self._shown_before.pop(of, 0))
            self._reached(of, group, extents[of].end)

    def refuse(self, key_group: int, error: KeyholeError) -> None:
        """Nothing more of it is applied; its last committed rows are what readers get."""
        group = self._groups.get(key_group)
        if group is None:
            return
        self.feed.end([key_group])
        group.why, group.shown, group.at_end = error, True, False
        self._refusals = True
        _log.error(
            "updates of a key group are not applied any more",
            extra={"state": self.name, "key_group": key_group, "why": error.message},
        )

    def take_refusals(self) -> bool:
        """Whether any was refused since this was asked last."""
        refusals, self._refusals = self._refusals, False
        return refusals

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
        return not self.new and all(group.settled for group in self._groups.values())

    @property
    def progress(self) -> int:
        """Grows as records are read."""
        return sum(group.at for group in self._groups.values())

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
        counts = self.feed.apply({of: run.updates for of, run in logs.items() if run.updates})
        self.refused += [
            RefusedRecord(Partition(self.name, of), one.update, one.why.message)
            for of, refused in counts.refused.items()
            for one in refused
        ]
        for of, error in counts.failed.items():
            self._failed(of, error)
        different = False
        for of, run in logs.items():
            found = self._groups.get(of)
            if found is not None:
                different |= self._moved(of, found, run)
        return different

    def _failed(self, key_group: int, error: Exception) -> None:
        """It begins anew from what was committed, and is not shown before it is where readers saw it. Where it fails
        there once more, it is refused."""
        group = self._groups[key_group]
        if not group.shown and group.again:
            self.refuse(key_group, InternalError(f"its updates can't be applied: {type(error).__name__}"))
            return
        _log.error(
            "updates of a key group could not be applied; it begins anew from its changelog",
            extra={"state": self.name, "key_group": key_group},
            exc_info=error,
        )
        self._shown_before[key_group] = max(group.shown_from, group.at)
        self._end([key_group])

    def _moved(self, key_group: int, group: _Group, run: UpdatesRun) -> bool:
        reads = self.feed.reads[key_group]
        behind = run.updates[-1].offset + 1 if run.updates else run.start
        group.waits = reads < behind
        group.at = reads if group.waits else (behind if run.end is None else run.end)
        was_shown, was_at_end = group.shown, group.at_end
        self._reached(key_group, group, run.end)
        # A record that changed nothing has an epoch all the same.
        return bool(run.updates) or (was_shown, was_at_end) != (group.shown, group.at_end)

    def _reached(self, key_group: int, group: _Group, end: int | None) -> None:
        # Trailing offsets that are no records have no update to be applied.
        place = max(self.feed.next[key_group], group.at)
        group.shown = group.shown or place >= group.shown_from or group.waits
        group.at_end = end is not None and place >= end
        if group.at_end:
            group.reached_ms, group.reached_monotonic = self._clock.now_ms(), self._clock.monotonic()

    # --- what is shown ------------------------------------------------------------------------------------------------

    def shown(self) -> frozenset[int]:
        """The owned key groups that readers may be answered from."""
        owned = self.state.groups.owned
        return frozenset(of for of, group in self._groups.items() if group.shown and of in owned)

    def snapshot(self) -> Snapshot:
        """All that is applied; close it."""
        return self.feed.snapshot()

    def standings(self, key_groups: Iterable[int]) -> dict[int, Standing]:
        """What they stand for: an epoch is the offset of the next update, its time the last one's by the log.

        Their generation, and version, are 0: they are the owner's.
        """
        return {of: self._standing(of, self._groups[of]) for of in key_groups}

    def _standing(self, key_group: int, group: _Group) -> Standing:
        if group.why is None:
            stamp = EpochStamp(self.feed.next[key_group], 0, self.feed.time_ms(key_group), 0)
        else:
            stamp = self.state.position(key_group).stamp
        if group.at_end:
            return Standing(stamp)
        # Behind its log: as of when it was not.
        return Standing(stamp, as_of_ms=group.reached_ms or 1, heard_monotonic=group.reached_monotonic)

    # --- what is committed --------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """How many rows and dead letters are in memory until they are committed."""
        return self.feed.uncommitted + len(self.refused)

    def begin_commit(self, generation: int) -> FeedCommit | None:
        """What was applied since the last one; see StateFeed.begin_commit."""
        return self.feed.begin_commit(generation, self._clock.now_ms())

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


def feed_positions(
    changelog: Changelog, state: StateReplica, key_groups: Sequence[int], deadline_seconds: float
) -> dict[int, FeedPosition]:
    """What the last marker of each key group says, up to which the store is restored.

    Raises:
        KafkaUnreachable: It can't be read in time.
    """
    name = state.descriptor.state
    found = dict.fromkeys(key_groups, FeedPosition())
    at = {Partition(name, of): state.position(of) for of in key_groups}
    again = {part: position._replace(offset=position.offset - 1) for part, position in at.items() if position != START}
    if not again:
        return found
    ends = {part: at[part].offset for part in again}
    with contextlib.closing(changelog.reader()) as reader:
        for piece in reader.read(again, ends, deadline_seconds):
            if piece.marker is not None and piece.marker.feed is not None:
                found[piece.partition.key_group] = piece.marker.feed
    return found


def begin_new(changelog: Changelog, topics: UpdatesTopics, fed: FedState, deadline_seconds: float) -> None:
    """Begins the key groups that are owned and not begun yet.

    Raises:
        KafkaUnreachable: Nothing has changed.
    """
    new = fed.new
    if not new:
        return
    positions = feed_positions(changelog, fed.state, new, deadline_seconds)
    try:
        found = topics.extents({fed.name: new}, deadline_seconds)
        if topics.lost({fed.name: fed.topic_id}, deadline_seconds):
            raise ChangelogRecreated(
                f"the updates topic of state {fed.name} is gone, or was made anew: drop the state and feed it from the "
                "start",
                state=fed.name,
            )
    except ChangelogRecreated as error:
        fed.begin(positions, dict.fromkeys(new, LogExtent(0, 0)))
        for of in new:
            fed.refuse(of, error)
        return
    fed.begin(positions, {part.key_group: extent for part, extent in found.items()})

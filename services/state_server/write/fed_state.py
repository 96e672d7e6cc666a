"""One state that is fed by updates, on a server that owns key groups of it: what is applied, shown and committed of it.

    fed_groups.py   which key groups are applied, from where on, and how far each is
    here            what has come is applied, counted, and held until it is committed
    fed_view.py     what readers are answered from

The loops of a query go through here, state by state: owner_loop.py applies, feed_commits.py commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from keyhole.changelog.base import Partition, RefusedRecord, UpdatesRun
from keyhole.clock import Clock
from keyhole.protocol.updates import LoggedUpdate
from keyhole.stores.base import Snapshot
from services.state_server.read.feed_progress import FeedProgress
from services.state_server.read.standing import Standing
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.fed_groups import FedGroups
from services.state_server.write.fed_room import ROW_BYTES
from services.state_server.write.state_feed import FeedCommit, FeedCounts, StateFeed


class FedState:
    """See the module's text. Host thread only.

    Attributes:
        state: Whose key groups they are; their rows go to its store.
        feed: What is applied.
        groups: Which key groups that is of.
        refused: Records that are not in the topic of dead letters yet, in their order.
        progress: What came of the updates, and how far they are applied. Any thread.
    """

    def __init__(self, state: StateReplica, clock: Clock) -> None:
        self.state = state
        self.topic_id = state.descriptor.updates_topic_id
        self.feed = StateFeed(state, self.topic_id)
        self.groups = FedGroups(state, self.feed, self.topic_id, clock)
        self.refused: list[RefusedRecord] = []
        self._view = self.groups.view
        self._clock = clock
        self._descriptor = state.descriptor
        self._arrived: Counter[int] = Counter()
        self.progress = state.table.feed = FeedProgress(clock, self.groups.lags)

    @property
    def name(self) -> str:
        return self.state.descriptor.state

    def leave(self) -> None:
        """Ends key groups that are not owned any more, or are owned anew. Idempotent."""
        self.groups.leave()
        self._forget_refused()

    def _forget_refused(self) -> None:
        """Whoever begins a key group that has ended finds them again."""
        self.refused = [one for one in self.refused if one.partition.key_group in self.groups]

    def apply(self, runs: Sequence[UpdatesRun]) -> bool:
        """Applies what has come. What does not follow on what was read before is passed over: it is read again.

        Returns:
            Whether readers are to see something else.
        """
        logs = {run.partition.key_group: run for run in runs if self.groups.follow(run)}
        before = self.feed.overlay
        counts = self.feed.apply({of: run.updates for of, run in logs.items() if run.updates})
        self.refused += [
            RefusedRecord(Partition(self.name, of), one.update, one.why.message)
            for of, refused in counts.refused.items()
            for one in refused
        ]
        self._count(counts)
        for of, error in counts.failed.items():
            self.groups.fail(of, error, before)
        if counts.failed:
            self._forget_refused()
        different = bool(counts.failed)
        for of, run in logs.items():
            if of in self.groups and of not in counts.failed:  # one that is refused is there, and applied no more
                moved, seen_to = self.groups.moved(run)
                different |= moved
                if seen_to is not None:
                    self._arrived.update(_timestamps(run.updates, seen_to))
        return different

    def _count(self, counts: FeedCounts) -> None:
        self.progress.applied += counts.applied
        self.progress.repeated += counts.repeated
        self.progress.refused += sum(map(len, counts.refused.values()))
        self.progress.assumed += counts.assumed

    def take_arrived(self) -> Mapping[int, int]:
        """How many updates were applied, since this was asked last, of what readers see: by the broker's timestamp."""
        arrived, self._arrived = self._arrived, Counter()
        return arrived

    def note(self, *, full: bool) -> None:
        """What is held until it is committed, for those who look from outside. `full`: it is too much."""
        self.progress.held_rows, self.progress.held_bytes, self.progress.full = self.held, self.held_bytes, full

    @property
    def held(self) -> int:
        """How many rows and dead letters are in memory until they are committed."""
        return self.feed.uncommitted + len(self.refused)

    @property
    def held_bytes(self) -> int:
        """Of these, without what they cost beside."""
        return self.feed.overlay.size_bytes + sum(len(one.update.value or b"") for one in self.refused)

    @property
    def room_bytes(self) -> int:
        """What they take of the server's room for them, about."""
        return self.held_bytes + self.held * ROW_BYTES

    def begin_commit(self, generation: int, key_groups: Collection[int]) -> FeedCommit | None:
        """What was applied of these since the last one; see StateFeed.begin_commit. `commit_ended` comes after it."""
        commit = self.feed.begin_commit(generation, self._clock.now_ms(), key_groups)
        self.groups.commit_begun({} if commit is None else commit.tenures)
        return commit

    def commit_ended(self) -> None:
        """None is under way any more: what it wrote is in the store, or will never be read."""
        self.groups.commit_ended()

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
        self.groups.go_on()
        return True

    def take_different(self) -> bool:
        """Whether readers are to see something else soon, since this was asked last."""
        return self._view.take_different()

    def shown(self) -> frozenset[int]:
        """The owned key groups that readers may be answered from."""
        return self._view.shown()

    def snapshot(self) -> Snapshot:
        """All that is applied; close it."""
        return self._view.snapshot()

    def standings(self, key_groups: Iterable[int]) -> dict[int, Standing]:
        """What they stand for: see FedView.standings."""
        return self._view.standings(key_groups)

    def take_changed(self) -> frozenset[int] | None:
        """The key groups whose standing is another one: see FedView.take_changed."""
        return self._view.take_changed()

    def restate(self, *, soon: bool) -> None:
        """Readers may see something else than they have seen: see FedView.restate."""
        self._view.restate(soon=soon)


def fed_states(hosted: Mapping[str, StateReplica]) -> list[FedState]:
    """Those of these states that are fed by updates. Any thread."""
    return [of.applied for of in hosted.values() if isinstance(of.applied, FedState)]


def _timestamps(updates: Sequence[LoggedUpdate], end: int) -> Iterator[int]:
    """Of those before this offset, without those that have none."""
    return (of.timestamp_ms for of in updates if of.timestamp_ms and of.offset < end)

"""The write side of one query on this server: its run, its grant, its staged rows, its states.

Threads: the host has one thread of its own, on which all that blocks or changes a store runs, in order. The coroutines
here run on the event loop, hand work to that thread, and publish its results to the tables, so that readers see an
epoch of all the query's states in one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from keyhole.changelog.base import Changelog, ChangelogWriter, Partition
from keyhole.changelog.readable import await_readable
from keyhole.changelog.settings import DELETE_RETENTION_MS
from keyhole.clock import Clock
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Base
from keyhole.errors import (
    KafkaUnreachable,
    KeyholeError,
    NotOwner,
    NotReady,
    StageLost,
    StillRunning,
    ValueMismatch,
)
from keyhole.model.epoch import Position, Run
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import QueryControl
from keyhole.protocol.failpoints import Step, StepObserver
from keyhole.protocol.membership import groups_of
from keyhole.protocol.receipts import GroupReceipt
from keyhole.protocol.registration import check_feeder
from keyhole.stores.base import Snapshot, StoreEngine
from services.state_server.counts import EpochCounts, ServerCounts
from services.state_server.fence import Fence
from services.state_server.read.copies import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.replica.follower import Follower, MakeFollower
from services.state_server.replica.hosted import HostedState
from services.state_server.replica.restore import AtOnce, restore
from services.state_server.replica.standby import Standbys
from services.state_server.write.attempts import Attempt, Attempts
from services.state_server.write.bases import read_bases
from services.state_server.write.commit import EpochToCommit, GroupCommitted, commit_epoch
from services.state_server.write.merging import Epoch
from services.state_server.write.spill import StagingRoom
from services.state_server.write.staged import StagedAttempt

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class HostSettings:
    """What all hosts of a server share."""

    server: str
    incarnation: str
    engine: StoreEngine
    clock: Clock
    observer: StepObserver
    lease_seconds: float
    room: StagingRoom
    kafka_deadline_seconds: float
    restore_deadline_seconds: float
    # Called on the event loop whenever ownership or readiness has changed.
    changed: Callable[[], None]
    make_follower: MakeFollower = Follower
    at_once: AtOnce = field(default_factory=AtOnce)
    counts: ServerCounts = field(default_factory=ServerCounts)


class StateShare(NamedTuple):
    """What this server is to do for a state: key groups to own, and others to follow as a standby."""

    descriptor: StateDescriptor
    owned: frozenset[int]
    followed: frozenset[int] = frozenset()


class View(NamedTuple):
    """What is owned of a state, as the host thread left it: what is to be published. `sequence` grows with each."""

    state: HostedState
    snapshot: Snapshot
    groups: frozenset[int]
    positions: Mapping[int, Position]
    sequence: int


class TakeOver(NamedTuple):
    """A restore under way. `stop` ends it at its next piece."""

    task: asyncio.Task[None]
    stop: threading.Event


class QueryHost:
    """See the module's text. Made at the first OpenRun of a query; lives until the server forgets the query, or ends.

    Args:
        tables: The server's tables by (application, state); the host adds and removes its own.

    Attributes:
        fence: What messages about the query are held against.
        attempts: Whose rows are here.
        lease: By which its answers are confirmed, or no more.
        alone: Its coordinator knows nobody else who could own what it owns.
        epochs: What it has committed, for the server's figures.
    """

    def __init__(
        self,
        application: str,
        query: str,
        changelog: Changelog,
        tables: dict[tuple[str, str], Table],
        settings: HostSettings,
    ) -> None:
        self._application = application
        self._query = query
        self._changelog = changelog
        self._tables = tables
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"keyhole-{application}-{query}")
        self.fence = Fence(application, query, settings.server, settings.incarnation)
        self._grant = ""
        self._writer: ChangelogWriter | None = None
        self._hosted: dict[str, HostedState] = {}
        self.attempts = Attempts(self._close_attempt)
        self._committing: set[asyncio.Future[list[GroupCommitted]]] = set()
        # Those that the log has told of.
        self._unusable: dict[str, StateDescriptor] = {}
        self._closed = False
        self._take_over_under_way: TakeOver | None = None
        self._views_taken = 0
        self._stepping_down: asyncio.Future[None] | None = None
        self._standbys = Standbys(
            changelog,
            query,
            self._hosted,
            self._thread,
            settings.clock,
            self._heard,
            settings.changed,
            settings.make_follower,
        )
        self._standbys.start()
        # Held while it is decided which run, or which assignment, comes next.
        self._changing = asyncio.Lock()
        self.lease = Lease(settings.clock, settings.lease_seconds)
        self.alone = False
        self.epochs = EpochCounts()

    @property
    def ready(self) -> bool:
        """It has been given key groups, to own or to follow, and all of them can be read."""
        tables = [state.table for state in self._hosted.values()]
        return bool(tables) and all(t.assigned <= t.owned.groups and t.followed <= t.standby.groups for t in tables)

    @property
    def owning(self) -> bool:
        """It owns key groups, and its coordinator was heard of within the lease: somebody could take them over."""
        return (
            not self.alone and not self.lease.expired and any(state.table.assigned for state in self._hosted.values())
        )

    @property
    def states(self) -> list[str]:
        """Those that it has stores of."""
        return sorted(self._hosted)

    @property
    def running(self) -> bool:
        """A run is alive: heard of within the lease, or about to be given what is restored here.

        Where no run speaks to this server (a replica), the control topic has told of one within that time.
        """
        under_way = self._take_over_under_way
        if under_way is not None and not under_way.task.done():
            return True
        told = not self.fence.run.generation and self._standbys.told_within(self._settings.lease_seconds)
        return told or not self.lease.expired

    @property
    def idle(self) -> bool:
        """Its run is not alive, and has left it nothing to own or to follow: nobody needs it.

        Not so between a run's grant and its first assignment, however long that takes.
        """
        opening = self._changing.locked() or (self._writer is not None and not self.fence.version)
        tables = [state.table for state in self._hosted.values()]
        return not (opening or self.running or any(table.assigned or table.followed for table in tables))

    def check_over(self, run: Run | None) -> None:
        """Whether the query may be retired.

        Args:
            run: The run that says so; None: somebody else does.

        Raises:
            StillRunning: Somebody else, and a run is alive.
            Fenced, NotReady: See Fence.
        """
        if run is not None:
            self.fence.check_run(run)
        elif self.running:
            raise StillRunning(
                f"query {self._query!r} of application {self._application} is running: server {self._settings.server} "
                f"has heard of its coordinator within {self._settings.lease_seconds:g} s. End the job first",
                query=self._query,
            )

    def warm(self) -> dict[str, frozenset[int]]:
        """Followed key groups that have caught up, by state."""
        return self._standbys.warm()

    def progress(self) -> tuple[int, int]:
        """Changelog records restored, and to restore, of all states."""
        tables = [state.table for state in self._hosted.values()]
        return sum(table.progress.restored for table in tables), sum(table.progress.total for table in tables)

    # --- runs and ownership ---------------------------------------------------------------------------------------

    async def open_run(self, run: Run, incarnation: str, grant: str) -> None:
        """A run begins here, or asks for a new grant: whatever was staged is dropped, and the grant taken.

        What was published goes on being read: it is a committed epoch, whoever writes the next one.

        Raises:
            Fenced: A newer run has been here, or another one of the same generation.
            StageLost: The grant was given up here already, or the run has given a later one.
            KafkaUnreachable: The grant was not taken.
        """
        async with self._changing:
            self.fence.check_may_begin(run, incarnation)
            if grant == self._grant:
                self._check_grant()
                return
            # The run counts from here on: the one before is refused while this one waits for Kafka. Should the grant
            # fail, its coordinator asks for another one.
            self.fence.begin(run, grant)
            self.attempts.drop_staged()
            await self._stop_restoring()
            # No lease yet: others may own by now what it owned before.
            await self._on_thread(self._take_grant, grant)
        _log.info(
            "opened a run", extra={"application": run.application, "query": run.query, "generation": run.generation}
        )

    def _take_grant(self, grant: str) -> None:
        self._give_up_grant()
        self._grant = ""
        writer = self._changelog.writer(grant)
        try:
            writer.open(self._settings.kafka_deadline_seconds)
        except BaseException:
            writer.close()
            raise
        self._writer, self._grant = writer, grant

    def _check_grant(self) -> None:
        """A grant is opened once: opening it again could take it back from whoever has fenced it."""
        if self._writer is None:
            raise StageLost(f"server {self._settings.server} has no grant any more; it needs another one")

    async def assign(
        self,
        run: Run,
        version: int,
        states: Sequence[StateShare],
        standing: Standing,
        wait_seconds: float,
    ) -> bool:
        """Owns and follows these key groups from now on. Returns whether all that are to be owned are ready.

        Called again with the same version it goes on waiting for the restore that the first call began.

        Raises:
            Fenced, NotReady: See Fence.
            NotOwner: A later assignment has come.
            KeyholeError: What ended the restore; the next call begins it anew.
        """
        async with self._changing:
            self.fence.check_not_older(run, version)
            if version != self.fence.version or self._take_over_under_way is None:
                await self._stop_restoring()
                self.fence.version = version
                stop = threading.Event()
                task = asyncio.create_task(self._take_over(run, version, states, standing, stop))
                self._take_over_under_way = TakeOver(task, stop)
            under_way = self._take_over_under_way
        done, _ = await asyncio.wait({under_way.task}, timeout=wait_seconds)
        if not done:
            return False
        if under_way.task.exception() is not None and self._take_over_under_way is under_way:
            self._take_over_under_way = None
        under_way.task.result()
        return True

    async def _take_over(
        self,
        run: Run,
        version: int,
        states: Sequence[StateShare],
        standing: Standing,
        stop: threading.Event,
    ) -> None:
        await self._host([share.descriptor for share in states])
        wanted = {share.descriptor.state: share.owned for share in states}
        followed = {share.descriptor.state: share.followed - share.owned for share in states}
        for name, state in self._hosted.items():
            state.table.assigned = wanted.get(name, frozenset())
        await self._standbys.follow(followed, at_once=self._owned())
        for state in self._hosted.values():
            groups = state.table.assigned
            state.table.withdraw(state.table.groups - groups)
            state.table.ready = groups <= state.table.groups
        self._settings.changed()
        views = await self._on_thread(self._restore, wanted, stop)
        self._publish(views, dataclasses.replace(standing, generation=run.generation, assignment_version=version))
        for state in self._hosted.values():
            state.table.ready = True
            # Until now they were answered from what was followed.
            state.table.standby.withdraw(state.table.groups)
        self.lease.confirm()
        self._settings.changed()
        _log.info(
            "owns key groups",
            extra={"query": self._query, "version": version, "key_groups": {s: len(g) for s, g in wanted.items()}},
        )

    def _owned(self) -> dict[str, frozenset[int]]:
        return {name: state.table.groups for name, state in self._hosted.items()}

    async def follow(self, states: Sequence[StateShare]) -> None:
        """Follows key groups without any coordinator (on a replica server); not those of states that can't be used."""
        async with self._changing:
            if self._closed:  # it was to be forgotten meanwhile
                return
            for share in states:
                with self._tolerated(share.descriptor):
                    await self._host([share.descriptor])
            followed = {share.descriptor.state: share.followed for share in states}
            await self._standbys.follow({name: groups for name, groups in followed.items() if name in self._hosted})
            self._settings.changed()

    async def _host(self, descriptors: Sequence[StateDescriptor]) -> None:
        """Opens the stores of new states, and closes those that were made anew under another topic id.

        Where it ends early, each state is hosted, or not: nothing of it is open then.

        Raises:
            StateConflict: Another query feeds one of them here. The control topic lets no two, unless it was deleted.
            ValueMismatch: One of them can't be used; see StateCodec.
        """
        for descriptor in descriptors:
            self._check_feeder(descriptor)  # of all, before anything is opened or closed
        for descriptor in descriptors:
            current = self._hosted.get(descriptor.state)
            if current is not None and current.descriptor.topic_id == descriptor.topic_id:
                await self._evolve(current, descriptor)
                continue
            if current is not None:
                self._tables.pop((self._application, descriptor.state)).close()
                del self._hosted[descriptor.state]
                self._standbys.forget(descriptor.state)
                await self._on_thread(current.store.close)
            self._check_feeder(descriptor)
            state = await self._on_thread(self._open, descriptor)
            self._hosted[descriptor.state] = state
            self._tables[self._application, descriptor.state] = state.table

    def _open(self, descriptor: StateDescriptor) -> HostedState:
        """On the host's thread."""
        StateCodec(descriptor)  # what can't be used leaves nothing on disk
        store = self._settings.engine.open(self._application, descriptor.state, descriptor.topic_id)
        try:
            return HostedState.open(descriptor, store, Table(self._settings.server, descriptor, store, self.lease))
        except BaseException:
            store.close()  # or whoever tries it again would find it open
            raise

    def _check_feeder(self, descriptor: StateDescriptor) -> None:
        other = self._tables.get((self._application, descriptor.state))
        if other is not None:
            check_feeder(other.descriptor, descriptor)

    async def _evolve(self, state: HostedState, descriptor: StateDescriptor) -> None:
        """From now on rows are merged and told by the newer descriptor; those that watch hear of it before any row.

        Raises:
            ValueMismatch: It can't be used; see StateCodec. The state stays as it is.
        """
        if descriptor != state.descriptor:
            await self._on_thread(state.evolve, descriptor)
        if state.table.evolve(descriptor):
            self._settings.changed()

    @contextlib.contextmanager
    def _tolerated(self, descriptor: StateDescriptor) -> Iterator[None]:
        """Where the control topic has a state that can't be used, as an earlier version of Keyhole let it be declared.

        The query's other states don't suffer from it, and nobody waits for an answer: the log tells it, once.
        """
        try:
            yield
        except ValueMismatch as error:
            if self._unusable.get(descriptor.state) != descriptor:
                self._unusable[descriptor.state] = descriptor
                _log.error("a state can't be used", extra={"query": self._query, "why": error.message})

    def _restore(self, wanted: Mapping[str, frozenset[int]], stop: threading.Event) -> list[View]:
        for name, state in self._hosted.items():
            state.restored &= wanted.get(name, frozenset())
            state.followed -= wanted.get(name, frozenset())
            # What is being read has states that never existed, until it is read to its end.
            state.gaps |= wanted.get(name, frozenset()) - state.restored
        restore(
            self._hosted,
            wanted,
            self._changelog,
            self._settings.clock,
            # Half of what the changelog keeps deletions for: the other half is for the restore itself.
            away_limit_ms=DELETE_RETENTION_MS // 2,
            deadline_seconds=self._settings.restore_deadline_seconds,
            stop=stop,
            at_once=self._settings.at_once,
        )
        for state in self._hosted.values():
            state.shown -= state.restored
            state.gaps -= state.restored
        return self._views()

    def _views(self) -> list[View]:
        """Taken on the host thread, before anything else can happen to the stores and to what is owned."""
        self._views_taken += 1
        return [
            View(
                state,
                state.store.snapshot(),
                frozenset(state.restored),
                {group: state.position(group) for group in state.restored},
                self._views_taken,
            )
            for state in self._hosted.values()
        ]

    async def release(self, run: Run, state: str, groups: frozenset[int], version: int) -> None:
        """Gives key groups up, and keeps them as standby copies, until the next assignment says what becomes of them.

        When it answers, nothing of theirs is in flight, and whoever restores them reads all that was committed here. A
        caller that goes away does not stop it half-way.

        Raises:
            Fenced, NotReady: See Fence.
            NotOwner: A later assignment has come.
            KafkaUnreachable: They are given up, but the end of what was committed can't be read yet.
        """
        await asyncio.shield(asyncio.ensure_future(self._release(run, state, groups, version)))

    async def _release(self, run: Run, state: str, groups: frozenset[int], version: int) -> None:
        async with self._changing:
            self.fence.check_not_older(run, version)
            hosted = self._state(state)
            await self._demote({state: groups})
            await self._on_thread(self._await_readable, hosted, groups)

    def _await_readable(self, state: HostedState, groups: frozenset[int]) -> None:
        name, timeout = state.descriptor.state, self._settings.kafka_deadline_seconds
        written = {Partition(name, group): state.position(group).offset for group in sorted(groups)}
        behind = await_readable(self._changelog, written, self._settings.clock, timeout)
        if behind:
            raise KafkaUnreachable(
                f"the changelog of state {state.table.name} ends before what was committed to it (key groups "
                f"{[part.key_group for part in behind[:10]]}): Kafka has not completed a transaction for {timeout:g} s"
            )

    async def _demote(self, groups: Mapping[str, frozenset[int]]) -> None:
        """Owned key groups become followed ones. They can be read all the time."""
        followed = {name: self._standbys.wanted(name) | groups.get(name, frozenset()) for name in self._hosted}
        await self._standbys.follow(followed, at_once=groups)
        for name, which in groups.items():
            if name in self._hosted:
                table = self._hosted[name].table
                table.assigned -= which
                table.withdraw(which)
        self._settings.changed()

    async def _heard(self, control: QueryControl) -> None:
        """The control topic says what the states are, and who owns what.

        A server that was replaced while nobody could tell it steps down.
        """
        known = self.fence.run.generation
        # Else its coordinator has told it, and this may be older.
        if control.generation > known or (control.generation == known and not self.fence.version):
            for name, state in list(self._hosted.items()):
                descriptor = control.states.get(name)
                if descriptor is not None and descriptor != state.table.descriptor:
                    with self._tolerated(descriptor):
                        await self._evolve(state, descriptor)
        if self._lost(control):
            self._stepping_down = asyncio.ensure_future(self._step_down(control))

    async def stepped_down(self) -> None:
        """Returns once what the control topic took from it is given up, as far as that was read."""
        if self._stepping_down is not None:
            await self._stepping_down

    async def _step_down(self, control: QueryControl) -> None:
        async with self._changing:
            lost = self._lost(control)  # an assignment may have come meanwhile
            if lost:
                _log.warning(
                    "stepped down: others own its key groups now",
                    extra={"query": self._query, "key_groups": {name: len(groups) for name, groups in lost.items()}},
                )
                await self._demote(lost)

    def _lost(self, control: QueryControl) -> dict[str, frozenset[int]]:
        """What it owns, and a later assignment than its own gives to others."""
        assignment = control.assignment
        if assignment is None or not self.fence.is_later(assignment.generation, assignment.version):
            return {}
        me = self._settings.server
        return {
            name: gone
            for name, state in self._hosted.items()
            if (gone := state.table.groups - frozenset(groups_of(assignment, me, name)))
        }

    def confirm(self, run: Run, version: int, *, alone: bool = False) -> None:
        """The coordinator is alive, and this server still counts. `alone`: nobody else could own what it owns."""
        self.fence.check_may_confirm(run, version)
        self.alone = alone
        self.lease.confirm()

    # --- epochs ---------------------------------------------------------------------------------------------------

    async def read_base(
        self, run: Run, incarnation: str, version: int, state: str, epoch: Epoch, keys: Sequence[bytes]
    ) -> list[Base | None]:
        """The accumulators of an aggregating state before the epoch; None: the key had none.

        Of the first keys, as many as a message may have.

        Raises:
            Fenced, NotReady: See Fence.
            NotOwner: As Fence, or a key group that isn't restored here.
            TooLarge: An accumulator that no message can carry.
        """
        self.fence.check_may_write(run, incarnation, version)
        return await self._on_thread(read_bases, self._state(state), epoch, keys)

    def begin_attempt(self, run: Run, incarnation: str, version: int, attempt: Attempt) -> StagedAttempt:
        """Room for one task attempt's rows, not yet among what is staged (see `stage`).

        Raises:
            NotOwner: Another assignment version: the routes are out of date.
            StageLost: A newer round, or a newer epoch, has begun.
        """
        self.fence.check_may_write(run, incarnation, version)
        state = self._state(attempt.state)
        name = f"{self._application}/{attempt.state}"
        groups, room = state.descriptor.key_groups, self._settings.room
        return self.attempts.begin(
            attempt, lambda: StagedAttempt(name, groups, state.store.max_key_bytes, state.merge, room)
        )

    async def add_rows(
        self, attempt: StagedAttempt, decode: Callable[[], tuple[list[bytes], list[bytes | None]]]
    ) -> None:
        """Adds a chunk to an attempt; where memory is short, rows of this query go to disk.

        Raises:
            Overloaded: The disk has no room for them either.
        """
        held = self.attempts.held()

        def add() -> None:
            attempt.add(*decode())
            self._settings.room.make_room(held)

        await self._on_thread(add)

    async def stage(self, name: Attempt, attempt: StagedAttempt, run: Run) -> list[GroupReceipt]:
        """Makes a whole attempt part of what is staged; older rounds are dropped.

        Raises:
            DuplicateKey, ValueMismatch: Rows that are on disk can't be merged.
        """
        if attempt.spilled:
            await self._on_thread(attempt.check)
        self.fence.check_run(run)
        self.attempts.stage(name, attempt)
        receipts = attempt.receipts()
        self._count_staged(name, receipts)
        self._settings.observer.reached(Step.SERVER_STAGED, name.epoch)
        return receipts

    def _count_staged(self, name: Attempt, receipts: Sequence[GroupReceipt]) -> None:
        rows = self._state(name.state).table.rows
        rows.staged_rows += sum(receipt.rows for receipt in receipts)
        rows.staged_bytes += sum(receipt.bytes for receipt in receipts)
        self.epochs.staged_epoch = name.epoch

    async def commit(
        self, run: Run, incarnation: str, version: int, epoch: EpochToCommit, deadline_seconds: float
    ) -> list[GroupCommitted]:
        """Commits and publishes. A caller that goes away does not stop it half-way.

        Raises: See commit.commit_epoch.
        """
        self.fence.check_may_write(run, incarnation, version)
        for name in epoch.states:
            self._state(name)
        committing = asyncio.ensure_future(self._commit(epoch, version, deadline_seconds))
        self._committing.add(committing)
        committing.add_done_callback(self._committing.discard)
        committing.add_done_callback(_told)
        return await asyncio.shield(committing)

    async def _commit(self, epoch: EpochToCommit, version: int, deadline_seconds: float) -> list[GroupCommitted]:
        began = self._settings.clock.monotonic()
        try:
            committed, views = await self._on_thread(self._commit_on_thread, epoch, deadline_seconds)
        except KeyholeError as error:
            self.epochs.failed[error.reason] += 1
            raise
        self._settings.counts.commit_seconds.observe(self._settings.clock.monotonic() - began)
        self._count_committed(epoch, committed)
        self._publish(views, Standing(epoch.epoch, epoch.commit_time_ms, epoch.watermark_ms, epoch.generation, version))
        self.lease.confirm()
        self.attempts.drop_committed(epoch.epoch)
        self._settings.observer.reached(Step.SERVER_COMMITTED, epoch.epoch)
        return committed

    def _count_committed(self, epoch: EpochToCommit, committed: Sequence[GroupCommitted]) -> None:
        new = {(group.state, group.key_group) for group in committed if not group.already}
        for name, part in epoch.states.items():
            rows = self._state(name).table.rows
            for receipt in part.receipts:
                if (name, receipt.key_group) in new:
                    rows.committed_rows += receipt.rows
                    rows.committed_bytes += receipt.bytes
        self.epochs.committed += 1
        self.epochs.replayed += len(new) < len(committed)
        self.epochs.committed_epoch = epoch.epoch

    def _commit_on_thread(
        self, epoch: EpochToCommit, deadline_seconds: float
    ) -> tuple[list[GroupCommitted], list[View]]:
        self._check_grant()
        assert self._writer is not None
        sound = False
        try:
            committed = commit_epoch(epoch, self._hosted, self._writer, self._settings.observer, deadline_seconds)
            sound = True
        except (KafkaUnreachable, StageLost, NotOwner):
            sound = True
            raise
        finally:
            # Fenced, an unknown outcome, a store that could not follow: nothing more is written under this grant, and
            # what the stores lack is read back from the changelog.
            if not sound:
                self._give_up_grant()
        return committed, self._views()

    def _give_up_grant(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for state in self._hosted.values():
            state.restored.clear()
            state.read_positions()

    # --- the rest -------------------------------------------------------------------------------------------------

    def withdraw(self) -> None:
        """It is to be closed: nothing of it is read any more, nothing new begun, and a restore stops. Idempotent."""
        self._closed = True
        if self._take_over_under_way is not None:
            self._take_over_under_way.stop.set()
        for name, state in self._hosted.items():
            state.table.close()
            if self._tables.get((self._application, name)) is state.table:
                del self._tables[self._application, name]

    async def close(self, *, destroy: bool = False) -> None:
        """Stops a restore, lets all else that is under way end, and closes the stores.

        Whoever still speaks to it is told what a server tells that has not seen the run: NotReady.

        Args:
            destroy: Deletes what the stores have on disk, too.
        """
        self.withdraw()
        async with self._changing:
            self.fence.close()
            self._grant = ""
            await self._stop_restoring()
            await self._standbys.close()
            if self._committing:
                await asyncio.wait(self._committing)
            self.withdraw()  # what was just being opened
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._close_on_thread, destroy)
            finally:  # a disk may refuse what is to be deleted
                self._hosted.clear()
                self.attempts.drop_staged()
                self._thread.shutdown()

    def _close_on_thread(self, destroy: bool) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for state in self._hosted.values():
            state.store.close()
        for name in self._hosted if destroy else ():
            self._settings.engine.destroy(self._application, name)

    def _publish(self, views: Sequence[View], standing: Standing) -> None:
        for view in views:
            if self._hosted.get(view.state.descriptor.state) is view.state:
                table = view.state.table
                # What was released while the view was on its way is not published again.
                groups = view.groups & table.assigned
                table.publish(view.snapshot, groups, standing, view.positions, view.sequence)
            else:
                view.snapshot.close()

    async def _stop_restoring(self) -> None:
        under_way = self._take_over_under_way
        if under_way is None:
            return
        under_way.stop.set()
        # Not awaited directly: a caller that goes away would cancel it, and its thread would go on unseen.
        await asyncio.wait({under_way.task})
        self._take_over_under_way = None
        if (error := under_way.task.exception()) is not None:
            _log.info("a restore ended", extra={"query": self._query, "why": str(error)})

    def _state(self, name: str) -> HostedState:
        state = self._hosted.get(name)
        if state is None:
            raise NotOwner(f"server {self._settings.server} holds nothing of state {self._application}/{name}")
        return state

    def _close_attempt(self, attempt: StagedAttempt) -> None:
        try:
            # Not here: the thread may be reading it.
            self._thread.submit(attempt.close)
        except RuntimeError:  # the thread has ended, with the host
            attempt.close()

    async def _on_thread(self, call: Callable[..., _Result], *args: object) -> _Result:
        if self._closed:
            raise NotReady(f"server {self._settings.server} is forgetting query {self._query!r}")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)


def _told(committing: asyncio.Future[list[GroupCommitted]]) -> None:
    """A caller that has gone away doesn't hear why a commit failed; it asks again."""
    if not committing.cancelled() and (error := committing.exception()) is not None:
        _log.info("a commit failed", extra={"why": str(error)})

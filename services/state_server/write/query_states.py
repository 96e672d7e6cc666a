"""The states of one query that are open on this server: their stores, and the tables that readers are answered from.

A state is opened, or made anew, on the host's thread; what readers see of all states is published in one step on the
event loop.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from keyhole.errors import NotOwner, ValueMismatch
from keyhole.model.epoch import Position
from keyhole.model.state import StateDescriptor
from keyhole.protocol.registration import check_feeder
from keyhole.stores.base import Snapshot
from services.state_server.host_settings import HostSettings
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.read.watcher import GroupEpoch
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.open_state import open_state
from services.state_server.write.host_thread import HostThread
from services.state_server.write.index_building import IndexBuilding

_log = logging.getLogger(__name__)


class PublishedView(NamedTuple):
    """What is owned of a state, as the host thread left it: what is to be published. `sequence` grows with each.

    Attributes:
        positions: How far each of the key groups is in the changelog; where `over` is set, nothing is said of that.
        standings: Of a state that is fed by updates, what each key group stands for; else none.
        over: Of such a state, the view over which this one only changes `standings`; None: it says all.
        changed: What has led to the positions, as far as it was kept, for those who watch.
    """

    state: StateReplica
    snapshot: Snapshot
    groups: frozenset[int]
    positions: Mapping[int, Position]
    sequence: int
    standings: Mapping[int, Standing] | None = None
    over: int | None = None
    changed: Sequence[GroupEpoch] = ()


class QueryStates:
    """See the module's text.

    Args:
        tables: The server's tables by (application, state); those of the query's states are added and removed here.
        lease: The query's; its tables' answers are confirmed by it.

    Attributes:
        lease: The query's.
        hosted: By name. Only the event loop adds and removes; the host thread may read.
    """

    def __init__(
        self,
        application: str,
        query: str,
        tables: dict[tuple[str, str], Table],
        lease: Lease,
        thread: HostThread,
        settings: HostSettings,
    ) -> None:
        self.hosted: dict[str, StateReplica] = {}
        self._application = application
        self._query = query
        self._tables = tables
        self.lease = lease
        self._thread = thread
        self._settings = settings
        self._indexes = IndexBuilding(thread, settings.clock)
        self._opened: Callable[[StateReplica], None] = lambda state: None
        # Those that are in the log already.
        self._unusable: dict[str, StateDescriptor] = {}
        self._views_taken = 0
        # By state that is fed by updates: the last view's number and key groups. Host thread only.
        self._applied: dict[str, tuple[StateReplica, int, frozenset[int]]] = {}
        lease.on_confirm = self._confirmed

    def _confirmed(self) -> None:
        for table in self.tables:
            self._settings.shown(table)

    def on_open(self, callback: Callable[[StateReplica], None]) -> None:
        """Is called with each state that is opened from then on, before anybody reads it. Event loop."""
        self._opened = callback

    @property
    def tables(self) -> list[Table]:
        """What readers are answered from, of each open state."""
        return [state.table for state in self.hosted.values()]

    @property
    def ready(self) -> bool:
        """There are states, and all that is to be owned or followed of them can be read."""
        tables = self.tables
        return bool(tables) and all(table.given.readable for table in tables)

    @property
    def assigned(self) -> bool:
        """Whether anything is to be owned."""
        return any(table.given.assigned for table in self.tables)

    @property
    def given(self) -> bool:
        """Whether anything is to be owned or followed."""
        return any(table.given.assigned or table.given.followed for table in self.tables)

    def progress(self) -> tuple[int, int]:
        """Changelog records restored, and to restore, of all states."""
        tables = self.tables
        return sum(table.progress.restored for table in tables), sum(table.progress.total for table in tables)

    def owned(self) -> dict[str, frozenset[int]]:
        """The key groups that are answered for as their owner, by state."""
        return {name: state.table.groups for name, state in self.hosted.items()}

    def state(self, name: str) -> StateReplica:
        """The state of that name. Raises NotOwner where nothing of it is here."""
        state = self.hosted.get(name)
        if state is None:
            raise NotOwner(f"server {self._settings.server} holds nothing of state {self._application}/{name}")
        return state

    async def open(self, descriptors: Sequence[StateDescriptor], forget: Callable[[str], None]) -> None:
        """Opens the stores of new states, and closes those that were made anew under another topic id.

        Where it ends early, each state is hosted, or not: nothing of it is open then.

        Args:
            forget: Is called with the state whose store is about to be closed.

        Raises:
            StateConflict: Another query feeds one of them here. The control topic lets no two, unless it was deleted.
            ValueMismatch: One of them can't be used; see RowCodec.
        """
        for descriptor in descriptors:
            self._check_feeder(descriptor)  # of all, before anything is opened or closed
        for descriptor in descriptors:
            current = self.hosted.get(descriptor.state)
            if current is not None and current.descriptor.topic_id == descriptor.topic_id:
                await self.evolve(current, descriptor)
                continue
            if current is not None:
                self._tables.pop((self._application, descriptor.state)).close()
                del self.hosted[descriptor.state]
                forget(descriptor.state)
                self._indexes.forget(descriptor.state)
                await self._thread.call(current.store.close)
            self._check_feeder(descriptor)
            state = await self._thread.call(open_state, self._application, descriptor, self._settings, self.lease)
            self._opened(state)
            self.hosted[descriptor.state] = state
            self._tables[self._application, descriptor.state] = state.table
            self._settings.shown(state.table)
            self._indexes.look(state)

    def _check_feeder(self, descriptor: StateDescriptor) -> None:
        other = self._tables.get((self._application, descriptor.state))
        if other is not None:
            check_feeder(other.descriptor, descriptor)

    async def evolve(self, state: StateReplica, descriptor: StateDescriptor) -> None:
        """From now on rows are merged and sent by the newer descriptor; those that watch hear of it before any row.

        Raises:
            ValueMismatch: It can't be used; see RowCodec. The state stays as it is.
        """
        if descriptor != state.descriptor:
            await self._thread.call(state.evolve, descriptor)
            self._indexes.look(state)
        if state.table.evolve(descriptor):
            self._settings.shown(state.table)
            self._settings.changed()

    @contextlib.contextmanager
    def tolerated(self, descriptor: StateDescriptor) -> Iterator[None]:
        """Where the control topic has a state that can't be used, as an earlier version of Keyhole let it be declared.

        The query's other states don't suffer from it, and nobody waits for an answer: it is logged, once.
        """
        try:
            yield
        except ValueMismatch as error:
            if self._unusable.get(descriptor.state) != descriptor:
                self._unusable[descriptor.state] = descriptor
                _log.error("a state can't be used", extra={"query": self._query, "why": error.message})

    def views(self) -> list[PublishedView]:
        """Views of all states. Taken on the host thread, before anything else happens to the stores or to what is
        owned.
        """
        self._views_taken += 1
        return [self._view(state) for state in self.hosted.values()]

    def applied_views(self, names: Collection[str]) -> list[PublishedView]:
        """As `views`, of some states that are fed by updates: each says what has changed since its last view.

        What a view costs depends on that, and not on how many key groups there are.
        """
        self._views_taken += 1
        return [self._changed_view(state) for name, state in self.hosted.items() if name in names]

    def _changed_view(self, state: StateReplica) -> PublishedView:
        before = self._applied.get(state.descriptor.state)
        changed = None if state.applied is None else state.applied.take_changed()
        if state.applied is None or changed is None or before is None or before[0] is not state:
            return self._view(state)
        _, over, groups = before
        self._applied[state.descriptor.state] = state, self._views_taken, groups
        standings = state.applied.standings(changed)
        return PublishedView(state, state.applied.snapshot(), groups, {}, self._views_taken, standings, over)

    def _view(self, state: StateReplica) -> PublishedView:
        if state.applied is not None:
            state.applied.take_changed()
            shown = state.applied.shown()
            self._applied[state.descriptor.state] = state, self._views_taken, shown
            standings = state.applied.standings(shown)
            return PublishedView(
                state,
                state.applied.snapshot(),
                shown,
                {group: state.position(group) for group in shown},
                self._views_taken,
                standings,
                changed=state.take_changed(),
            )
        return PublishedView(
            state,
            state.store.snapshot(),
            frozenset(state.groups.owned),
            {group: state.position(group) for group in state.groups.owned},
            self._views_taken,
            changed=state.take_changed(),
        )

    def publish_applied(self, views: Sequence[PublishedView]) -> None:
        """As `publish`, by the assignment that each is published by. Event loop.

        What would take a key group away that is still to be owned is not published: it is restored, and readers see
        what they saw before. One that comes is shown by the take-over that brings it: until then its owner may answer
        on, by the assignment before.
        """
        for view in views:
            table = view.state.table
            if view.over is not None:
                self._publish_changes(view, view.over)
                continue
            owned, awaiting = table.groups & table.given.assigned, table.given.awaiting
            if owned <= view.groups and (owned or not awaiting):
                self.publish([view._replace(groups=owned) if awaiting else view], table.standing)
            else:
                view.snapshot.close()
                # What is committed, those who watch get all the same.
                table.changes.published(view.changed, view.positions)

    def _publish_changes(self, view: PublishedView, over: int) -> None:
        """Where the view before was not published, readers get what it had by the next one, which says all."""
        table, applied = view.state.table, view.state.applied
        hosted = self.hosted.get(view.state.descriptor.state) is view.state
        assert applied is not None
        assert view.standings is not None
        if not (hosted and table.publish_changes(view.snapshot, view.standings, over, view.sequence)):
            view.snapshot.close()
            applied.restate(soon=True)

    def publish(self, views: Sequence[PublishedView], standing: Standing) -> None:
        """Readers see these views from now on, all in one step. Takes their snapshots over. Event loop."""
        for view in views:
            if self.hosted.get(view.state.descriptor.state) is view.state:
                table = view.state.table
                # What was released while the view was on its way is not published again.
                groups = view.groups & table.given.assigned
                if view.standings is None:
                    table.publish(view.snapshot, groups, standing, view.positions, view.sequence)
                else:
                    table.publish_applied(view.snapshot, groups, standing, view.standings, view.sequence)
                table.changes.published(view.changed, view.positions)
            else:
                view.snapshot.close()

    def show_same(self, state: StateReplica, snapshot: Snapshot, positions: Mapping[int, Position]) -> None:
        """What is owned of a state is shown by this view, where that shows the same. Takes it over. Event loop.

        An index that was built, or what is followed, is written between two epochs. Other processes can't begin a view
        of the commit before that.
        """
        hosted = self.hosted.get(state.descriptor.state) is state
        if not (hosted and state.table.owned.renew(snapshot, positions)):
            snapshot.close()

    def withdraw(self) -> None:
        """Nothing of them is read any more. Event loop. Idempotent."""
        self._indexes.close()
        for name, state in self.hosted.items():
            state.table.close()
            if self._tables.get((self._application, name)) is state.table:
                del self._tables[self._application, name]

    def close_stores(self, *, destroy: bool) -> None:
        """Host thread. `destroy`: deletes what they have on disk, too."""
        for state in self.hosted.values():
            state.store.close()
        for name in self.hosted if destroy else ():
            self._settings.engine.destroy(self._application, name)

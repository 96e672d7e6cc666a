"""Which key groups of one query this server owns and follows: as it is assigned them, releases them, or loses them.

An owned key group becomes a followed one when it is released, or when the control topic says that others own it: a
server that was replaced while it could not be reached steps down. Coroutines run on the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keyhole.changelog.base import Changelog, Partition
from keyhole.changelog.readable import await_readable
from keyhole.errors import KafkaUnreachable
from keyhole.model.epoch import EpochStamp, Position, Run
from keyhole.protocol.control import QueryControl
from keyhole.protocol.membership import groups_of
from keyhole.stores.base import Snapshot
from services.state_server.fence import Fence
from services.state_server.host_settings import HostSettings
from services.state_server.read.standing import Lease
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.standby import StandbyCopies, StandbyView, standby_view
from services.state_server.replica.take_over import StateShare, TakeOvers
from services.state_server.write.host_thread import HostThread
from services.state_server.write.owner_loop import OwnerLoop
from services.state_server.write.query_states import QueryStates

_log = logging.getLogger(__name__)


class _Renewed(NamedTuple):
    """Views of a state as the host thread left it; None: of what was not asked for.

    Attributes:
        positions: Of what is owned.
    """

    owned: Snapshot | None
    positions: Mapping[int, Position]
    followed: StandbyView | None

    def close(self) -> None:
        """Lets go of them, as nobody is to be shown them."""
        for snapshot in (self.owned, self.followed and self.followed.snapshot):
            if snapshot is not None:
                snapshot.close()


def _renewed(state: StateReplica, *, owned: bool, followed: bool) -> _Renewed:
    """In one call of the host's thread: nothing is written between the two."""
    view = standby_view(state) if followed else None
    if not owned:
        return _Renewed(None, {}, view)
    try:
        return _Renewed(state.store.snapshot(), {group: state.position(group) for group in state.groups.owned}, view)
    except BaseException:
        _Renewed(None, {}, view).close()
        raise


class Ownership:
    """See the module's text.

    Args:
        fence: What messages are held against; the version of an assignment is kept there.
        changing: Held while it is decided which run, or which assignment, comes next.

    Attributes:
        standbys: What is followed.
        take_overs: What is being restored.
    """

    def __init__(
        self,
        query: str,
        changelog: Changelog,
        states: QueryStates,
        feeding: OwnerLoop,
        fence: Fence,
        lease: Lease,
        changing: asyncio.Lock,
        thread: HostThread,
        settings: HostSettings,
    ) -> None:
        self._query = query
        self._changelog = changelog
        self._states = states
        self._feeding = feeding
        self._fence = fence
        self._changing = changing
        self._thread = thread
        self._settings = settings
        self._stepping_down: asyncio.Future[None] | None = None
        self.standbys = StandbyCopies(
            changelog,
            query,
            states.hosted,
            thread,
            settings.clock,
            self._heard,
            settings.changed,
            settings.make_follower,
            settings.kafka_deadline_seconds,
            asks_ends=settings.feeds_by_itself,
        )
        self.take_overs = TakeOvers(query, changelog, states, feeding, self.standbys, lease, thread, settings)
        self.standbys.start()

    async def assign(
        self, run: Run, version: int, shares: Sequence[StateShare], complete: EpochStamp, wait_seconds: float
    ) -> bool:
        """Owns and follows these key groups from now on. Returns whether all that are to be owned are ready.

        Called again with the same version it goes on waiting for the restore that the first call began.

        Raises:
            Fenced, NotReady: See Fence.
            NotOwner: A later assignment has come.
            KeyholeError: What ended the restore; the next call begins it anew.
        """
        async with self._changing:
            self._fence.check_not_older(run, version)
            if version != self._fence.version or self.take_overs.current is None:
                await self.take_overs.stop()
                self._fence.version = version
                self.take_overs.begin(version, shares, complete)
            under_way = self.take_overs.current
        assert under_way is not None
        return await self.take_overs.ended_within(under_way, wait_seconds)

    async def follow(self, shares: Sequence[StateShare]) -> None:
        """Follows key groups without any coordinator (on a replica server); not those of states that can't be used."""
        async with self._changing:
            if self._thread.refusing:  # the query was to be forgotten meanwhile
                return
            for share in shares:
                with self._states.tolerated(share.descriptor):
                    await self._states.open([share.descriptor], self.standbys.forget)
            followed = {share.descriptor.state: share.followed for share in shares}
            hosted = self._states.hosted
            await self.standbys.follow({name: groups for name, groups in followed.items() if name in hosted})
            self._settings.changed()

    async def renew(self, name: str, *, owned: bool, followed: bool) -> None:
        """What is shown of a state is shown by its store's last commit: what is owned, where that shows the same, and
        what is followed as it is by now.

        Args:
            owned, followed: Which of the two; both by the same commit, in one step.

        Raises:
            NotReady: The query is being forgotten.
        """
        state = self._states.hosted.get(name)
        if state is None:
            return
        owned = owned and state.applied is None and bool(state.table.groups)
        followed = followed and bool(state.table.standby.groups)
        if not (owned or followed):
            return
        views = await self._thread.call_or_drop(
            functools.partial(_renewed, state, owned=owned, followed=followed), _Renewed.close
        )
        if views.owned is not None:
            self._states.show_same(state, views.owned, views.positions)
        if views.followed is not None:
            self.standbys.show_as_it_is(views.followed)

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
            self._fence.check_not_older(run, version)
            hosted = self._states.state(state)
            # What was applied, so that the next owner need not apply it again.
            async with self._feeding.committed():
                await self._demote({state: groups})
            await self._thread.call(self._await_readable, hosted, groups)

    def _await_readable(self, state: StateReplica, groups: frozenset[int]) -> None:
        """On the host's thread: after a commit that is under way."""
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
        self.take_overs.give_up(groups)
        hosted = self._states.hosted
        followed = {name: self.standbys.wanted(name) | groups.get(name, frozenset()) for name in hosted}
        await self.standbys.follow(followed, at_once=groups)
        for name, which in groups.items():
            if name in hosted:
                hosted[name].table.given.release(which)
        self._settings.changed()

    async def _heard(self, control: QueryControl) -> None:
        """The control topic says what the states are, and who owns what.

        A server that was replaced while it could not be reached steps down.
        """
        known = self._fence.run.generation
        # Else it has it from its coordinator, and this may be older.
        if control.generation > known or (control.generation == known and not self._fence.version):
            for name, state in list(self._states.hosted.items()):
                descriptor = control.states.get(name)
                if descriptor is not None and descriptor != state.table.descriptor:
                    with self._states.tolerated(descriptor):
                        await self._states.evolve(state, descriptor)
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
        if assignment is None or not self._fence.is_later(assignment.generation, assignment.version):
            return {}
        me = self._settings.server
        return {
            name: gone
            for name, owned in self._states.owned().items()
            if (gone := owned - frozenset(groups_of(assignment, me, name)))
        }

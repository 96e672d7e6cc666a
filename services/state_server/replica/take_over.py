"""What takes key groups over, as an assignment says: opens their states, restores them, and shows them as an owner's.

At most one take-over of a query is under way. The next assignment stops it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keyhole.changelog.base import Changelog
from keyhole.changelog.settings import DELETE_RETENTION_MS
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor
from services.state_server.host_settings import HostSettings
from services.state_server.read.standing import Lease, Standing
from services.state_server.replica.restore import restore
from services.state_server.replica.standby import StandbyCopies
from services.state_server.write.host_thread import HostThread
from services.state_server.write.owner_loop import OwnerLoop
from services.state_server.write.query_states import PublishedView, QueryStates

_log = logging.getLogger(__name__)


class StateShare(NamedTuple):
    """What this server is to do for a state: key groups to own, and others to follow as a standby."""

    descriptor: StateDescriptor
    owned: frozenset[int]
    followed: frozenset[int] = frozenset()


class TakeOver(NamedTuple):
    """A restore under way. `stop` ends it at its next piece."""

    task: asyncio.Task[None]
    stop: threading.Event


class TakeOvers:
    """See the module's text. Event loop, but for what restores.

    Args:
        lease: Confirmed when key groups are owned.

    Attributes:
        current: The last one, under way or done; None: there was none, it was stopped, or it failed.
    """

    def __init__(
        self,
        query: str,
        changelog: Changelog,
        states: QueryStates,
        feeding: OwnerLoop,
        standbys: StandbyCopies,
        lease: Lease,
        thread: HostThread,
        settings: HostSettings,
    ) -> None:
        self.current: TakeOver | None = None
        self._query = query
        self._changelog = changelog
        self._states = states
        self._feeding = feeding
        self._standbys = standbys
        self._lease = lease
        self._thread = thread
        self._settings = settings
        # By state: what was given up since the last one began. Its states may be opened only after that.
        self._given_up: dict[str, frozenset[int]] = {}

    @property
    def under_way(self) -> bool:
        """Whether a restore is running."""
        return self.current is not None and not self.current.task.done()

    def begin(self, version: int, shares: Sequence[StateShare], complete: EpochStamp) -> None:
        """Begins one; the one before must have been stopped."""
        stop = threading.Event()
        self._given_up = {}
        task = asyncio.create_task(self._take_over(version, shares, complete, stop))
        self.current = TakeOver(task, stop)

    def give_up(self, groups: Mapping[str, frozenset[int]]) -> None:
        """These, by state, are not to be owned any more. One under way leaves them to be followed."""
        for name, which in groups.items():
            self._given_up[name] = self._given_up.get(name, frozenset()) | which

    async def ended_within(self, under_way: TakeOver, seconds: float) -> bool:
        """Whether it ends within that time.

        Raises:
            KeyholeError: What has ended it; there is none under way any more.
        """
        done, _ = await asyncio.wait({under_way.task}, timeout=seconds)
        if not done:
            return False
        if under_way.task.exception() is not None and self.current is under_way:
            self.current = None
        under_way.task.result()
        return True

    def tell_to_stop(self) -> None:
        """It ends at its next piece. Idempotent."""
        if self.current is not None:
            self.current.stop.set()

    async def stop(self) -> None:
        """Returns once none is under way."""
        under_way = self.current
        if under_way is None:
            return
        under_way.stop.set()
        # Not awaited directly: a caller that goes away would cancel it, and its thread would go on unseen.
        await asyncio.wait({under_way.task})
        self.current = None
        if (error := under_way.task.exception()) is not None:
            _log.info("a restore ended", extra={"query": self._query, "why": str(error)})

    async def _take_over(
        self, version: int, shares: Sequence[StateShare], complete: EpochStamp, stop: threading.Event
    ) -> None:
        await self._states.open([share.descriptor for share in shares], self._standbys.forget)
        hosted = self._states.hosted
        given_up = {share.descriptor.state: self._given_up.get(share.descriptor.state, frozenset()) for share in shares}
        wanted = {share.descriptor.state: share.owned - given_up[share.descriptor.state] for share in shares}
        followed = {of.descriptor.state: (of.owned | of.followed) - wanted[of.descriptor.state] for of in shares}
        for name, state in hosted.items():
            state.table.given.assign(wanted.get(name, frozenset()))
        await self._standbys.follow(followed, at_once=self._states.owned())
        for state in hosted.values():
            state.table.given.begin_take_over()
        self._settings.changed()
        try:
            self._states.publish(await self._restored(wanted, stop), Standing(complete, version))
        finally:
            for state in hosted.values():
                state.table.given.take_over_ended()
        for state in hosted.values():
            state.table.given.taken_over()
        self._lease.confirm()
        self._settings.changed()
        _log.info(
            "owns key groups",
            extra={"query": self._query, "version": version, "key_groups": {s: len(g) for s, g in wanted.items()}},
        )

    async def _restored(self, wanted: Mapping[str, frozenset[int]], stop: threading.Event) -> list[PublishedView]:
        """Views of what is wanted, once it is here."""
        views = await self._thread.call(self._restore, wanted, stop)
        if not self._feeding.fed:
            return views
        # What the owner before has shown of their updates is not taken back.
        for view in views:
            view.snapshot.close()
        await self._feeding.caught_up(stop)
        return await self._thread.call(self._owned_views, wanted)

    def _owned_views(self, wanted: Mapping[str, frozenset[int]]) -> list[PublishedView]:
        """Views of what is wanted, which is owned still: while updates were applied, the grant may have been lost. On
        the host's thread. Raises as OwnerLoop.check_owned."""
        self._feeding.check_owned(wanted)
        return self._states.views()

    def _restore(self, wanted: Mapping[str, frozenset[int]], stop: threading.Event) -> list[PublishedView]:
        """Restores what is wanted, and drops what is not. On the host's thread."""
        hosted = self._states.hosted
        for name, state in hosted.items():
            state.groups.retain(wanted.get(name, frozenset()))
        restore(
            hosted,
            # What was given up since (a Release, or as the server stepped down) is followed, and stays so.
            {name: [of for of in groups if not hosted[name].groups.is_followed(of)] for name, groups in wanted.items()},
            self._changelog,
            self._settings.clock,
            # Half of what the changelog keeps deletions for: the other half is for the restore itself.
            away_limit_ms=DELETE_RETENTION_MS // 2,
            deadline_seconds=self._settings.restore_deadline_seconds,
            stop=stop,
            at_once=self._settings.at_once,
        )
        return self._states.views()

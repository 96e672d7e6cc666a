"""One query on this server: its run, its grant, what it owns and follows, its states, and the epochs written to them.

Threads: what blocks or changes a store runs on the query's HostThread. The coroutines run on the event loop and publish
the thread's results to the tables, so that readers see an epoch of all the query's states in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from keyhole.changelog.base import Changelog
from keyhole.encoding.envelope import Base
from keyhole.errors import NotReady, StillRunning
from keyhole.model.epoch import EpochStamp, Run
from keyhole.protocol.receipts import GroupReceipt
from services.state_server.epoch_history import EpochHistory
from services.state_server.fence import Fence
from services.state_server.host_settings import HostSettings
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.replica.ownership import Ownership
from services.state_server.replica.take_over import StateShare
from services.state_server.write.attempts import Attempt
from services.state_server.write.commit import EpochToCommit, GroupCommitted
from services.state_server.write.epoch_writer import Decode, EpochWriter
from services.state_server.write.grant import Grant
from services.state_server.write.host_thread import HostThread
from services.state_server.write.merging import CommitContext
from services.state_server.write.owner_loop import OwnerLoop
from services.state_server.write.query_states import QueryStates
from services.state_server.write.staged import StagedAttempt

_log = logging.getLogger(__name__)


class QueryHost:
    """Holds each message about the query against its fence, and has it done by Ownership or EpochWriter. Made at the
    first OpenRun of a query; lives until the server forgets the query, or ends.

    Args:
        tables: The server's tables by (application, state); the host adds and removes its own.

    Attributes:
        fence: What messages about the query are held against.
        attempts: Whose rows are here.
        lease: By which its answers are confirmed, or no more.
        alone: Its coordinator knows nobody else who could own what it owns.
        epochs: What it has committed, for the server's figures.
        history: What its last epochs took, all servers together.
        feeding: What applies the updates of its states that are fed by them.
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
        self._settings = settings
        self.fence = Fence(application, query, settings.server, settings.incarnation)
        self.lease = Lease(settings.clock, settings.lease_seconds)
        self.alone = False
        self.history = EpochHistory()
        # Held while it is decided which run, or which assignment, comes next.
        self._changing = asyncio.Lock()
        self._thread = HostThread(settings.server, application, query)
        self._states = QueryStates(application, query, tables, self.lease, self._thread, settings)
        self._grant = Grant(settings.server, changelog, self._states.hosted, settings.kafka_deadline_seconds)
        self._writer = EpochWriter(application, self._states, self._grant, self.lease, self._thread, settings)
        self.attempts, self.epochs = self._writer.attempts, self._writer.counts
        self.feeding = OwnerLoop(
            query,
            changelog,
            self._states,
            self._grant,
            self._thread,
            settings,
            lambda: self.fence.run.generation,
            self.epochs,
        )
        self._ownership = Ownership(
            query,
            changelog,
            self._states,
            self.feeding,
            self.fence,
            self.lease,
            self._changing,
            self._thread,
            settings,
        )

    @property
    def ready(self) -> bool:
        """Whether it has been given key groups, to own or to follow, and all of them can be read."""
        return self._states.ready

    @property
    def owning(self) -> bool:
        """Whether it owns key groups, and its coordinator was heard of within the lease: somebody could take them
        over.
        """
        return not self.alone and not self.lease.expired and self._states.assigned

    @property
    def assigned(self) -> bool:
        """Whether it owns key groups, or is to, whoever else there is and whether its coordinator lives or not."""
        return self._states.assigned

    @property
    def states(self) -> list[str]:
        """The states that it has stores of."""
        return sorted(self._states.hosted)

    @property
    def running(self) -> bool:
        """A run is alive: heard of within the lease, or about to be given what is restored here.

        Where no run speaks to this server (a replica), the control topic has a word of one within that time.
        """
        if self._ownership.take_overs.under_way:
            return True
        within = self._settings.lease_seconds
        said = not self.fence.run.generation and self._ownership.standbys.told_within(within)
        return said or not self.lease.expired

    @property
    def idle(self) -> bool:
        """Whether nobody needs it: its run is not alive, and has left it nothing to own or to follow.

        Not so between a run's grant and its first assignment, however long that takes.
        """
        opening = self._changing.locked() or (not self._grant.given_up and not self.fence.version)
        return not (opening or self.running or self._states.given)

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
        return self._ownership.standbys.warm()

    def progress(self) -> tuple[int, int]:
        """Changelog records restored, and to restore, of all states."""
        return self._states.progress()

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
            if grant == self._grant.name:
                self._grant.check()
                return
            # The run counts from here on: the one before is refused while this one waits for Kafka. Should the grant
            # fail, its coordinator asks for another one.
            self.fence.begin(run, grant)
            self.attempts.drop_staged()
            await self._ownership.take_overs.stop()
            # No lease yet: others may own by now what it owned before.
            await self._thread.call(self._grant.take, grant)
        _log.info(
            "opened a run", extra={"application": run.application, "query": run.query, "generation": run.generation}
        )

    async def assign(
        self, run: Run, version: int, states: Sequence[StateShare], complete: EpochStamp, wait_seconds: float
    ) -> bool:
        return await self._ownership.assign(run, version, states, complete, wait_seconds)

    async def follow(self, states: Sequence[StateShare]) -> None:
        await self._ownership.follow(states)

    async def release(self, run: Run, state: str, groups: frozenset[int], version: int) -> None:
        await self._ownership.release(run, state, groups, version)

    async def renew(self, state: str, *, owned: bool, followed: bool) -> None:
        await self._ownership.renew(state, owned=owned, followed=followed)

    def confirm(self, run: Run, version: int, *, alone: bool = False) -> None:
        """The coordinator is alive, and this server still counts. `alone`: nobody else could own what it owns."""
        self.fence.check_may_confirm(run, version)
        if self.feeding.lost_its_grant:
            # Nobody commits anything here by whose answer the run would hear of it.
            raise NotReady(f"server {self._settings.server} has lost its grant; it needs another one")
        self.alone = alone
        self.lease.confirm()

    async def read_base(
        self, run: Run, incarnation: str, version: int, state: str, context: CommitContext, keys: Sequence[bytes]
    ) -> list[Base | None]:
        """See EpochWriter.read_base. Raises also what Fence.check_may_write does."""
        self.fence.check_may_write(run, incarnation, version)
        return await self._writer.read_base(state, context, keys)

    def begin_attempt(
        self,
        run: Run,
        incarnation: str,
        version: int,
        attempt: Attempt,
        replaces: bool | None = None,
        watermark_ms: int | None = None,
    ) -> StagedAttempt:
        """See EpochWriter.begin_attempt. Raises also what Fence.check_may_write does."""
        self.fence.check_may_write(run, incarnation, version)
        return self._writer.begin_attempt(attempt, replaces, watermark_ms)

    async def add_rows(self, attempt: StagedAttempt, decode: Decode) -> None:
        await self._writer.add_rows(attempt, decode)

    async def stage(self, name: Attempt, attempt: StagedAttempt, run: Run) -> list[GroupReceipt]:
        """See EpochWriter.check and `stage` there. Raises Fenced where a later run has come meanwhile."""
        await self._writer.check(attempt)
        self.fence.check_run(run)
        return self._writer.stage(name, attempt)

    async def commit(
        self, run: Run, incarnation: str, version: int, epoch: EpochToCommit, deadline_seconds: float
    ) -> list[GroupCommitted]:
        """See EpochWriter.commit. Raises also what Fence.check_may_write does."""
        self.fence.check_may_write(run, incarnation, version)
        return await self._writer.commit(epoch, version, deadline_seconds)

    def withdraw(self) -> None:
        """It is to be closed: nothing of it is read any more, nothing new begun, and a restore stops. Idempotent."""
        self._thread.refuse()
        self._ownership.take_overs.tell_to_stop()
        self._states.withdraw()

    async def close(self, *, destroy: bool = False) -> None:
        """Stops a restore, lets all else that is under way end, and closes the stores.

        Whoever still speaks to it gets what a server answers that has not seen the run: NotReady.

        Args:
            destroy: Deletes what the stores have on disk, too.
        """
        self.withdraw()
        async with self._changing:
            self.fence.close()
            self._grant.name = ""
            await self._ownership.take_overs.stop()
            await self._ownership.standbys.close()
            await self._writer.settled()
            await self.feeding.close()
            self.withdraw()  # what was just being opened
            try:
                await self._thread.call_always(self._close_on_thread, destroy)
            finally:  # a disk may refuse what is to be deleted
                self._states.hosted.clear()
                self.attempts.drop_staged()
                self._thread.end()

    def _close_on_thread(self, destroy: bool) -> None:
        self._grant.close()
        self._states.close_stores(destroy=destroy)

"""What writes the epochs of one query on this server: rows are staged, an epoch of them is committed and published.

Coroutines run on the event loop; rows, stores and the changelog are the host thread's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from keyhole.encoding.envelope import Base
from keyhole.errors import KafkaUnreachable, KeyholeError, NotOwner, StageLost, StateConflict
from keyhole.protocol.failpoints import Step
from keyhole.protocol.receipts import GroupReceipt
from services.state_server.counts import EpochCounts
from services.state_server.host_settings import HostSettings
from services.state_server.read.standing import Lease, Standing
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.attempts import Attempt, RoundAttempts
from services.state_server.write.bases import read_bases
from services.state_server.write.commit import EpochToCommit, GroupCommitted, commit_epoch
from services.state_server.write.grant import Grant
from services.state_server.write.host_thread import HostThread
from services.state_server.write.merging import CommitContext
from services.state_server.write.open_epoch import OpenEpoch
from services.state_server.write.query_states import PublishedView, QueryStates
from services.state_server.write.staged import StagedAttempt

_log = logging.getLogger(__name__)

Decode = Callable[[], tuple[list[bytes], list[bytes | None]]]
"""Reads a chunk's storage keys, and their rows (None deletes). Takes a while: it is called on the host's thread."""


class EpochWriter:
    """See the module's text. Whether a message may write was checked before: see QueryHost.

    Args:
        grant: Under which the changelog is written.
        lease: Confirmed by each commit.

    Attributes:
        attempts: Whose rows are here.
        counts: What was staged and committed, for the server's figures.
    """

    def __init__(
        self,
        application: str,
        states: QueryStates,
        grant: Grant,
        lease: Lease,
        thread: HostThread,
        settings: HostSettings,
    ) -> None:
        self.attempts = RoundAttempts(self._close_attempt)
        self.counts = EpochCounts()
        self._application = application
        self._states = states
        self._grant = grant
        self._lease = lease
        self._thread = thread
        self._settings = settings
        self._committing: set[asyncio.Future[list[GroupCommitted]]] = set()
        states.on_open(self._show_staged)

    def _show_staged(self, state: StateReplica) -> None:
        if state.applied is None:  # else no epochs come
            state.table.owned.staged = OpenEpoch(state.table, self.attempts, self._lease)

    async def read_base(self, state: str, context: CommitContext, keys: Sequence[bytes]) -> list[Base | None]:
        """The accumulators of an aggregating state before the epoch; None: the key had none.

        Of the first keys, as many as a message may have.

        Raises:
            NotOwner: A key group that isn't restored here.
            TooLarge: An accumulator that no message can carry.
        """
        return await self._thread.call(read_bases, self._states.state(state), context, keys)

    def begin_attempt(
        self, attempt: Attempt, replaces: bool | None = None, watermark_ms: int | None = None
    ) -> StagedAttempt:
        """Room for one task attempt's rows, not yet among what is staged (see `stage`).

        Args:
            replaces, watermark_ms: See StagedAttempt.

        Raises:
            NotOwner: Nothing of the state is here.
            StageLost: A newer round, or a newer epoch, has begun.
            StateConflict: The state is fed by updates.
        """
        state = self._state(attempt.state)
        name = f"{self._application}/{attempt.state}"
        groups, room = state.descriptor.key_groups, self._settings.room
        longest, merge = state.store.max_key_bytes, state.merge
        return self.attempts.begin(
            attempt, lambda: StagedAttempt(name, groups, longest, merge, room, replaces, watermark_ms)
        )

    def _state(self, name: str) -> StateReplica:
        state = self._states.state(name)
        if state.applied is not None:
            raise StateConflict(f"state {self._application}/{name} is fed by updates: it takes no epochs", state=name)
        return state

    async def add_rows(self, attempt: StagedAttempt, decode: Decode) -> None:
        """Adds a chunk to an attempt; where memory is short, rows of this query go to disk.

        Raises:
            Overloaded: The disk has no room for them either.
        """
        held = self.attempts.held()

        def add() -> None:
            attempt.add(*decode())
            self._settings.room.make_room(held)

        await self._thread.call(add)

    async def check(self, attempt: StagedAttempt) -> None:
        """Whether the rows of a whole attempt can be merged.

        Raises:
            DuplicateKey, ValueMismatch: Rows that are on disk can't be.
        """
        if attempt.spilled:
            await self._thread.call(attempt.check)

    def stage(self, name: Attempt, attempt: StagedAttempt) -> list[GroupReceipt]:
        """Makes a whole attempt, which was checked, part of what is staged; older rounds are dropped."""
        self.attempts.stage(name, attempt)
        receipts = attempt.receipts()
        self._count_staged(name, receipts)
        self._settings.observer.reached(Step.SERVER_STAGED, name.epoch)
        return receipts

    def _count_staged(self, name: Attempt, receipts: Sequence[GroupReceipt]) -> None:
        rows = self._states.state(name.state).table.rows
        rows.staged_rows += sum(receipt.rows for receipt in receipts)
        rows.staged_bytes += sum(receipt.bytes for receipt in receipts)
        self.counts.staged_epoch = name.epoch

    async def commit(self, epoch: EpochToCommit, version: int, deadline_seconds: float) -> list[GroupCommitted]:
        """Commits and publishes. A caller that goes away does not stop it half-way.

        Args:
            version: Of the assignment by which the published key groups are owned.

        Raises: See commit.commit_epoch; StateConflict where a state is fed by updates.
        """
        for name in epoch.states:
            self._state(name)
        committing = asyncio.ensure_future(self._commit(epoch, version, deadline_seconds))
        self._committing.add(committing)
        committing.add_done_callback(self._committing.discard)
        committing.add_done_callback(_log_failure)
        return await asyncio.shield(committing)

    async def _commit(self, epoch: EpochToCommit, version: int, deadline_seconds: float) -> list[GroupCommitted]:
        with self._lease.committing():
            return await self._commit_and_publish(epoch, version, deadline_seconds)

    async def _commit_and_publish(
        self, epoch: EpochToCommit, version: int, deadline_seconds: float
    ) -> list[GroupCommitted]:
        began = self._settings.clock.monotonic()
        try:
            committed, views = await self._thread.call(self._commit_on_thread, epoch, deadline_seconds)
        except KeyholeError as error:
            self.counts.failed[error.reason] += 1
            raise
        self._settings.counts.commit_seconds.observe(self._settings.clock.monotonic() - began)
        self._count_committed(epoch, committed)
        standing = Standing(epoch.stamp, version)
        self._states.publish(views, standing)
        self._lease.confirm()
        self.attempts.drop_committed(epoch.stamp.epoch)
        self._settings.observer.reached(Step.SERVER_COMMITTED, epoch.stamp.epoch)
        return committed

    def _count_committed(self, epoch: EpochToCommit, committed: Sequence[GroupCommitted]) -> None:
        new = {(group.state, group.key_group) for group in committed if not group.already}
        for name, part in epoch.states.items():
            rows = self._states.state(name).table.rows
            for receipt in part.receipts:
                if (name, receipt.key_group) in new:
                    rows.committed_rows += receipt.rows
                    rows.committed_bytes += receipt.bytes
        self.counts.committed += 1
        self.counts.replayed += len(new) < len(committed)
        self.counts.committed_epoch = epoch.stamp.epoch

    def _commit_on_thread(
        self, epoch: EpochToCommit, deadline_seconds: float
    ) -> tuple[list[GroupCommitted], list[PublishedView]]:
        writer = self._grant.check()
        sound = False
        try:
            committed = commit_epoch(epoch, self._states.hosted, writer, self._settings.observer, deadline_seconds)
            sound = True
        except (KafkaUnreachable, StageLost, NotOwner):
            sound = True
            raise
        finally:
            # Fenced, an unknown outcome, a store that could not follow: nothing more is written under this grant, and
            # what the stores lack is read back from the changelog.
            if not sound:
                self._grant.give_up()
        return committed, self._states.views()

    async def settled(self) -> None:
        """Returns once no commit is under way."""
        if self._committing:
            await asyncio.wait(self._committing)

    def _close_attempt(self, attempt: StagedAttempt) -> None:
        try:
            # Not here: the thread may be reading it.
            self._thread.submit(attempt.close)
        except RuntimeError:  # the thread has ended, with the host
            attempt.close()


def _log_failure(committing: asyncio.Future[list[GroupCommitted]]) -> None:
    """A caller that has gone away doesn't hear why a commit failed; it asks again."""
    if not committing.cancelled() and (error := committing.exception()) is not None:
        _log.info("a commit failed", extra={"why": str(error)})

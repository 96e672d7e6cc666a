"""Commits what was applied of the updates of a query's states: dead letters, then the changelog, then the stores.

One transaction at a time, in a thread of its own, while more is applied. It has as many key groups, of all the query's
states, as fit into a bound: each key group has its own epoch, so they need not come together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from keyhole.changelog.base import Changelog, ChangelogWriter, Partition, RefusedRecord
from keyhole.errors import (
    ChangelogRecreated,
    Fenced,
    InternalError,
    KafkaUnreachable,
    KeyholeError,
    OutcomeUnknown,
    StoreFull,
    TooLarge,
)
from keyhole.model.epoch import Position
from services.state_server.counts import EpochCounts
from services.state_server.host_settings import HostSettings
from services.state_server.read.watcher import GroupEpoch
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.fed_state import FedState, fed_states
from services.state_server.write.grant import Grant
from services.state_server.write.host_thread import HostThread
from services.state_server.write.query_states import QueryStates
from services.state_server.write.state_feed import FeedCommit
from services.state_server.write.topics_thread import TopicsThread

_log = logging.getLogger(__name__)

# Keys and rows of one transaction: at most, and where it was too much again and again. At least one key group.
_MOST_BYTES, _LEAST_BYTES = 32 << 20, 64 << 10
_LETTERS = 1_000


class _Commit(NamedTuple):
    """Of states of the query, in one transaction.

    Attributes:
        refused: Dead letters that must be written before.
        left: By state, key groups of which something was applied when it began, and that are not in it.
    """

    writer: ChangelogWriter
    of: Sequence[tuple[FedState, FeedCommit]]
    refused: Sequence[tuple[FedState, RefusedRecord]]
    left: Mapping[str, Collection[int]]


class FeedCommits:
    """See the module's text. Event loop, where nothing else is said.

    Args:
        generation: The generation of the run that is obeyed now. Any thread.
        counts: The query's, where commits that fail are counted.
    """

    def __init__(
        self,
        changelog: Changelog,
        states: QueryStates,
        grant: Grant,
        thread: HostThread,
        settings: HostSettings,
        generation: Callable[[], int],
        counts: EpochCounts,
    ) -> None:
        self._states = states
        self._grant = grant
        self._thread = thread
        self._settings = settings
        self._generation = generation
        self._counts = counts
        self._committing = asyncio.Lock()
        self._topics = TopicsThread(changelog, "keyhole-updates-commit")
        # Host thread's, as the following: of the grant under which was committed last.
        self._writer: ChangelogWriter | None = None
        self._highest: dict[str, dict[int, int]] = {}
        # The changelog has it, and a store does not yet.
        self._untold: tuple[_Commit, Mapping[Partition, int]] | None = None
        self._room = _MOST_BYTES

    async def commit(self) -> None:
        """Commits what was applied, if anything was.

        Raises:
            Fenced, OutcomeUnknown, InternalError: The grant is given up: the coordinator gives another one, and what is
                on record is restored.
            KeyholeError: What is not committed yet is kept; to be called again.
        """
        async with self._committing:
            await self._commit()

    @contextlib.asynccontextmanager
    async def committed(self) -> AsyncIterator[None]:
        """Nothing is in flight within, and what was applied until now is committed, if it can be: else the next owner
        applies it again. Raises KafkaUnreachable, and what `commit` raises where the grant is given up."""
        async with self._committing:
            if not self._grant.given_up:
                try:
                    await self._commit()
                except KafkaUnreachable:
                    raise
                except KeyholeError as error:
                    if self._grant.given_up:
                        raise
                    _log.warning("updates are not committed before a release", extra={"why": error.message})
            yield

    async def _commit(self) -> None:
        try:
            await self._commit_all()
        except Exception as error:
            if not self._thread.refusing:
                self._counts.failed[error.reason if isinstance(error, KeyholeError) else InternalError.reason] += 1
            raise

    async def _commit_all(self) -> None:
        left = None
        while not self._grant.given_up:
            with self._states.lease.committing():
                try:
                    commit = await self._thread.call(self._begin_commit, left)
                    if commit is not None:
                        await self._carry_out(commit)
                finally:
                    # Of a commit that fails, some stores may have their part.
                    await self._tell_watchers()
            if commit is None:
                return
            left = commit.left
            if not left:
                return

    async def _carry_out(self, commit: _Commit) -> None:
        sound = True
        try:
            await self._put_aside(commit)
            await self._topics.call(self._look, commit)
            sound = False
            try:
                offsets = await self._topics.call(self._write, commit)
            except KeyholeError as error:
                # Of all others the transaction is aborted for certain.
                sound = not isinstance(error, Fenced | OutcomeUnknown | InternalError)
                if isinstance(error, KafkaUnreachable | TooLarge):
                    self._room = max(_LEAST_BYTES, self._room // 2)
                raise
            await self._thread.call(self._write_store, commit, offsets)
            sound = True
        except ChangelogRecreated as error:
            await self._thread.call(self._refuse, error.facts.get("states", "").split(","), error)
            raise
        except StoreFull:
            sound = True  # it gets the rows again
            raise
        finally:
            await self._thread.call_always(self._end, commit, sound)
        self._room = min(_MOST_BYTES, self._room * 2)

    def _begin_commit(self, among: Mapping[str, Collection[int]] | None = None) -> _Commit | None:
        """What there is to commit, and under which grant. Host thread.

        Args:
            among: Key groups by state; None: all.
        """
        writer = self._grant.check()
        if writer is not self._writer:
            self._writer, self._highest, self._untold = writer, {}, None
        self._tell()
        fed = fed_states(self._states.hosted)
        for of in fed:
            of.leave()
        room = self._room
        found: list[tuple[FedState, FeedCommit]] = []
        left: dict[str, Collection[int]] = {}
        for of in fed:
            # An epoch that was written under this grant is never followed by an earlier one, whatever began anew.
            moved = of.feed.moved(self._highest.get(of.name, {}))
            taken: list[int] = []
            for group in moved if among is None else [one for one in moved if one in among.get(of.name, ())]:
                size = of.feed.bytes_of(group)
                if size <= room or not (found or taken):
                    taken.append(group)
                    room -= size
                else:
                    left[of.name] = [*left.get(of.name, ()), group]
            if taken and (commit := of.begin_commit(self._generation(), taken)) is not None:
                found.append((of, commit))
        if not found:
            return None
        refused = [(of, one) for of, made in found for one in of.refused if one.partition.key_group in made.feeds]
        return _Commit(writer, found, refused, left)

    async def _tell_watchers(self) -> None:
        """Those who watch get what is in the changelog and in the stores."""
        if not self._thread.refusing:
            for state, changed, positions, stored_ms in await self._thread.call(self._take_changed):
                state.table.changes.published(changed, positions)
                if state.table.feed is not None:
                    state.table.feed.stored_ms = stored_ms

    def _take_changed(self) -> list[tuple[StateReplica, list[GroupEpoch], dict[int, Position], dict[int, int]]]:
        """What each state has to tell its watchers, how far it is, and as of when. Host thread.

        The first watcher may have come while a store was written: of that write nothing was kept.
        """
        return [
            (
                of.state,
                of.state.take_changed(),
                {group: of.state.position(group) for group in of.state.groups.owned},
                of.groups.stored_ms(),
            )
            for of in fed_states(self._states.hosted)
        ]

    async def _put_aside(self, commit: _Commit) -> None:
        """Dead letters first. Those that are there are not written again, whatever becomes of the commit."""
        for at in range(0, len(commit.refused), _LETTERS):
            portion = commit.refused[at : at + _LETTERS]
            await self._topics.call(self._write_letters, [one for _, one in portion])
            await self._thread.call(self._forget_letters, portion)

    def _write_letters(self, letters: Sequence[RefusedRecord]) -> None:
        self._topics.topics().put_aside(letters, self._settings.kafka_deadline_seconds)

    def _forget_letters(self, letters: Sequence[tuple[FedState, RefusedRecord]]) -> None:
        """They are in their topic, and are not written again. Host thread."""
        for of in dict.fromkeys(of for of, _ in letters):
            of.put_aside([one for state, one in letters if state is of])

    def _look(self, commit: _Commit) -> None:
        """On the topics' thread, after all that is committed was read: else a topic made anew might be applied as long
        as nobody looks."""
        ids = {of.name: of.topic_id for of, _ in commit.of}
        if lost := self._topics.topics().lost(ids, self._settings.kafka_deadline_seconds):
            raise ChangelogRecreated(
                f"the updates topics of {', '.join(lost)} are gone, or were made anew: drop these states, and feed "
                "them from the start",
                states=",".join(lost),
            )

    def _write(self, commit: _Commit) -> Mapping[Partition, int]:
        """The transaction. On the topics' thread."""
        changes = [changed for _, of in commit.of for changed in of.changes]
        return self._grant.commit(commit.writer, changes, self._settings.kafka_deadline_seconds)

    def _write_store(self, commit: _Commit, offsets: Mapping[Partition, int]) -> None:
        """The changelog has it. Host thread."""
        for of, made in commit.of:
            highest = self._highest.setdefault(of.name, {})
            highest |= {one.partition.key_group: one.marker.stamp.epoch for one in made.changes}
        self._untold = commit, offsets
        self._tell()

    def _tell(self) -> None:
        """Brings the stores to what the changelog has, one that takes no more before the next commit. Host thread."""
        if self._untold is None:
            return
        (commit, offsets), self._untold = self._untold, None
        try:
            for of, made in commit.of:
                if self._states.hosted.get(of.name) is of.state:
                    of.feed.committed(made, offsets)
        except StoreFull:
            self._untold = commit, offsets
            raise
        for of, _ in commit.of:
            of.commit_ended()

    def _end(self, commit: _Commit, sound: bool) -> None:
        """Of a commit that is not sound, what is on record is restored under the next grant. Host thread.

        Args:
            sound: It was not fenced, its outcome is known, and the stores are where they should be.
        """
        if not sound:
            self._untold = None
            self._grant.give_up_of(commit.writer)
        if self._untold is None:
            for of, _ in commit.of:
                of.commit_ended()

    def _refuse(self, names: Sequence[str], error: KeyholeError) -> None:
        """Their updates topics are gone. Host thread."""
        for of in fed_states(self._states.hosted):
            if of.name in names:
                of.groups.refuse_all(error)

    async def close(self) -> None:
        """Returns once none is under way."""
        async with self._committing:
            await self._topics.close()

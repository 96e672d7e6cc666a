"""Commits what was applied of the updates of a query's states: dead letters, then the changelog, then the stores.

One commit at a time, in a thread of its own, while more is applied. All of a query's states are one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from keyhole.changelog.base import Changelog, ChangelogWriter, Partition, RefusedRecord, UpdatesTopics
from keyhole.errors import ChangelogRecreated, KafkaUnreachable, KeyholeError, StageLost
from services.state_server.host_settings import HostSettings
from services.state_server.write.fed_state import FedState, fed_states
from services.state_server.write.grant import Grant
from services.state_server.write.host_thread import HostThread
from services.state_server.write.query_states import QueryStates
from services.state_server.write.state_feed import FeedCommit


class _Commit(NamedTuple):
    """Of all states of the query, in one transaction."""

    writer: ChangelogWriter
    of: Sequence[tuple[FedState, FeedCommit]]
    refused: Sequence[tuple[FedState, Sequence[RefusedRecord]]]


class FeedCommits:
    """See the module's text. Event loop, where nothing else is said.

    Args:
        generation: The generation of the run that is obeyed now. Any thread.
    """

    def __init__(
        self,
        changelog: Changelog,
        states: QueryStates,
        grant: Grant,
        thread: HostThread,
        settings: HostSettings,
        generation: Callable[[], int],
    ) -> None:
        self._changelog = changelog
        self._states = states
        self._grant = grant
        self._thread = thread
        self._settings = settings
        self._generation = generation
        self._committing = asyncio.Lock()
        self._pool: ThreadPoolExecutor | None = None
        # The pool's.
        self._topics: UpdatesTopics | None = None

    async def commit(self) -> None:
        """Commits what was applied, if anything was. Where it is not for certain, the grant is given up.

        Raises:
            KafkaUnreachable: Nothing was committed; may be called again.
            KeyholeError: The grant is given up: the coordinator gives another one, and what is on record is restored.
        """
        async with self._committing:
            await self._commit()

    @contextlib.asynccontextmanager
    async def committed(self) -> AsyncIterator[None]:
        """What was applied until now is committed, and nothing is in flight within. Raises as `commit`."""
        async with self._committing:
            if not self._grant.given_up:
                await self._commit()
            yield

    async def _commit(self) -> None:
        if self._grant.given_up:
            return
        commit = await self._thread.call(self._begin_commit)
        if commit is None:
            return
        sound = False
        try:
            offsets = await asyncio.get_running_loop().run_in_executor(self._threads(), self._write, commit)
            await self._thread.call(self._write_store, commit, offsets)
            sound = True
        except (KafkaUnreachable, StageLost):
            sound = True
            raise
        except ChangelogRecreated as error:
            sound = True
            await self._thread.call(self._refuse, str(error.facts["states"]).split(","), error)
            raise
        finally:
            # Fenced, an unknown outcome, a store that could not follow: what is on record is restored under the next
            # grant, and applied from there.
            if not sound:
                await self._thread.call_always(self._grant.give_up_of, commit.writer)

    def _begin_commit(self) -> _Commit | None:
        """What there is to commit, and under which grant. Host thread."""
        writer = self._grant.check()
        for of in fed_states(self._states.hosted):
            of.leave()
        found = [
            (of, commit)
            for of in fed_states(self._states.hosted)
            if (commit := of.begin_commit(self._generation())) is not None
        ]
        if not found:
            return None
        return _Commit(writer, found, [(of, list(of.refused)) for of, _ in found])

    def _write(self, commit: _Commit) -> Mapping[Partition, int]:
        """Dead letters, then the transaction. In the pool."""
        deadline = self._settings.kafka_deadline_seconds
        topics = self._topics = self._topics or self._changelog.updates_topics()
        refused = [record for _, records in commit.refused for record in records]
        if refused:
            topics.put_aside(refused, deadline)
        # After all that is committed was read: else a topic made anew might be applied as long as nobody looks.
        ids = {of.name: of.topic_id for of, _ in commit.of}
        if lost := topics.lost(ids, deadline):
            raise ChangelogRecreated(
                f"the updates topics of {', '.join(lost)} are gone, or were made anew: drop these states, and feed "
                "them from the start",
                states=",".join(lost),
            )
        changes = [changed for _, of in commit.of for changed in of.changes]
        return self._grant.commit(commit.writer, changes, deadline)

    def _write_store(self, commit: _Commit, offsets: Mapping[Partition, int]) -> None:
        """The changelog has it. Host thread."""
        for of, made in commit.of:
            if self._states.hosted.get(of.name) is of.state:
                of.feed.committed(made, offsets)
        for of, records in commit.refused:
            of.put_aside(records)

    def _refuse(self, names: Sequence[str], error: KeyholeError) -> None:
        """Their updates topics are gone. Host thread."""
        for of in fed_states(self._states.hosted):
            if of.name in names:
                of.refuse_all(error)

    def _threads(self) -> ThreadPoolExecutor:
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="keyhole-updates-commit")
        return self._pool

    async def close(self) -> None:
        """Returns once none is under way."""
        async with self._committing:
            if self._pool is not None:
                if self._topics is not None:
                    await asyncio.get_running_loop().run_in_executor(self._pool, self._topics.close)
                self._pool.shutdown()

"""The owner's loop: reads the updates of what a query's states own here, applies them, and commits behind that.

    take      what was read last is applied, key groups that came or went are begun or ended     host thread
    begin     where new key groups go on is read                                                 a thread of its own
    publish   readers see it                                                                     event loop
    poll      the next records                                                                   another one
    commit    each 250 ms what was applied: dead letters, the changelog, then the store          another one

Only a query with states that are fed by updates has threads for it. Event loop, where nothing else is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from keyhole.changelog.base import Changelog, Partition, UpdatesRun, UpdatesTail
from keyhole.errors import ChangelogRecreated, KafkaUnreachable, KeyholeError, NotReady, UnavailableError
from services.state_server.counts import EpochCounts
from services.state_server.host_settings import HostSettings
from services.state_server.read.feed_progress import FeedProgress
from services.state_server.replica.ends_asking import EndsAsking, FollowedUpdates, LogEnd
from services.state_server.write.due_commits import DueCommits
from services.state_server.write.fed_begin import NewGroups
from services.state_server.write.fed_state import FedState, fed_states
from services.state_server.write.feed_beginnings import FeedBeginnings
from services.state_server.write.feed_commits import FeedCommits
from services.state_server.write.grant import Grant
from services.state_server.write.host_thread import HostThread
from services.state_server.write.query_states import PublishedView, QueryStates

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 1.0


class _TakenPoll(NamedTuple):
    """What the host thread made of a poll.

    Attributes:
        follows: What is to be read from now on.
        topic_ids: Of the states that are read.
        wanted: Of what it is asked where its log ends.
        views: What readers are to see.
        new: What is owned and not begun.
        commits: What was applied must be committed before all of it goes on.
        arrived: How many updates readers are to see, with where that is counted: by the broker's timestamp.
    """

    follows: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    wanted: Mapping[str, FollowedUpdates]
    views: Sequence[PublishedView]
    new: Sequence[NewGroups]
    commits: bool
    arrived: Sequence[tuple[FeedProgress, Mapping[int, int]]]


class OwnerLoop:
    """See the module's text. Belongs to one QueryHost.

    Args:
        generation: The generation of the run that is obeyed now. Any thread.
        counts: The query's, where commits that fail are counted.

    Attributes:
        ends: Asks where the logs of what is applied end.
    """

    def __init__(
        self,
        query: str,
        changelog: Changelog,
        states: QueryStates,
        grant: Grant,
        thread: HostThread,
        settings: HostSettings,
        generation: Callable[[], int],
        counts: EpochCounts,
    ) -> None:
        self._query = query
        self._changelog = changelog
        self._states = states
        self._grant = grant
        self._thread = thread
        self._settings = settings
        self._pool: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = threading.Event()
        # One step at a time, whoever asks for it.
        self._stepping = asyncio.Lock()
        self._commits = FeedCommits(changelog, states, grant, thread, settings, generation, counts)
        self._due = DueCommits(query, self._commits, thread, settings.clock)
        self._beginnings = FeedBeginnings(query, changelog, states, thread, settings)
        self._tail: UpdatesTail | None = None
        self._tail_ids: Mapping[str, str] = {}
        self._followed: Mapping[Partition, int] = {}
        self._runs: Sequence[UpdatesRun] = ()
        # Host thread's: states of which readers are to see something else.
        self._different: set[str] = set()
        self.ends = EndsAsking(
            changelog,
            query,
            settings.clock,
            settings.kafka_deadline_seconds,
            self._hear_ends,
            by_itself=settings.feeds_by_itself,
        )
        # Host thread's, and once the loop has ended its: those that have a share of the server's room.
        self._in_room: set[FedState] = set()
        # What was heard and the host thread has not taken.
        self._ends: dict[Partition, LogEnd] = {}

    @property
    def fed(self) -> list[FedState]:
        """The query's states that are fed by updates. Any thread."""
        return fed_states(self._states.hosted)

    @property
    def lost_its_grant(self) -> bool:
        """Nothing can be committed any more, and it is the coordinator that must hear so."""
        return self._grant.given_up and any(of.applied is not None for of in self._states.hosted.values())

    def begin(self) -> None:
        """Starts the loop, where there are states that are fed by updates. Idempotent."""
        if self._pool is None and self.fed and not self._closed.is_set():
            self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"keyhole-updates-{self._query}")
            if self._settings.feeds_by_itself:
                self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._closed.is_set():
            try:
                await self.step(_POLL_SECONDS)
                continue
            except KeyholeError as error:
                if self._closed.is_set() or self._thread.refusing:
                    return
                _log.warning("updates are not applied", extra={"query": self._query, "why": error.message})
            except Exception:  # noqa: BLE001 - the top of a loop: were it to end, rows would stand still, unheard
                _log.exception("updates are not applied", extra={"query": self._query})
            await self._in_pool(self._settings.clock.wait, self._closed, _AGAIN_SECONDS)

    async def step(self, seconds: float) -> None:
        """Applies and publishes what was read last, begins a commit if one is due, and reads what comes in that time.

        Raises:
            KeyholeError: It can be called again: what was read and not applied is read again.
        """
        async with self._stepping:
            try:
                await self._step(seconds)
            except BaseException:
                await self._break_off()
                raise

    async def _break_off(self) -> None:
        self._runs = ()
        if self._tail is not None:
            await self._in_pool(self._close_tail)

    async def _step(self, seconds: float) -> None:
        runs, self._runs = self._runs, ()
        taken = await self._taken(runs)
        if taken.new and await self._beginnings.begin(taken.new):
            taken = await self._taken(())
        self._due.begin_if_due(early=taken.commits)
        if not taken.follows:
            await self._break_off()
            await self._settings.clock.pause(seconds)
            return
        try:
            self._runs = await self._in_pool(self._poll, taken.follows, taken.topic_ids, seconds)
        except ChangelogRecreated as error:
            await self._refuse(error, taken.topic_ids)
            raise

    async def _taken(self, runs: Sequence[UpdatesRun]) -> _TakenPoll:
        ends, self._ends = self._ends, {}
        taken = await self._thread.call(self._take, runs, ends)
        self.ends.want(taken.wanted)
        self._states.publish_applied(taken.views)
        for progress, arrived in taken.arrived:
            progress.note_shown(arrived)
        return taken

    def _hear_ends(self, ends: Mapping[Partition, LogEnd]) -> None:
        self._ends |= ends

    def _take(self, runs: Sequence[UpdatesRun], ends: Mapping[Partition, LogEnd]) -> _TakenPoll:
        """Applies what was read, and takes in what was heard. On the host thread."""
        fed, commits = self.fed, False
        for of in fed:
            of.leave()
            if of.evolving:
                commits |= not of.evolve()
            if of.take_different():
                self._different.add(of.name)
        follows: dict[Partition, int] = {}
        for of in fed:
            if not of.evolving and of.apply([run for run in runs if run.partition.state == of.name]):
                self._different.add(of.name)
            if not self._may_read(of):
                commits = True
            elif not of.evolving:
                follows |= of.groups.follows
        self._make_room(fed)
        for of in fed:
            # Behind what was applied: so it may have come to them.
            if of.groups.ended(self._ends_of(of, ends)):
                self._different.add(of.name)
        new = [found for of in fed if not of.evolving and (found := of.groups.new) is not None]
        different, self._different = self._different, set()
        views = self._states.applied_views(different) if different else []
        arrived = [(of.progress, of.take_arrived()) for of in fed]
        topic_ids = {of.name: of.topic_id for of in fed}
        wanted = {of.name: FollowedUpdates(of.topic_id, of.groups.read) for of in fed}
        return _TakenPoll(follows, topic_ids, wanted, views, new, commits, arrived)

    def _may_read(self, of: FedState) -> bool:
        """Whether there is room for more of its updates. Host thread."""
        if not of.groups.read and not of.held:
            self._leave_room(of)
            of.note(full=False)
            return True
        self._in_room.add(of)
        reads = self._settings.fed_room.may_read(of, of.room_bytes)
        of.note(full=not reads)
        return reads

    def _make_room(self, fed: Sequence[FedState]) -> None:
        """States that are closed, or were made anew, hold nothing. Host thread."""
        for of in self._in_room.difference(fed):
            self._leave_room(of)

    def _leave_room(self, of: FedState) -> None:
        self._in_room.discard(of)
        self._settings.fed_room.leave(of)

    def _ends_of(self, of: FedState, ends: Mapping[Partition, LogEnd]) -> dict[int, LogEnd]:
        """Of the updates topic that the state has now, by key group."""
        return {
            part.key_group: end
            for part, end in ends.items()
            if part.state == of.name and self.ends.wants(part, of.topic_id)
        }

    def _poll(
        self, follows: Mapping[Partition, int], topic_ids: Mapping[str, str], seconds: float
    ) -> Sequence[UpdatesRun]:
        """In the pool. Of what is followed anew, what was fetched before is dropped."""
        if self._tail is not None and topic_ids != self._tail_ids:
            self._close_tail()
        if self._tail is None:
            self._tail, self._tail_ids, self._followed = self._changelog.updates_tail(topic_ids), topic_ids, {}
        if follows != self._followed:
            self._tail.follow(follows)
        runs = self._tail.poll(seconds)
        after = {run.partition: run.updates[-1].offset + 1 if run.end is None else run.end for run in runs}
        self._followed = {**follows, **after}
        return runs

    def _close_tail(self) -> None:
        if self._tail is not None:
            tail, self._tail = self._tail, None
            tail.close()

    async def _refuse(self, error: ChangelogRecreated, topic_ids: Mapping[str, str]) -> None:
        """Updates that are needed are gone: of which state, or key group, the error says, or Kafka.

        Raises:
            KafkaUnreachable: That is not known; nothing was refused.
        """

        def refuse(lost: Sequence[str]) -> None:
            state, group = error.facts.get("state"), error.facts.get("partition")
            for of in self.fed:
                if of.name in lost:
                    of.groups.refuse_all(error)
                elif of.name == state and group is not None:
                    of.groups.refuse(int(group), error)

        await self._thread.call(refuse, await self._beginnings.lost(topic_ids))

    async def caught_up(self, stop: threading.Event) -> None:
        """Returns once all that is owned may be shown: it is applied up to where its log ended when it was begun.

        Raises:
            NotReady: It is to stop, or the grant was given up meanwhile: nothing is owned.
            KafkaUnreachable: No progress for the deadline of restores.
            KeyholeError: Where the key groups go on can't be read, and waiting won't help.
        """
        if not self.fed:
            return
        self.begin()
        self._beginnings.wanted_until(stop)
        clock, patience = self._settings.clock, self._settings.restore_deadline_seconds
        progress, since = -1, clock.monotonic()
        while True:
            if stop.is_set() or self._closed.is_set():
                raise NotReady("updates are not applied up to their end: another assignment is coming, or it stops")
            error: KeyholeError | None = None
            try:
                await self.step(0.01)
            except (KafkaUnreachable, ChangelogRecreated) as reason:
                error = reason
                await clock.pause(0.05)
            settled, now = await self._thread.call(self._progress)
            if settled and error is None:
                return
            if error is None and self._beginnings.failure is not None:
                error = self._beginnings.failure
                if not isinstance(error, UnavailableError):
                    raise error
                await clock.pause(0.05)
            if now != progress:
                progress, since = now, clock.monotonic()
            elif clock.monotonic() - since > patience:
                raise error or KafkaUnreachable(f"no updates came for {patience:g} s, and more are needed")

    def check_owned(self, wanted: Mapping[str, frozenset[int]]) -> None:
        """Passes where what was wanted is owned, and can be committed. Host thread.

        Args:
            wanted: By state; what was given up since is followed.

        Raises:
            NotReady: Something of it is not owned, or can't be committed.
        """
        self._check_granted()
        for name, key_groups in wanted.items():
            groups = self._states.hosted[name].groups
            missing = [of for of in key_groups - groups.owned if not groups.is_followed(of)]
            if missing:
                raise NotReady(f"key groups {sorted(missing)[:10]} of state {name} are not owned any more")

    def _check_granted(self) -> None:
        if self.lost_its_grant and any(of.state.table.given.assigned for of in self.fed):
            raise NotReady(f"server {self._settings.server} has lost its grant; it needs another one")

    def _progress(self) -> tuple[bool, int]:
        self._check_granted()
        fed = self.fed
        return all(of.groups.settled for of in fed), sum(of.groups.read_so_far for of in fed)

    async def commit(self) -> None:
        """Commits what was applied. Raises as FeedCommits.commit."""
        await self._commits.commit()

    @contextlib.asynccontextmanager
    async def committed(self) -> AsyncIterator[None]:
        """What was applied until now is committed, and nothing is in flight within. Raises as `commit`."""
        if self._pool is None:
            yield
            return
        async with self._commits.committed():
            yield

    async def close(self) -> None:
        """Ends the loop, and lets what is under way end. What was applied and not committed is applied again."""
        self._closed.set()
        self.ends.close()
        if self._pool is None:
            return
        if self._tail is not None:
            # So a poll under way ends.
            await self._in_pool(self._tail.close)
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._due.ended()
        async with self._stepping:
            await self._in_pool(self._close_tail)
            self._pool.shutdown()
        await self._beginnings.close()
        await self._commits.close()
        self._make_room(())
        await asyncio.get_running_loop().run_in_executor(None, self.ends.join)

    async def _in_pool(self, call: Callable[..., _Result], *args: object) -> _Result:
        assert self._pool is not None
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *args)

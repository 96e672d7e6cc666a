"""One watch on one server: the rows that are there, then each committed change, in the order of each key group.

    watch_first_rows.py   the rows of published snapshots, key group by key group
    watch_read_back.py    what has changed behind a mark, read back from the changelog
    here                  what is published from now on, and the last epochs that are in memory

A watch that goes on from a token begins with whichever of these its marks ask for. All three move the marks in
watch_given.py, which makes the messages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from keyhole.rpc.watch_requests import WatchAsked
from services.state_server.read.table import Table
from services.state_server.read.watch_first_rows import FirstRows
from services.state_server.read.watch_given import GivenSoFar
from services.state_server.read.watch_messages import GatheredChanges, Message
from services.state_server.read.watch_parts import ChangesParts, WatchLimits
from services.state_server.read.watch_read_back import ReadBack
from services.state_server.read.watch_selection import WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshots
from services.state_server.read.watcher import History, Watcher


class Watching:
    """See the module's text. Event loop.

    Args:
        ended: Why the watch ends where nothing of its state is here any more.
    """

    def __init__(
        self,
        table: Table,
        asked: WatchAsked,
        history: History,
        clock: Clock,
        ended: Callable[[], KeyholeError | None],
        limits: WatchLimits,
        snapshots: WatchSnapshots,
        select: WatchSelection,
    ) -> None:
        self._table = table
        self._changes = table.changes
        self._asked = asked
        self._limits = limits
        self._given = given = GivenSoFar(table, asked, clock, ended)
        self._watcher = Watcher(
            asked.keys,
            asked.key_groups,
            befores=select.wants_befores,
            latest_only=asked.latest_only,
            unsure=asked.latest_only and asked.place is not None and bool(asked.predicate),
        )
        expires = table.descriptor.ttl_ms > 0
        self._parts = ChangesParts(select, limits, given.is_due, befores=asked.before, expires=expires)
        self._back = ReadBack(table, given, history, clock, self._watcher, self._parts)
        self._rows = FirstRows(table, asked, given, self._back, clock, limits, snapshots, select)

    async def messages(self) -> AsyncGenerator[Message]:
        """For as long as it is read, or until it is let go. Close it.

        Raises:
            NotOwner, NotReady: Its key groups are not, or no longer, this server's.
            MalformedRequest: Its token names what no watch can have given.
            ResumeGone: What has changed since its token may not be in the changelog any more.
            TooSlow: Its reader takes changes more slowly than they come.
            KafkaUnreachable: The changelog, which is needed, can't be read.
            KeyholeError: What `ended` gives.
        """
        given = self._given
        given.check_here()
        self._changes.expect(self._watcher, self._table.committed.positions)
        try:
            given.begin()
            beginning = self._asked.place is None or any(mark.below is not None for mark in given.marks.values())
            given.check_reached()
            # So that the caller knows that it is here.
            yield given.message()
            async with aclosing(self._rows.messages()) as rows:
                async for message in rows:
                    yield message
            while True:
                given.check_here()
                given.check_reached()
                attached = self._changes.attach(self._watcher, given.marks)
                if beginning:
                    beginning = False
                    if attached:
                        # So that its reader knows from the first rows on of which epoch they are.
                        self._up_to_date()
                    yield given.message(snapshot_done=True)
                async with aclosing(self._live() if attached else self._back.catch_up()) as messages:
                    async for message in messages:
                        yield message
        finally:
            self._changes.detach(self._watcher)

    async def _live(self) -> AsyncGenerator[Message]:
        """Until something has come that is not in memory."""
        watcher, given = self._watcher, self._given
        # At once, where its reader doesn't know yet up to which epoch it has all.
        is_due = given.epoch_is_news
        while True:
            gathered = GatheredChanges(self._limits.page_bytes, self._limits.page_changes)
            while (pending := watcher.take()) is not None:
                async for part in self._parts.of(pending, given.marks):
                    if gathered.add(*part) or given.is_due():
                        yield given.message(*gathered.taken())
                if given.is_due():
                    # Much has come, and little of it was selected.
                    yield given.message(*gathered.taken())
            if sent := gathered.taken():
                self._up_to_date()
                is_due &= not given.stamp.epoch
                yield given.message(*sent)
            given.check_here()
            if watcher.error is not None:
                raise watcher.error
            if watcher.lost:
                return
            self._up_to_date()
            if (left := given.progress_left) <= 0 or is_due:
                is_due = False
                yield given.message()
            else:
                await watcher.woken(left)

    def _up_to_date(self) -> None:
        """All that was published has been sent, where nothing waits."""
        watcher = self._watcher
        if not (watcher.waiting or watcher.lost or watcher.error is not None):
            self._given.reach_published()

"""One watch on one server: the rows that are there, then each committed change, in the order of each key group.

    rows        of the published snapshot, key group by key group
    catch up    what has changed behind a mark, read back from the changelog
    live        what is published from now on, and the last epochs that are in memory

A watch that goes on from a token begins with whichever of these its marks ask for. Event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing

from keyhole.clock import Clock
from keyhole.encoding.envelope import expiry_ms
from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace
from keyhole.errors import KeyholeError, MalformedRequest, NotReady
from keyhole.model.epoch import NO_EPOCH, START, EpochStamp, Position
from keyhole.rpc.watch_requests import WatchAsked
from services.state_server.read.table import Table
from services.state_server.read.watch_messages import GatheredChanges, Message, Sent
from services.state_server.read.watch_parts import ChangesParts, WatchLimits
from services.state_server.read.watch_progress import or_none
from services.state_server.read.watch_rows import entries_of, shown_rows, turns
from services.state_server.read.watch_selection import WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshot, WatchSnapshots
from services.state_server.read.watch_times import REFRESH_MS, GivenTimes
from services.state_server.read.watcher import History, Pending, Watcher

_PAUSE_SECONDS = 0.05


class Watching:
    """See the module's text.

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
        self._history = history
        self._clock = clock
        self._ended = ended
        self._limits = limits
        self._snapshots = snapshots
        self._select = select
        self._descriptor = table.descriptor
        self._expires = table.descriptor.ttl_ms > 0
        self._marks: dict[int, WatchMark] = {}
        self._times = GivenTimes()
        self._refreshed_ms = 0
        # Of the last epoch of which all was given.
        self._stamp = NO_EPOCH
        # When it was told something last, and up to which epoch it had all then.
        self._told_at, self._told_epoch = clock.monotonic(), 0
        self._parts = ChangesParts(select, limits, self._is_due, befores=asked.before, expires=self._expires)
        self._watcher = Watcher(
            asked.keys, asked.key_groups, befores=select.wants_befores, latest_only=asked.latest_only
        )

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
        self._check_here()
        self._changes.expect(self._watcher, self._table.committed.positions)
        try:
            self._begin()
            beginning = self._asked.place is None or any(mark.below is not None for mark in self._marks.values())
            self._check_reached()
            # So that the caller knows that it is here.
            yield self._message()
            async with aclosing(self._rows()) as rows:
                async for message in rows:
                    yield message
            while True:
                self._check_here()
                self._check_reached()
                attached = self._changes.attach(self._watcher, self._marks)
                if beginning:
                    beginning = False
                    if attached:
                        # So that its reader knows from the first rows on of which epoch they are.
                        self._up_to_date()
                    yield self._message(snapshot_done=True)
                async with aclosing(self._live() if attached else self._catch_up()) as messages:
                    async for message in messages:
                        yield message
        finally:
            self._changes.detach(self._watcher)

    # --- where it is --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        asked = self._asked
        self._times.given_all(self._table.complete_ms)
        if asked.place is not None:
            self._marks = {group: asked.place.marks[group] for group in asked.key_groups}
            if any(mark.begun for mark in self._marks.values()):
                # By a clock that was ahead of this one, or made up: nothing was committed later than now.
                self._times.all_ms = min(asked.place.as_of_ms, self._clock.now_ms())
                self._check_place(asked.place)
        elif asked.snapshot:
            self._marks = dict.fromkeys(asked.key_groups, NOT_BEGUN)
        else:
            self._marks = {group: WatchMark.at(self._changes.positions[group]) for group in asked.key_groups}
        self._refreshed_ms = self._times.all_ms

    def _check_place(self, place: WatchPlace) -> None:
        most = self._table.keys.most_bytes
        if any(len(mark.below or b"") > most for mark in place.marks.values()):
            raise MalformedRequest(
                f"the token names no place of state {self._table.name}: a key of it takes {most} bytes at most. Begin "
                "its watch without it"
            )

    def _check_here(self) -> None:
        if (ended := self._ended()) is not None:
            raise ended
        if not self._asked.key_groups <= self._table.groups:
            raise self._table.refusal()

    def _check_reached(self) -> None:
        positions = self._changes.positions
        for group, mark in self._marks.items():
            self._check_not_ahead(group, mark, positions[group])

    def _check_not_ahead(self, group: int, mark: WatchMark, position: Position) -> None:
        if mark.begun and mark.offset > position.offset:
            raise NotReady(
                f"this server's copy of key group {group} of state {self._table.name} is behind the watch's token",
                server=self._table.server,
            )

    def _message(self, *sent: Sent, whole: bool = True, snapshot_done: bool = False) -> Message:
        self._told_at, self._told_epoch = self._clock.monotonic(), self._stamp.epoch
        as_of_ms = self._times.least(group for group, mark in self._marks.items() if mark.begun)
        token = WatchPlace(self._marks, as_of_ms).token(self._descriptor, self._asked.digest) if whole else ""
        return Message(sent, token, as_of_ms, self._stamp, snapshot_done)

    @property
    def _progress_left(self) -> float:
        """In how many seconds a message is due, also where there is nothing to tell."""
        return self._told_at + self._asked.progress_seconds - self._clock.monotonic()

    def _is_due(self) -> bool:
        return self._progress_left < 0

    # --- the rows that are there --------------------------------------------------------------------------------------

    async def _rows(self) -> AsyncGenerator[Message]:
        for group in sorted(self._marks):
            while self._marks[group].below is not None:
                self._check_here()
                # While no snapshot is held: then there is little to read back for the one that is.
                async with aclosing(self._refresh()) as messages:
                    async for message in messages:
                        yield message
                async with aclosing(self._since_given(group, self._changes.positions[group])) as messages:
                    async for message in messages:
                        yield message
                async with aclosing(self._rows_of(group)) as messages:
                    async for message in messages:
                        yield message

    async def _rows_of(self, group: int) -> AsyncGenerator[Message]:
        """Rows of one snapshot, as many as its time allows; none where it can't be read from yet."""
        async with self._snapshots.queued() as queued:
            while not await queued.has_turn(self._progress_left):
                self._check_here()
                yield self._message()
                # It keeps its place meanwhile.
                async with aclosing(self._refresh()) as messages:
                    async for message in messages:
                        yield message
            complete_ms = self._table.complete_ms
            held = queued.held(self._table.committed.hold)
            self._check_here()
            position, told = held.positions.get(group, START), self._changes.positions[group]
            # What others have yet to be given, all get together.
            early = position.offset > told.offset
            if not early:
                async with aclosing(self._since_given(group, position)) as messages:
                    async for message in messages:
                        yield message
                mark = self._marks[group]
                early = mark.begun and mark.offset < position.offset
            if not early and not held.closed:
                self._marks[group] = WatchMark(position.offset, position.epoch, 0, mark.below)
                self._times.given(group, complete_ms)
                async with aclosing(self._pages(held, group, position)) as messages:
                    async for message in messages:
                        yield message
        if early:
            await self._clock.pause(_PAUSE_SECONDS)
            if self._is_due():
                yield self._message()

    async def _refresh(self) -> AsyncGenerator[Message]:
        """What has changed of rows that were given, once in a while: all rows may take longer than a token lives."""
        now_ms = self._clock.now_ms()
        if now_ms - self._refreshed_ms <= REFRESH_MS:
            return
        self._refreshed_ms = now_ms
        complete_ms, positions = self._table.complete_ms, dict(self._changes.positions)
        begun = [group for group, mark in self._marks.items() if mark.begun]
        whole = {
            group: positions[group].offset
            for group in begun
            if self._marks[group].below is None and self._marks[group].offset < positions[group].offset
        }
        if whole:
            async with aclosing(self._behind(whole)) as messages:
                async for message in messages:
                    yield message
        for group in begun:
            async with aclosing(self._since_given(group, positions[group])) as messages:
                async for message in messages:
                    yield message
            if self._marks[group].offset >= positions[group].offset:
                self._times.given(group, complete_ms)

    async def _since_given(self, group: int, position: Position) -> AsyncGenerator[Message]:
        """Of the rows that were given already, what has changed up to a snapshot."""
        mark = self._marks[group]
        self._check_not_ahead(group, mark, position)
        if mark.begun and mark.offset < position.offset:
            async with aclosing(self._behind({group: position.offset}, mark.below)) as messages:
                async for message in messages:
                    yield message

    async def _pages(self, held: WatchSnapshot, group: int, position: Position) -> AsyncGenerator[Message]:
        """The rows of a key group above its mark; where that takes too long, the first of them."""
        limits, mark = self._limits, self._marks[group]
        show, last = self._table.show(position.stamp), b""
        sent, indexed = self._begun(group, position.stamp), self._table.by_index(self._select.indexed)
        entries = held.reading(entries_of(held.stored, group, self._asked.keys, mark.below or b"", indexed))
        for number, turn in enumerate(turns(entries, self._select.turn, limits.page_bytes)):
            if number:
                if last:
                    self._marks[group] = WatchMark(position.offset, position.epoch, 0, last)
                if sent.keys or self._is_due():
                    yield self._message(*([sent] if sent.keys else []))
                    sent = self._begun(group, position.stamp)
                if await self._interrupted(held):
                    return
            stored = {key: entry for key, entry in turn if entry is not None} if self._expires else {}
            for key, row in self._select.kept(shown_rows(turn, show)):
                sent.add(key, row, expires_ms=expiry_ms(stored[key]) if stored else 0)
                if sent.size >= limits.page_bytes or len(sent.keys) >= limits.page_changes:
                    self._marks[group] = WatchMark(position.offset, position.epoch, 0, key)
                    yield self._message(sent)
                    sent = self._begun(group, position.stamp)
                    if await self._interrupted(held):
                        return
            last = turn[-1][0] or last
        self._marks[group] = WatchMark.at(position)
        if sent.keys:
            yield self._message(sent)

    def _begun(self, group: int, stamp: EpochStamp) -> Sent:
        """What rows that are there are added to."""
        return Sent(group, stamp, snapshot=True, expires=[] if self._expires else None)

    async def _interrupted(self, held: WatchSnapshot) -> bool:
        """Others have their turn. Whether the snapshot was closed meanwhile."""
        await asyncio.sleep(0)
        self._check_here()
        return held.closed

    # --- what is not in memory ----------------------------------------------------------------------------------------

    async def _catch_up(self) -> AsyncGenerator[Message]:
        # Of one moment: whoever has all up to these positions has all of the epoch, and all that was complete.
        positions, complete_ms, stamp = self._changes.positions, self._table.complete_ms, self._published
        ends = {
            group: positions[group].offset
            for group, mark in self._marks.items()
            if mark.skip or mark.offset < positions[group].offset
        }
        async with aclosing(self._behind(ends)) as messages:
            async for message in messages:
                yield message
        if any(self._marks[group].offset < end for group, end in ends.items()):
            await self._clock.pause(_PAUSE_SECONDS)
            if self._is_due():
                yield self._message()
        else:
            self._times.given_all(complete_ms)
            self._stamp = stamp

    def _check_age(self, key_groups: Iterable[int]) -> None:
        self._times.check(key_groups, self._clock.now_ms(), self._table.name)

    async def _behind(self, ends: Mapping[int, int], below: bytes | None = None) -> AsyncGenerator[Message]:
        """What was committed between the marks and these ends.

        Args:
            below: Only of keys up to this one; None: of all.
        """
        self._check_age(ends)
        offsets = {group: self._marks[group].offset for group in ends}
        async with aclosing(self._history.epochs(self._descriptor, offsets, ends)) as epochs:
            async for epoch in or_none(epochs, lambda: self._progress_left):
                self._check_age(ends)
                self._check_here()
                if epoch is None:
                    yield self._message()
                    continue
                mark = self._marks[epoch.key_group]
                changes = epoch.changed(self._watcher.keys_in(epoch.key_group), mark.skip)
                if below is not None:
                    changes = (change for change in changes if change.key <= below)
                pending = Pending(epoch.key_group, mark.offset, epoch.after, changes, False, 0)
                async for part in self._parts.of(pending, self._marks, below):
                    yield self._message(*part.sent, whole=part.whole)
                if self._is_due():
                    # Much was read back, and nothing of it was selected.
                    yield self._message()

    # --- what comes ---------------------------------------------------------------------------------------------------

    async def _live(self) -> AsyncGenerator[Message]:
        """Until something has come that is not in memory."""
        watcher = self._watcher
        # At once, where nobody was told yet up to which epoch all was given.
        is_due = not self._stamp.epoch or self._told_epoch != self._stamp.epoch
        while True:
            gathered = GatheredChanges(self._limits.page_bytes, self._limits.page_changes)
            while (pending := watcher.take()) is not None:
                async for part in self._parts.of(pending, self._marks):
                    if gathered.add(*part.sent) or not part.whole:
                        yield self._message(*gathered.taken(), whole=part.whole)
                if self._is_due():
                    # Much has come, and little of it was selected.
                    yield self._message(*gathered.taken())
            if sent := gathered.taken():
                self._up_to_date()
                is_due &= not self._stamp.epoch
                yield self._message(*sent)
            self._check_here()
            if watcher.error is not None:
                raise watcher.error
            if watcher.lost:
                return
            self._up_to_date()
            if (left := self._progress_left) <= 0 or is_due:
                is_due = False
                yield self._message()
            else:
                await watcher.woken(left)

    def _up_to_date(self) -> None:
        """All that was published has been sent, where nothing waits."""
        watcher = self._watcher
        if watcher.waiting or watcher.lost or watcher.error is not None:
            return
        if not self._asked.key_groups <= self._table.groups:  # whose next owner may have written since
            return
        positions = self._changes.positions
        for group, mark in self._marks.items():
            if mark.offset < positions[group].offset:
                self._marks[group] = WatchMark.at(positions[group])
        self._times.given_all(self._table.complete_ms)
        self._stamp = self._published

    @property
    def _published(self) -> EpochStamp:
        """Of the last epoch that readers see; of a state that is fed by updates there is none."""
        return NO_EPOCH if self._table.feed is not None else self._table.standing.stamp

"""What one watch is given that is not in memory: read back from the changelog, behind what was given."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from keyhole.clock import Clock
from keyhole.model.epoch import Position
from services.state_server.read.table import Table
from services.state_server.read.watch_given import GivenSoFar
from services.state_server.read.watch_messages import Message
from services.state_server.read.watch_parts import ChangesParts
from services.state_server.read.watch_progress import or_none
from services.state_server.read.watch_times import REFRESH_MS
from services.state_server.read.watcher import History, Pending, Watcher

PAUSE_SECONDS = 0.05
"""After which it is looked again for what is not there yet."""


class ReadBack:
    """Of one watch. Close each of its generators. Event loop.

    All of them raise ResumeGone, KafkaUnreachable, and what GivenSoFar.check_here does.
    """

    def __init__(
        self,
        table: Table,
        given: GivenSoFar,
        history: History,
        clock: Clock,
        watcher: Watcher,
        parts: ChangesParts,
    ) -> None:
        self._table = table
        self._changes = table.changes
        self._descriptor = table.descriptor
        self._given = given
        self._history = history
        self._clock = clock
        self._watcher = watcher
        self._parts = parts

    async def catch_up(self) -> AsyncGenerator[Message]:
        """What was published behind the marks, of all key groups."""
        given = self._given
        # Of one moment: whoever has all up to these positions has all of the epoch, and all that was complete.
        positions, complete_ms, stamp = self._changes.positions, self._table.complete_ms, given.published
        ends = {
            group: positions[group].offset
            for group, mark in given.marks.items()
            if mark.skip or mark.offset < positions[group].offset
        }
        async with aclosing(self._behind(ends)) as messages:
            async for message in messages:
                yield message
        if any(given.marks[group].offset < end for group, end in ends.items()):
            await self._clock.pause(PAUSE_SECONDS)
            if given.is_due():
                yield given.message()
        else:
            given.times.given_all(complete_ms)
            given.stamp = stamp

    async def refresh(self) -> AsyncGenerator[Message]:
        """What has changed of rows that were given, once in a while: all rows may take longer than a token lives."""
        given, now_ms = self._given, self._clock.now_ms()
        if now_ms - given.refreshed_ms <= REFRESH_MS:
            return
        given.refreshed_ms = now_ms
        complete_ms, positions = self._table.complete_ms, dict(self._changes.positions)
        begun = [group for group, mark in given.marks.items() if mark.begun]
        whole = {
            group: positions[group].offset
            for group in begun
            if given.marks[group].below is None and given.marks[group].offset < positions[group].offset
        }
        if whole:
            async with aclosing(self._behind(whole)) as messages:
                async for message in messages:
                    yield message
        for group in begun:
            async with aclosing(self.since_given(group, positions[group])) as messages:
                async for message in messages:
                    yield message
            if given.marks[group].offset >= positions[group].offset:
                given.times.given(group, complete_ms)

    async def since_given(self, group: int, position: Position) -> AsyncGenerator[Message]:
        """Of the rows that were given already, what has changed up to a snapshot."""
        mark = self._given.marks[group]
        self._given.check_not_ahead(group, mark, position)
        if mark.begun and mark.offset < position.offset:
            async with aclosing(self._behind({group: position.offset}, mark.below)) as messages:
                async for message in messages:
                    yield message

    async def _behind(self, ends: Mapping[int, int], below: bytes | None = None) -> AsyncGenerator[Message]:
        """What was committed between the marks and these ends.

        Args:
            below: Only of keys up to this one; None: of all.
        """
        given = self._given
        given.check_age(ends)
        offsets = {group: given.marks[group].offset for group in ends}
        async with aclosing(self._history.epochs(self._descriptor, offsets, ends)) as epochs:
            async for epoch in or_none(epochs, lambda: given.progress_left):
                given.check_age(ends)
                given.check_here()
                if epoch is None:
                    yield given.message()
                    continue
                mark = given.marks[epoch.key_group]
                changes = epoch.changed(self._watcher.keys_in(epoch.key_group), mark.skip)
                if below is not None:
                    changes = (change for change in changes if change.key <= below)
                pending = Pending(epoch.key_group, mark.offset, epoch.after, changes, False, 0)
                async for part in self._parts.of(pending, given.marks, below):
                    yield given.message(*part)
                if given.is_due():
                    # Much was read back, and nothing of it was selected.
                    yield given.message()

"""What a watch is sent of one epoch and key group: parts of a message's size, and the place behind each of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from keyhole.encoding.watch_token import WatchMark
from services.state_server.read.watch_messages import Sent
from services.state_server.read.watch_selection import WatchSelection
from services.state_server.read.watcher import Pending


@dataclass(frozen=True)
class WatchLimits:
    """What one message of a watch, and its rows, may take.

    Attributes:
        page_bytes, page_changes: A message is sent when it has either.
        turn: Entries looked at in one turn of the event loop.
        hold_seconds: How long the snapshot is held that rows are read from: then another one is taken.
        most_snapshots: That the watches of a server hold at once; one more waits for its turn.
    """

    page_bytes: int = 256 << 10
    page_changes: int = 500
    turn: int = 2_000
    hold_seconds: float = 30.0
    most_snapshots: int = 64


class ChangesParts:
    """See the module's text. Of one watch; event loop.

    Args:
        is_due: Whether a message is due, also where there is nothing to tell.
        befores: What was there before is asked for.
        expires: Entries of the state expire.
    """

    def __init__(
        self,
        select: WatchSelection,
        limits: WatchLimits,
        is_due: Callable[[], bool],
        *,
        befores: bool,
        expires: bool,
    ) -> None:
        self._select = select
        self._limits = limits
        self._is_due = is_due
        self._befores = befores
        self._expires = expires

    async def of(
        self, pending: Pending, marks: dict[int, WatchMark], below: bytes | None = None
    ) -> AsyncIterator[Sequence[Sent]]:
        """What is sent of an epoch, with the marks moved behind each part: one can go on there. Of nothing: a message
        is due. Raises ValueMismatch, StaleDescriptor.

        Args:
            below: Only of keys up to this one was given before; None: of all.
        """
        limits, group, stamp = self._limits, pending.key_group, pending.after.stamp
        befores = pending.known and self._befores

        def begun() -> Sent:
            columns: list[Any] | None = [] if befores else None
            expires: list[int] | None = [] if self._expires else None
            return Sent(group, stamp, snapshot=False, befores=columns, begins=pending.before, expires=expires)

        def whole() -> Sent:
            sent = begun()
            sent.shared = True
            for change in itertools.chain.from_iterable(self._select.given(pending)):
                sent.add(change.key, change.row, change.before, change.expires_ms)
                sent.numbers.append(change.number)
            return sent

        if (shared := self._select.shared(pending, limits.page_changes, limits.page_bytes, whole)) is not None:
            marks[group] = WatchMark(pending.after.offset, pending.after.epoch, 0, below)
            yield (shared,)
            return
        sent, mark, any_sent = begun(), marks[group], False
        for number, portion in enumerate(self._select.given(pending)):
            if number:
                await asyncio.sleep(0)
                if self._is_due():
                    # With all that the marks are behind: whoever goes on there would miss what has yet to come.
                    yield (sent,) if sent.keys else ()
                    any_sent |= bool(sent.keys)
                    sent = begun()
            for change in portion:
                if sent.size >= limits.page_bytes or len(sent.keys) >= limits.page_changes:
                    yield (sent,)
                    sent, any_sent = begun(), True
                sent.add(change.key, change.row, change.before, change.expires_ms)
                sent.numbers.append(change.number)
                # Also where changes were replaced by later ones: these have yet to come.
                marks[group] = WatchMark(pending.before, mark.epoch, change.number + 1, below)
        after = pending.after
        marks[group] = WatchMark(after.offset, after.epoch, 0, below)
        if sent.keys or any_sent:
            yield (sent,)
